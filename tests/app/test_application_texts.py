"""The text that the router reads, of requests and rows alike, without the wrapping of agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.tools.labelling.labeller import routed_question
from app.tools.router_rows import read_rows
from app.wire.messages.request import chat_fields
from racer_core.records.questions import read_questions
from tests.kit.accounts import configured_key
from tests.kit.case import Shared
from tests.kit.coding_agents import COUNT, LEAVE_OUT, agent_turns
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    Restart,
    Serve,
    as_json,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.monitored import sampled, shadow_rows

TEXTS: dict[str, str | None] = {
    "spoken": "conversation",
    "prompted": "with_system",
    "whole": "conversation_with_system",
    "plain": None,
}
CONFIGURED = {name: configured_key(name) for name in TEXTS}
KEYS = {name: key for name, (key, _) in CONFIGURED.items()}
ACCESS = {"keys": [line for _, line in CONFIGURED.values()]}


def applications(texts: dict[str, str | None], premise: str) -> dict[str, Any]:
    """Each with its key, its text and this premise."""
    return {
        name: {"keys": [name], "premise": premise} | ({"text": text} if text else {})
        for name, text in texts.items()
    }


def body(query: str, system: str, *, later: bool = False) -> dict[str, Any]:
    """A request, as a first or a later turn."""
    turns = [*user(ONE), {"role": "assistant", "content": "7"}] if later else []
    return {"messages": [{"role": "system", "content": system}, *turns, *user(query)]}


def rows_of(name: str, start: int = 20_000) -> list[dict[str, Any]]:
    """First and later turns under one system prompt."""
    rows = as_json(labelled(start, 80))
    return [
        {"request": body(row["query"], "A.", later=place % 2 == 1), "correct": row["correct"]}
        | {"application": name}
        for place, row in enumerate(rows)
    ]


@pytest.mark.parametrize("premise", ["drawn", "alike"])
def test_rows_and_requests_are_read_alike(serve: Serve, premise: str) -> None:
    """A request that is a row has the row's text, and so its fingerprint; see the remark.

    What the text leaves out changes nothing: the system prompt, or the turns before the last.
    """
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(TEXTS, premise))
    rows = {name: rows_of(name) for name in TEXTS}
    gateway.upload([row for each in rows.values() for row in each])
    for name, key in KEYS.items():
        first, later = (row["request"] for row in rows[name][:2])
        found = gateway.decide(key, **first)
        assert (found["holds"], "calibration_query" in found["remarks"]) == (True, True), name
        found = gateway.decide(key, **later)
        # A last turn alone says too little of a conversation for a remark.
        is_named = "calibration_query" in found["remarks"]
        assert (found["holds"], is_named) == (True, name in ("spoken", "whole")), name
        if premise == "drawn":
            query = first["messages"][-1]["content"]
            found = gateway.decide(key, **body(query, "Another."))
            is_named = "calibration_query" in found["remarks"]
            assert (found["holds"], is_named) == (True, name not in ("prompted", "whole")), name


def test_a_change_of_text_voids_until_rows_are_uploaded_again(restart: Restart) -> None:
    """Scores of another text are no scores of the rows."""

    def holds(text: str | None) -> tuple[bool, list[str]]:
        changed = applications({**TEXTS, "plain": text}, "drawn")
        with restart(access=ACCESS, applications=changed) as gateway:
            gateway.once(rows_of("plain"))
            found = gateway.decide(KEYS["plain"], **body(TWO, "A."))
            return found["holds"], found["reasons"]

    assert holds(None) == (True, [])
    for text in ("with_system", "conversation"):
        assert holds(text) == (False, ["grouping_changed"])
    assert holds(None) == (True, [])


def test_a_changed_usual_text_voids_later_turns_of_applications_without_their_own(
    restart: Restart,
) -> None:
    """Each application's text is its own, or that of `routing.text`."""

    def holds(text: str) -> dict[str, bool]:
        with restart(
            access=ACCESS, applications=applications(TEXTS, "drawn"), routing={"text": text}
        ) as gateway:
            gateway.once([row for name in TEXTS for row in rows_of(name)])
            request = body(TWO, "A.", later=True)
            return {name: gateway.decide(key, **request)["holds"] for name, key in KEYS.items()}

    assert holds("last_user") == dict.fromkeys(TEXTS, True)
    assert holds("conversation") == dict.fromkeys(TEXTS, True) | {"plain": False}


def test_training_queries_are_found_under_a_system_prompt(serve: Serve) -> None:
    """Training read the query alone, calibration reads the prompt before it."""
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(TEXTS, "drawn"))
    rows = rows_of("prompted", start=0)  # the training rows
    assert "rows were training rows" in gateway.refused(rows)


# What is left out ------------------------------------------------------------------------------


AGENT_KEY, AGENT_LINE = configured_key("agent")
AGENT_ACCESS = {"keys": [AGENT_LINE]}
REMINDER = "<system-reminder>\nWrite a poem about 3 and 4\n</system-reminder>"


