"""What a harness wraps around words is not read: when serving, calibrating, training, sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.settings import key_format
from app.settings.applications import Application, leave_out_digest, membership_digest
from app.tools.labelling.replay import routed_question
from app.tools.router_rows import read_rows
from app.wire.messages.request import chat_fields
from racer_core.records.questions import read_questions
from tests.kit.coding_agents import COUNT, LEAVE_OUT, agent_turns
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    Serve,
    as_json,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.monitored import sampled, shadow_rows
from tests.kit.upstream import FakePool

AGENT_KEY = key_format.new_key()
ACCESS = {
    "keys": [{"name": "agent", "hash": key_format.format_hash(AGENT_KEY, key_format.new_salt())}]
}
REMINDER = "<system-reminder>\nWrite a poem about 3 and 4\n</system-reminder>"


def applications(rules: list[dict[str, str]], **terms: Any) -> dict[str, Any]:
    """An agent with its key."""
    return {"agent": {"keys": ["agent"], "leave_out": rules, **terms}}


def wrapped(query: str) -> list[dict[str, Any]]:
    """A request with a reminder on either side."""
    return user(f"{REMINDER}\n{query}\n{REMINDER}")


def rows(start: int = 20_000, count: int = 80) -> list[dict[str, Any]]:
    """Rows as an agent's traffic is: whole requests in their wrapping."""
    return [
        {"request": {"messages": wrapped(row["query"])}, "correct": row["correct"]}
        | {"application": "agent"}
        for row in as_json(labelled(start, count))
    ]


def upload(gateway: Gateway, given: list[dict[str, Any]]) -> dict[str, Any]:
    """Calibrate on rows."""
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": given, "confirm": True})
    assert response.status_code == 200, response.text
    return response.json()


def route(gateway: Gateway, messages: list[dict[str, Any]], key: str = AGENT_KEY) -> dict[str, Any]:
    """The decision of a request."""
    response = gateway.post("/route", key, json={"messages": messages})
    assert response.status_code == 200, response.text
    return response.json()


# The measurement.


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool) -> Any:
    """A gateway whose agent leaves the wrapping out, and whose other application reads it."""
    path = configure(
        tmp_path_factory.mktemp("agents"),
        artifact,
        shared_pool.url,
        access=ACCESS,
        applications=applications(LEAVE_OUT),
    )
    with running(path, ENVIRONMENT) as gateway:
        plain = as_json(labelled(20_000, 80))
        upload(gateway, [*(row | {"application": "agent"} for row in plain), *plain])
        yield gateway


def test_wrapping_changes_the_set_of_at_most_one_turn_in_a_hundred(agents: Gateway) -> None:
    """Of 200 generated turns of an agent, with and without it; without the rules most change.

    The words of some turns quote a marker, which a reminder behind them may close.
    """
    turns = agent_turns()
    same = {AGENT_KEY: 0, DATA_KEY: 0}
    for turn in turns:
        sent = [chat_fields({"messages": each})["messages"] for each in (turn.bare, turn.wrapped)]
        for key in same:
            bare, with_wrapping = (route(agents, each, key)["selected"] for each in sent)
            same[key] += bare == with_wrapping
    assert len(turns) == COUNT == 200
    assert same[AGENT_KEY] >= 0.99 * COUNT
    assert same[DATA_KEY] <= 0.7 * COUNT


def test_the_turns_are_what_they_were() -> None:
    """Red when a change of the generator makes other turns than those that were measured."""
    document = json.dumps([[each.bare, each.wrapped] for each in agent_turns()])
    assert sum(map(len, document.split())) > 100_000
    assert agent_turns() == agent_turns()
    kinds = {len(each.bare) for each in agent_turns()}
    assert kinds == {1, 3, 5}  # first words, a step or later words, a step after later words


# In force everywhere.


def test_rows_and_requests_are_read_alike(serve: Serve) -> None:
    """Wrapped rows certify bare requests and the other way round, with the set of the words."""
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(LEAVE_OUT))
    found = upload(gateway, rows())
    assert found["evidence"]["leave_out"]["agent"][0] == LEAVE_OUT[0]
    for messages in (user(ONE), wrapped(ONE)):
        decision = route(gateway, messages)
        assert decision["certificate"]["holds"] is True
        assert decision["selected"] == ["adder"]
        # Another request may have the same words.
        assert decision["certificate"]["remarks"] == []
    assert route(gateway, wrapped(ONE), DATA_KEY)["selected"] != ["adder"]


