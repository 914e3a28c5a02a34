"""Verdicts by POST /feedback and `racer feedback`: permissions of keys, and their effects."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.case import Shared
from tests.kit.command_results import failed, parsed
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    Command,
    Gateway,
    Serve,
    error_message,
)
from tests.kit.monitored import add_verdicts, sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until


def say(
    gateway: Gateway, decision_id: str, correct: dict[str, Any], key: str = DATA_KEY
) -> httpx2.Response:
    """POST /feedback."""
    return gateway.post("/feedback", key, json={"decision_id": decision_id, "correct": correct})


send_feedback = partial(add_verdicts, key=DATA_KEY)


def decision(gateway: Gateway, query: str = TWO, key: str = DATA_KEY) -> str:
    """The id of a fresh decision."""
    return gateway.post("/route", key, json={"query": query}).json()["decision_id"]


def counted(gateway: Gateway, decision_id: str) -> dict[str, bool]:
    """The verdicts of a decision that count."""
    known = gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).json()["feedback"]
    return {name: right for name, right in known["correct"].items() if name not in known["waiting"]}


# Saying something -----------------------------------------------------------------------------


def test_the_same_verdict_again_changes_nothing(gateway: Gateway, pool: FakePool) -> None:
    """Alone or beside others; a candidate that was not called may be judged."""
    decision_id = gateway.chat(ONE)["id"]
    assert pool.models_called() == ["adder"]
    first = send_feedback(gateway, decision_id, {"adder": True, "speller": False})
    assert (first["correct"], first["unknown"]) == ({"adder": True, "speller": False}, ["poet"])
    assert (first["repeated"], first["shadow"]) == (False, False)
    again = send_feedback(gateway, decision_id, {"speller": False})
    assert again == first | {"repeated": True}
    more = send_feedback(gateway, decision_id, {"speller": False, "poet": False})
    assert more["correct"] == {"adder": True, "speller": False, "poet": False}
    assert not more["repeated"]
    assert not gateway.get(f"/decisions/{decision_id}").json()["judged"], "not of the sample"


@pytest.mark.parametrize("key", [DATA_KEY, ADMIN_KEY])
def test_another_verdict_is_a_conflict_and_changes_nothing(gateway: Gateway, key: str) -> None:
    """409, and nothing of the request is taken; an admin's verdict counts at once."""
    decision_id = decision(gateway, key=key)
    first = send_feedback(gateway, decision_id, {"adder": True}, key=key)
    assert first["waiting"] == ([] if key == ADMIN_KEY else ["adder"])
    assert counted(gateway, decision_id) == ({"adder": True} if key == ADMIN_KEY else {})
    message = error_message(say(gateway, decision_id, {"poet": True, "adder": False}, key), 409)
    assert "adder" in message
    assert send_feedback(gateway, decision_id, {"adder": True}, key=key)["correct"] == {
        "adder": True
    }


def test_decisions_of_other_keys_are_as_unknown_as_those_never_made(gateway: Gateway) -> None:
    """404 for both, for a data key; an admin may judge every decision."""
    admins = decision(gateway, key=ADMIN_KEY)
    for decision_id in (admins, "chatcmpl-none"):
        assert decision_id in error_message(say(gateway, decision_id, {"adder": True}), 404)
    own = decision(gateway)
    assert send_feedback(gateway, own, {"adder": True}, key=ADMIN_KEY)["correct"] == {"adder": True}
    error_message(say(gateway, own, {"adder": False}), 409)


def test_candidates_outside_the_pool_are_refused(gateway: Gateway) -> None:
    """400 that names the field; for a sub-pool's decision, also for the rest of the pool."""
    decision_id = decision(gateway)
    response = say(gateway, decision_id, {"adder": True, "gpt": True})
    assert "'gpt'" in error_message(response, 400)
    assert response.json()["error"]["param"] == "correct"
    body = {"query": TWO, "candidates": ["adder", "poet"]}
    smaller = gateway.post("/route", json=body).json()["decision_id"]
    assert "'speller'" in error_message(say(gateway, smaller, {"speller": True}), 400)
    assert send_feedback(gateway, decision_id, {"poet": True})["correct"] == {"poet": True}


