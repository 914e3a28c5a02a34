"""POST /feedback: permissions of keys, accepted verdicts, and their effects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Gateway,
    Serve,
    configure,
    error_message,
    running,
)
from tests.kit.monitored import sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def trusting(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """A gateway that accepts the verdicts of data keys and calls the whole pool."""
    watching = {"feedback": "all", "shadow_rate": 1.0}
    folder = tmp_path_factory.mktemp("trusting")
    with running(
        configure(folder, artifact, shared_pool.url, watching=watching), ENVIRONMENT
    ) as gateway:
        gateway.calibrate(60)
        yield gateway


def say(
    gateway: Gateway, decision_id: str, correct: dict[str, Any], key: str = DATA_KEY
) -> httpx2.Response:
    """POST /feedback."""
    return gateway.post("/feedback", key, json={"decision_id": decision_id, "correct": correct})


def send_feedback(
    gateway: Gateway, decision_id: str, correct: dict[str, Any], key: str = DATA_KEY
) -> dict[str, Any]:
    """The same, with the status checked."""
    response = say(gateway, decision_id, correct, key)
    assert response.status_code == 200, response.text
    return response.json()


def decision(gateway: Gateway, query: str = TWO, key: str = DATA_KEY) -> str:
    """The id of a fresh decision."""
    return gateway.post("/route", key, json={"query": query}).json()["decision_id"]


def counted(gateway: Gateway, decision_id: str) -> dict[str, bool]:
    """The verdicts of a decision that count."""
    known = gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).json()["feedback"]
    return {name: right for name, right in known["correct"].items() if name not in known["waiting"]}


# Saying something -----------------------------------------------------------------------------


def test_feedback_finds_a_decision_right_after_its_answer(gateway: Gateway) -> None:
    """A decision that still waits to be written is there for its caller."""
    for _ in range(5):
        answer = gateway.chat(TWO)
        result = send_feedback(gateway, answer["id"], {"adder": True})
        assert result["correct"] == {"adder": True}
        assert result["unknown"] == ["speller", "poet"]
        assert not result["repeated"]


def test_the_same_verdict_again_changes_nothing(gateway: Gateway) -> None:
    """200 and ``repeated``, alone or beside others; new ones beside it are taken."""
    decision_id = decision(gateway)
    first = send_feedback(gateway, decision_id, {"adder": True, "speller": False})
    again = send_feedback(gateway, decision_id, {"speller": False})
    assert again == first | {"repeated": True}
    more = send_feedback(gateway, decision_id, {"speller": False, "poet": False})
    assert more["correct"] == {"adder": True, "speller": False, "poet": False}
    assert not more["repeated"]


@pytest.mark.parametrize("key", [DATA_KEY, ADMIN_KEY])
def test_another_verdict_is_a_conflict_and_changes_nothing(gateway: Gateway, key: str) -> None:
    """409, and nothing of the request is taken: not even what is new in it."""
    decision_id = decision(gateway, key=key)
    send_feedback(gateway, decision_id, {"adder": True}, key)
    message = error_message(say(gateway, decision_id, {"poet": True, "adder": False}, key), 409)
    assert "adder" in message
    assert send_feedback(gateway, decision_id, {"adder": True}, key)["correct"] == {"adder": True}


def test_a_candidate_that_was_not_called_can_be_judged(gateway: Gateway) -> None:
    """Only the pool limits who is judged: an operator may know more than was served."""
    decision_id = decision(gateway, ONE)
    assert send_feedback(gateway, decision_id, {"poet": False})["correct"] == {"poet": False}


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


def test_decisions_of_other_keys_are_as_unknown_as_those_never_made(gateway: Gateway) -> None:
    """404 for both, for a data key; an admin may judge every decision."""
    admins = decision(gateway, key=ADMIN_KEY)
    for decision_id in (admins, "chatcmpl-none"):
        assert decision_id in error_message(say(gateway, decision_id, {"adder": True}), 404)
    own = decision(gateway)
    assert send_feedback(gateway, own, {"adder": True}, ADMIN_KEY)["correct"] == {"adder": True}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"decision_id": "x"}, 422),
        ({"decision_id": "x", "correct": {}}, 422),
        ({"decision_id": "x", "correct": {"adder": 1}}, 422),
        ({"decision_id": "x", "correct": {"adder": None}}, 422),
        ({"decision_id": "x", "correct": ["adder"]}, 422),
        ({"decision_id": "", "correct": {"adder": True}}, 422),
        ({"decision_id": "x" * 65, "correct": {"adder": True}}, 422),
        ({"decision_id": 7, "correct": {"adder": True}}, 422),
        ({"decision_id": "x", "correct": {"adder": True}, "note": "x"}, 422),
        ({"decision_id": "x", "correct": {str(i): True for i in range(10_000)}}, 413),
    ],
    ids=lambda value: json.dumps(value)[:48],
)
def test_malformed_feedback_is_refused(gateway: Gateway, body: object, status: int) -> None:
    """The shape is checked before anything is looked up, the size before that."""
    error_message(gateway.post("/feedback", json=body), status)


# What counts ----------------------------------------------------------------------------------


def test_a_data_keys_verdicts_wait_for_an_admin(gateway: Gateway) -> None:
    """They are kept and shown, and count once they are accepted."""
    decision_id = decision(gateway)
    result = send_feedback(gateway, decision_id, {"adder": True, "poet": False})
    assert result["waiting"] == ["adder", "poet"]
    assert counted(gateway, decision_id) == {}
    error_message(gateway.post("/feedback/accept", json={"decision_ids": [decision_id]}), 403)
    accepted = gateway.post("/feedback/accept", ADMIN_KEY, json={"decision_ids": [decision_id]})
    assert accepted.status_code == 200
    assert accepted.json()["data"][0]["waiting"] == []
    assert counted(gateway, decision_id) == {"adder": True, "poet": False}
    assert send_feedback(gateway, decision_id, {"adder": True})["waiting"] == []


def test_accepting_is_for_all_or_none(gateway: Gateway) -> None:
    """One unknown decision among them, and nothing is accepted."""
    decision_id = decision(gateway)
    send_feedback(gateway, decision_id, {"adder": True})
    body = {"decision_ids": [decision_id, "chatcmpl-none"]}
    assert "chatcmpl-none" in error_message(
        gateway.post("/feedback/accept", ADMIN_KEY, json=body), 404
    )
    assert counted(gateway, decision_id) == {}


def test_an_admins_verdicts_count_at_once(gateway: Gateway) -> None:
    """They cannot be changed, not even by an admin."""
    decision_id = decision(gateway)
    assert send_feedback(gateway, decision_id, {"adder": False}, ADMIN_KEY)["waiting"] == []
    assert counted(gateway, decision_id) == {"adder": False}
    for key in (DATA_KEY, ADMIN_KEY):
        error_message(say(gateway, decision_id, {"adder": True}, key), 409)


def test_an_admins_verdict_overrides_a_waiting_one(gateway: Gateway) -> None:
    """Whether it agrees or not; a data key cannot undo a verdict that waits."""
    decision_id = decision(gateway)
    send_feedback(gateway, decision_id, {"adder": True, "poet": True})
    error_message(say(gateway, decision_id, {"adder": False}), 409)
    result = send_feedback(gateway, decision_id, {"adder": False, "poet": True}, ADMIN_KEY)
    assert not result["repeated"]
    assert counted(gateway, decision_id) == {"adder": False, "poet": True}


def test_data_keys_count_where_the_operator_says_so(trusting: Gateway) -> None:
    """`watching.feedback: all`."""
    decision_id = decision(trusting)
    assert send_feedback(trusting, decision_id, {"adder": True})["waiting"] == []
    assert counted(trusting, decision_id) == {"adder": True}


# The shadow sample ----------------------------------------------------------------------------


def test_a_shadow_decision_is_judged_when_all_its_candidates_are(
    trusting: Gateway, pool: FakePool
) -> None:
    """Not before; it then has a loss, and becomes a labelled row."""
    before = trusting.get("/drift", ADMIN_KEY).json()["shadow"]
    answer = trusting.chat(ONE)
    assert until(lambda: pool.models_called() == sorted(POOL), 30)
    assert send_feedback(trusting, answer["id"], {"adder": True, "speller": False})["shadow"]
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
        send_feedback(gateway, answer["id"], correct, ADMIN_KEY)
        expected.append({"scores": answer["racer"]["pool_scores"], "correct": correct})
    send_feedback(gateway, gateway.chat(TWO)["id"], {"adder": True}, ADMIN_KEY)
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


def test_without_a_shadow_rate_only_the_set_is_called(gateway: Gateway, pool: FakePool) -> None:
    """And full feedback is feedback, not a judged member of the sample."""
    answer = gateway.chat(ONE)
    assert pool.models_called() == ["adder"]
    result = send_feedback(gateway, answer["id"], dict.fromkeys(POOL, False), ADMIN_KEY)
    assert not result["shadow"]
    assert not gateway.get(f"/decisions/{answer['id']}").json()["judged"]