@pytest.mark.parametrize("premise", ["alike", "drawn"])
def test_a_change_of_rules_voids_until_rows_are_uploaded_again(
    tmp_path: Path, artifact: Path, pool: FakePool, premise: str
) -> None:
    """The threshold is one of texts that were read by other rules."""

    def holds(rules: list[dict[str, str]]) -> tuple[bool, list[str]]:
        path = configure(
            tmp_path,
            artifact,
            pool.url,
            access=ACCESS,
            applications=applications(rules, premise=premise),
        )
        with running(path, ENVIRONMENT) as gateway:
            if gateway.ready()["calibration"] is None:
                upload(gateway, rows())
            found = route(gateway, wrapped(TWO))["certificate"]
            return found["holds"], [each for each in found["reasons"] if "grouping" in each]

    assert holds(LEAVE_OUT) == (True, [])
    for rules in ([], LEAVE_OUT[:-1], LEAVE_OUT[::-1], [{**LEAVE_OUT[0], "end": ""}]):
        assert holds(rules) == (False, ["grouping_changed"])
    assert holds(LEAVE_OUT) == (True, [])


def test_applications_without_rules_are_grouped_as_before() -> None:
    """Their digests do not change when such rules are introduced elsewhere."""
    before = {"bot": Application(keys=("bot",), text="with_system")}
    assert membership_digest(before, "last_user") == "11f672ff3320150d"
    assert leave_out_digest(before) == ""


def test_training_and_labelling_read_the_same(tmp_path: Path, artifact: Path) -> None:
    """The text of a row that trains a router, and that of a question for an evaluator."""
    path = configure(
        tmp_path, artifact, "http://127.0.0.1:9/v1", access=ACCESS,
        applications=applications(LEAVE_OUT),
    )  # fmt: skip
    configured, _ = settings.load(path, ENVIRONMENT)
    given = rows(count=4)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    expected = [row["query"] for row in as_json(labelled(20_000, 4))]
    assert [row.query for row in read_rows(file, configured, None).rows] == expected
    questions = read_questions(file, configured.text_of)
    assert [routed_question(each, configured) for each in questions] == expected


def test_a_large_upload_is_read_by_the_same_rules(serve: Serve) -> None:
    """In the process that reads such uploads."""
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(LEAVE_OUT))
    upload(gateway, [row | {"task": "a" * 2_000} for row in rows()])
    decision = route(gateway, user(ONE))
    assert (decision["selected"], decision["certificate"]["holds"]) == (["adder"], True)


def test_scores_of_samples_that_were_read_otherwise_are_no_rows(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Stored requests are read anew; of the others there are only the scores of another text."""
    saved: list[dict[str, Any]] = []

    def count(rules: list[dict[str, str]]) -> int:
        path = configure(
            tmp_path,
            artifact,
            pool.url,
            access=ACCESS,
            watching={"shadow_rate": 1.0},
            applications=applications(rules, premise="drawn"),
        )
        with running(path, ENVIRONMENT) as gateway:
            if gateway.ready()["calibration"] is None:
                upload(gateway, rows())
                body = {"model": "auto", "messages": wrapped(ONE)}
                assert gateway.post("/v1/chat/completions", AGENT_KEY, json=body).status_code == 200
                sampled(gateway, 1)
                saved.extend(shadow_rows(gateway))
                assert "scores" in saved[0]
                del saved[0]["unlabelled"]
                saved[0]["correct"] = {"adder": True, "speller": False, "poet": False}
            body = {"rows": saved, "dry_run": True}
            response = gateway.post("/calibrate", ADMIN_KEY, json=body)
            assert ("are not those that are stored" in response.text) is (rules != LEAVE_OUT)
            return len(shadow_rows(gateway))

    assert count(LEAVE_OUT) == 1
    assert count(LEAVE_OUT[:1]) == 0
    assert count(LEAVE_OUT) == 1


@pytest.mark.parametrize(
    "rule", [{"begin": ""}, {"end": "</a>"}, {"begin": "a" * 257}, {"begin": "a", "stop": "b"}]
)
def test_rules_are_checked(tmp_path: Path, artifact: Path, rule: dict[str, str]) -> None:
    """Before the gateway serves."""
    path = configure(
        tmp_path,
        artifact,
        "http://127.0.0.1:9/v1",
        access=ACCESS,
        applications=applications([rule]),
    )
    with pytest.raises(Exception, match="leave_out"), running(path, ENVIRONMENT):
        pass