def test_malformed_feedback_is_refused(gateway: Gateway) -> None:
    """The shape is checked before anything is looked up, the size before that."""
    right = {"decision_id": "x", "correct": {"adder": True}}
    wrong: list[dict[str, Any]] = [
        *({"correct": each} for each in ({}, {"adder": 1}, {"adder": None}, ["adder"], None)),
        *({"decision_id": each} for each in ("", "x" * 65, 7)),
        {"note": "x"},
    ]
    for change in wrong:
        error_message(gateway.post("/feedback", json=right | change), 400)
    large = right | {"correct": {str(i): True for i in range(10_000)}}
    error_message(gateway.post("/feedback", json=large), 413)


# What counts ----------------------------------------------------------------------------------


def test_a_data_keys_verdicts_wait_for_an_admin(gateway: Gateway) -> None:
    """They count once they are accepted: all or none."""
    decision_id = decision(gateway)
    result = send_feedback(gateway, decision_id, {"adder": True, "poet": False})
    assert result["waiting"] == ["adder", "poet"]
    body = {"decision_ids": [decision_id, "chatcmpl-none"]}
    refused = gateway.post("/feedback/accept", ADMIN_KEY, json=body)
    assert "chatcmpl-none" in error_message(refused, 404)
    assert counted(gateway, decision_id) == {}
    accepted = gateway.post("/feedback/accept", ADMIN_KEY, json={"decision_ids": [decision_id]})
    assert accepted.status_code == 200
    assert accepted.json()["data"][0]["waiting"] == []
    assert counted(gateway, decision_id) == {"adder": True, "poet": False}
    assert send_feedback(gateway, decision_id, {"adder": True})["waiting"] == []


def test_an_admins_verdict_overrides_a_waiting_one(gateway: Gateway) -> None:
    """Whether it agrees or not; a data key cannot undo a verdict that waits."""
    decision_id = decision(gateway)
    send_feedback(gateway, decision_id, {"adder": True, "poet": True})
    error_message(say(gateway, decision_id, {"adder": False}), 409)
    result = send_feedback(gateway, decision_id, {"adder": False, "poet": True}, key=ADMIN_KEY)
    assert not result["repeated"]
    assert counted(gateway, decision_id) == {"adder": False, "poet": True}


# The shadow sample ----------------------------------------------------------------------------


def test_a_shadow_decision_is_judged_when_all_its_candidates_are(
    shared: Shared, pool: FakePool
) -> None:
    """Not before; it then has a loss, and becomes a labelled row."""
    trusting = shared(watching={"shadow_rate": 1.0, "feedback": "all"}).gateway
    before = trusting.get("/drift", ADMIN_KEY).json()["shadow"]
    answer = trusting.chat(ONE)
    assert until(lambda: pool.models_called() == sorted(POOL), 30)
    first = send_feedback(trusting, answer["id"], {"adder": True, "speller": False})
    assert (first["shadow"], first["waiting"]) == (True, [])
    assert counted(trusting, answer["id"]) == {"adder": True, "speller": False}
    path = f"/decisions/{answer['id']}"
    assert not trusting.get(path).json()["judged"]
    send_feedback(trusting, answer["id"], {"poet": False})
    send_feedback(trusting, answer["id"], {"poet": False})
    stored = trusting.get(path).json()
    assert (stored["judged"], stored["loss"]) == (True, 0.0)
    after = trusting.get("/drift", ADMIN_KEY).json()["shadow"]
    assert after["sampled"] == before["sampled"] + 1
    assert after["judged"] == before["judged"] + 1
    assert after["rate"] == 1.0


def test_judged_shadow_decisions_are_rows_for_the_next_calibration(
    serve: Serve, pool: FakePool
) -> None:
    """Scores and labels as JSON lines, which `POST /calibrate` takes; others have no label."""
    gateway = serve(watching={"shadow_rate": 1.0})
    expected: list[dict[str, Any]] = []
    for number, right in enumerate(({"adder"}, {"adder"}, set[str]())):
        answer = gateway.chat(f"Compare 3 with 4{number} in one word")
        correct = {name: name in right for name in POOL}
        send_feedback(gateway, answer["id"], correct, key=ADMIN_KEY)
        expected.append({"scores": answer["racer"]["pool_scores"], "correct": correct})
    send_feedback(gateway, gateway.chat(TWO)["id"], {"adder": True}, key=ADMIN_KEY)
    sampled(gateway, 4)
    response = gateway.get("/shadow/rows", ADMIN_KEY)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *rows, last = [json.loads(line) for line in response.text.splitlines()]
    assert last["unlabelled"]
    assert "correct" not in last
    assert [{name: row[name] for name in ("scores", "correct")} for row in rows] == expected
    assert {row["weight"] for row in rows} == {1.0}
    headers = {"content-type": "application/x-ndjson"}
    uploaded = gateway.post(
        "/calibrate?dry_run=true", ADMIN_KEY, content=response.content, headers=headers
    )
    assert uploaded.status_code == 200, uploaded.text
    assert uploaded.json()["evidence"]["n"] == 3


