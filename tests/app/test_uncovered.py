"""Requests that no calibration row covers: ``routing.on_uncovered`` says what answers them."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import SettingsError
from tests.app.api.formats import CHAT
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    UNANSWERABLE,
    Gateway,
    Serve,
    user,
)
from tests.kit.upstream import FakePool

QUERY = "Spell the number 3 and then 4"  # the speller alone answers it
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
SYSTEM = {"messages": [{"role": "system", "content": "Be brief."}, *user(QUERY)]}
LATER = {
    "messages": [*user(ONE), {"role": "assistant", "content": "7"}, *user(QUERY)],
}
UNCOVERED = [
    (TOOLS, "unlabelled_request_kind"),
    (SYSTEM, "conditions_differ:messages.system"),
    (LATER, "multi_turn_uncalibrated"),
]
uncovered = pytest.mark.parametrize(
    ("fields", "reason"), UNCOVERED, ids=["tools", "system", "later"]
)


def racer_of(gateway: Gateway, fields: dict[str, Any]) -> dict[str, Any]:
    """The ``racer`` object of an answer, whose certificate is void."""
    racer = gateway.chat(QUERY, **fields)["racer"]
    assert not racer["certificate"]["holds"]
    return racer


@uncovered
def test_the_thresholds_set_answers(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], reason: str
) -> None:
    """By default a request outside the guarantee costs the calls of its set, not of the pool."""
    racer = racer_of(gateway, fields)
    assert reason in racer["certificate"]["reasons"]
    assert pool.models_called() == racer["selected"]
    assert len(racer["selected"]) == 1
    stored = gateway.get(f"/decisions/{racer['decision_id']}").json()
    assert stored["chosen_by"] == "threshold"
    verified = gateway.post(f"/decisions/{racer['decision_id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"]


@uncovered
def test_the_whole_pool_answers(
    serve: Serve, pool: FakePool, fields: dict[str, Any], reason: str
) -> None:
    """All candidates; a request that rows cover has its set."""
    gateway = serve(routing={"on_uncovered": "whole_pool"})
    racer = racer_of(gateway, fields)
    assert reason in racer["certificate"]["reasons"]
    assert sorted(racer["selected"]) == sorted(POOL)
    stored = gateway.get(f"/decisions/{racer['decision_id']}").json()
    assert (stored["chosen_by"], stored["lambda_hat"]) == ("everyone", None)
    pool.reset()
    assert gateway.chat(QUERY)["racer"]["certificate"]["holds"]
    assert pool.models_called() == ["speller"]


@uncovered
def test_a_candidate_answers(
    serve: Serve, pool: FakePool, fields: dict[str, Any], reason: str
) -> None:
    """One call; a request that rows cover has its set. There is no threshold to verify."""
    gateway = serve(routing={"on_uncovered": "poet"})
    racer = racer_of(gateway, fields)
    assert reason in racer["certificate"]["reasons"]
    assert (racer["selected"], pool.models_called()) == (["poet"], ["poet"])
    path = f"/decisions/{racer['decision_id']}"
    assert gateway.get(path).json()["chosen_by"] == "fallback"
    verified = gateway.post(f"{path}/verify", ADMIN_KEY)
    assert (verified.status_code, "without a threshold" in verified.text) == (404, True)
    pool.reset()
    assert gateway.chat(QUERY)["racer"]["certificate"]["holds"]
    assert pool.models_called() == ["speller"]


def test_another_candidate_answers_where_that_one_may_not_or_fails(
    serve: Serve, pool: FakePool
) -> None:
    """The first that the request may call; after a failure the next, until one answers."""
    gateway = serve(routing={"on_uncovered": "poet"})
    allowed = gateway.chat(QUERY, {"candidates": ["speller", "adder"]}, **TOOLS)
    assert allowed["racer"]["selected"] == ["adder"]
    pool.fail("poet", "500")
    pool.fail("adder", "500")
    assert gateway.chat(QUERY, **TOOLS)["model"] == "speller"
    _, events = CHAT.stream(gateway, QUERY, **TOOLS)
    assert CHAT.is_finished(events[-1])


def test_a_query_of_another_kind_is_not_refused(gateway: Gateway, pool: FakePool) -> None:
    """The router abstains on the text; with tools the strongest candidate answers all the same."""
    racer = gateway.chat(UNANSWERABLE)["racer"]
    assert (racer["abstained"], pool.models_called()) == (True, [])
    racer = gateway.chat(UNANSWERABLE, **TOOLS)["racer"]
    assert "abstained_strongest" in racer["certificate"]["reasons"]
    assert pool.models_called() == racer["selected"] == [next(iter(racer["pool_scores"]))]


def test_without_rows_for_the_pool_the_fallback_answers(serve: Serve, pool: FakePool) -> None:
    """No row is answered by the poet alone, so there is no threshold for it."""
    gateway = serve(routing={"fallback": "poet"})
    racer = gateway.chat(QUERY, {"candidates": ["poet"]})["racer"]
    assert "no_calibration_for_pool" in racer["certificate"]["reasons"]
    assert (racer["selected"], pool.models_called()) == (["poet"], ["poet"])


def test_a_session_is_not_bound_to_the_candidate(serve: Serve, pool: FakePool) -> None:
    """Its next turn may be certified."""
    gateway = serve(routing={"on_uncovered": "poet", "session_ttl_s": 60})
    headers = {"x-session-id": "s"}
    for fields, selected in ((TOOLS, ["poet"]), ({}, ["speller"])):
        body = {"model": "auto", "messages": user(QUERY), **fields}
        answer = gateway.post("/v1/chat/completions", json=body, headers=headers).json()
        assert answer["racer"]["selected"] == selected


@pytest.mark.parametrize("policy", ["set", "whole_pool", "poet"])
def test_an_infeasible_alpha_is_covered(serve: Serve, pool: FakePool, policy: str) -> None:
    """Too few rows call the whole pool, whose set never misses, whatever the policy."""
    gateway = serve(routing={"on_uncovered": policy})
    for name in POOL:
        pool.say(name, f"as {name} says")  # no two agree: the vote needs all three calls
    certificate = gateway.chat(QUERY, {"alpha": 0.001})["racer"]["certificate"]
    assert (certificate["holds"], pool.models_called()) == (True, sorted(POOL))


def test_the_policy_must_exist(serve: Serve) -> None:
    """A name that is no candidate stops the start."""
    with pytest.raises(SettingsError, match="on_uncovered: 'stranger' is no candidate"):
        serve(routing={"on_uncovered": "stranger"})