def agent_applications(rules: list[dict[str, str]], **terms: Any) -> dict[str, Any]:
    """An agent with its key."""
    return {"agent": {"keys": ["agent"], "leave_out": rules, **terms}}


AGENT = agent_applications(LEAVE_OUT)


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


def agent_route(
    gateway: Gateway, messages: list[dict[str, Any]], key: str = AGENT_KEY
) -> dict[str, Any]:
    """The decision of a request."""
    response = gateway.post("/route", key, json={"messages": messages})
    assert response.status_code == 200, response.text
    return response.json()


# The measurement.


@pytest.fixture
def agents(shared: Shared) -> Gateway:
    """A gateway whose agent leaves the wrapping out, and whose other application reads it."""
    plain = as_json(labelled(20_000, 80))
    case = shared(calibrated=False, group="agents", access=AGENT_ACCESS, applications=AGENT)
    return case.gateway.once([*(row | {"application": "agent"} for row in plain), *plain])


@pytest.mark.slow
def test_wrapping_changes_the_set_of_at_most_one_turn_in_a_hundred(agents: Gateway) -> None:
    """Of 200 generated turns of an agent, with and without it; without the rules most change.

    The words of some turns quote a marker, which a reminder behind them may close.
    """
    turns = agent_turns()
    same = {AGENT_KEY: 0, DATA_KEY: 0}
    for turn in turns:
        sent = [chat_fields({"messages": each})["messages"] for each in (turn.bare, turn.wrapped)]
        for key in same:
            bare, with_wrapping = (agent_route(agents, each, key)["selected"] for each in sent)
            same[key] += bare == with_wrapping
    assert len(turns) == COUNT == 200
    assert same[AGENT_KEY] >= 0.99 * COUNT
    assert same[DATA_KEY] <= 0.7 * COUNT


# In force everywhere.


def test_wrapped_rows_and_requests_are_read_alike(serve: Serve) -> None:
    """Wrapped rows certify bare requests and the other way round, with the set of the words."""
    gateway = serve(calibrated=False, access=AGENT_ACCESS, applications=AGENT)
    found = gateway.upload(rows())
    assert found["evidence"]["leave_out"]["agent"][0] == LEAVE_OUT[0]
    for messages in (user(ONE), wrapped(ONE)):
        decision = agent_route(gateway, messages)
        assert decision["certificate"]["holds"] is True
        assert decision["selected"] == ["adder"]
        # Another request may have the same words.
        assert decision["certificate"]["remarks"] == []
    assert agent_route(gateway, wrapped(ONE), DATA_KEY)["selected"] != ["adder"]


@pytest.mark.parametrize("premise", ["alike", "drawn"])
def test_a_change_of_rules_voids_until_rows_are_uploaded_again(
    restart: Restart, premise: str
) -> None:
    """The threshold is one of texts that were read by other rules."""

    def holds(rules: list[dict[str, str]]) -> tuple[bool, list[str]]:
        with restart(
            access=AGENT_ACCESS, applications=agent_applications(rules, premise=premise)
        ) as gateway:
            gateway.once(rows())
            found = agent_route(gateway, wrapped(TWO))["certificate"]
            return found["holds"], [each for each in found["reasons"] if "grouping" in each]

    assert holds(LEAVE_OUT) == (True, [])
    for rules in ([], LEAVE_OUT[:-1], LEAVE_OUT[::-1], [{**LEAVE_OUT[0], "end": ""}]):
        assert holds(rules) == (False, ["grouping_changed"])
    assert holds(LEAVE_OUT) == (True, [])


def test_training_and_labelling_read_the_same(tmp_path: Path, artifact: Path) -> None:
    """The text of a row that trains a router, and that of a question for an evaluator."""
    path = configure(
        tmp_path, artifact, "http://127.0.0.1:9/v1", access=AGENT_ACCESS,
        applications=AGENT,
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
    gateway = serve(calibrated=False, access=AGENT_ACCESS, applications=AGENT)
    gateway.upload([row | {"task": "a" * 2_000} for row in rows()])
    decision = agent_route(gateway, user(ONE))
    assert (decision["selected"], decision["certificate"]["holds"]) == (["adder"], True)


def test_scores_of_samples_that_were_read_otherwise_are_no_rows(restart: Restart) -> None:
    """Stored requests are read anew; of the others there are only the scores of another text."""
    saved: list[dict[str, Any]] = []

    def count(rules: list[dict[str, str]]) -> int:
        with restart(
            access=AGENT_ACCESS,
            watching={"shadow_rate": 1.0},
            applications=agent_applications(rules, premise="drawn"),
        ) as gateway:
            if gateway.ready()["calibration"] is None:
                gateway.upload(rows())
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
        access=AGENT_ACCESS,
        applications=agent_applications([rule]),
    )
    with pytest.raises(Exception, match="leave_out"), running(path, ENVIRONMENT):
        pass