# racer feedback -----------------------------------------------------------------------------------


def verdicts(gateway: Gateway, decision_id: str) -> dict[str, bool]:
    """The stored verdicts on a decision."""
    found = gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).json()
    return found["feedback"]["correct"]


def judgements(path: Path, *lines: object) -> Path:
    """A file of judgements."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_key_is_the_admins_else_the_clients(
    racer: Command, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment: a client has the data key alone, whose verdicts wait."""

    def waiting() -> int:
        decision_id = gateway.route(TWO)["decision_id"]
        given = ("feedback", decision_id, "adder=right", "--url", gateway.url, "--json")
        return parsed(racer(*given))["waiting"]

    monkeypatch.delenv("RACER_ADMIN_KEY", raising=False)
    monkeypatch.setenv("RACER_DATA_KEY", DATA_KEY)
    assert waiting() == 1
    monkeypatch.setenv("RACER_ADMIN_KEY", ADMIN_KEY)
    assert waiting() == 0


def test_one_judgement(racer: Command, gateway: Gateway) -> None:
    """Of some candidates of a decision; again it changes nothing, and the contrary is refused."""
    decision_id = gateway.route(TWO)["decision_id"]
    at = ["--url", gateway.url, "--key", ADMIN_KEY]
    given = ["feedback", decision_id, "adder=right", "poet=wrong", *at]
    assert parsed(racer(*given, "--json")) == {"sent": 1, "known_already": 0, "waiting": 0}
    assert verdicts(gateway, decision_id) == {"adder": True, "poet": False}
    assert parsed(racer(*given, "--json"))["known_already"] == 1
    failed(racer("feedback", decision_id, "adder=wrong", *at), 1, "409")
    code, _, stderr = racer("feedback", decision_id, "speller=true", *at[:3], DATA_KEY)
    assert code == 0
    assert "wait until an admin accepts them" in stderr


def test_a_file_of_judgements(racer: Command, gateway: Gateway, tmp_path: Path) -> None:
    """What is refused is named by its line, and all others are sent."""
    first, second = (gateway.route(TWO)["decision_id"] for _ in range(2))
    at = ["--url", gateway.url, "--key", ADMIN_KEY]
    path = judgements(
        tmp_path / "judgements.jsonl",
        {"decision_id": first, "correct": {"adder": True}},
        {"decision_id": "chatcmpl-unknown", "correct": {"adder": True}},
        {"decision_id": second, "correct": {"adder": False, "poet": False}},
    )
    code, out, stderr = racer("feedback", "--file", path, *at, "--json")
    assert (code, json.loads(out)["sent"]) == (1, 2)
    assert "1 of 3 refused: line 2: " in " ".join(stderr.split())
    assert verdicts(gateway, first) == {"adder": True}
    assert verdicts(gateway, second) == {"adder": False, "poet": False}


def test_nothing_is_sent_of_a_file_with_a_wrong_line(racer: Command, tmp_path: Path) -> None:
    """It is read before the gateway is called: nothing listens at the address."""
    for line, words in (
        ({"decision_id": "x"}, "`decision_id`, a text, and `correct`"),
        ({"decision_id": 1, "correct": {"a": True}}, "`decision_id`, a text"),
        ({"decision_id": "x", "correct": {}}, "must map candidates"),
        ({"decision_id": "x", "correct": {"a": 1}}, "`correct.a` must be true or false"),
        ({"decision_id": "x", "correct": {"a": True}, "judge": "j"}, "nothing else"),
        ("text", "line 1"),
    ):
        path = judgements(tmp_path / "judgements.jsonl", line)
        failed(racer("feedback", "--file", path, "--url", "http://127.0.0.1:1"), 1, "line 1", words)


def test_half_a_judgement_is_wrong_usage(racer: Command) -> None:
    """One way or the other, whole."""
    for given in ("", "x", "x adder", "x adder=perhaps", "x a=right --file f"):
        failed(racer("feedback", *given.split()), 2, "racer feedback --help")
