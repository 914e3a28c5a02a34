"""Premises of the guarantee: what voids a certificate, and what answers uncovered requests."""

from __future__ import annotations

from typing import Any

import pytest

from app.routing.premises import CandidateChoice, Premises
from app.routing.reasons import Reason
from app.routing.row_selection import RowSelection, TurnKind
from tests.app.api.formats import CHAT
from tests.kit.case import Shared
from tests.kit.gateway import ADMIN_KEY, ONE, POOL, UNANSWERABLE, Gateway, Serve, candidates, user
from tests.kit.upstream import FakePool

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}


def certificate(gateway: Gateway, path: str, **body: Any) -> dict[str, Any]:
    """The certificate that a request gets."""
    response = gateway.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer.get("racer", answer)["certificate"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/route"])
def test_fields_that_may_change_an_answer_void_the_guarantee(gateway: Gateway, path: str) -> None:
    """A field that is not declared harmless changes the conditions, with and without a call."""
    for name, value, is_harmless in (
        ("temperature", 2.0, False),
        ("bad_words", ["7"], False),
        ("a_field_of_tomorrow", 1, False),
        ("n", 2, True),
        ("user", "me", True),
        ("logprobs", True, True),
    ):
        result = certificate(gateway, path, model="auto", messages=[QUESTION], **{name: value})
        reasons = [] if is_harmless else [Reason.CONDITIONS_DIFFER.of(name)]
        assert (result["holds"], result["reasons"]) == (is_harmless, reasons)


def test_all_labelled_parameters_are_compared(serve: Serve, pool: FakePool) -> None:
    """Rows labelled as JSON say nothing of plain text, nor one seed of another."""
    labelled_with = {"response_format": {"type": "json_object"}, "seed": 1}
    gateway = serve(candidates=candidates(pool.url, parameters=labelled_with))
    for field in ({"response_format": {"type": "text"}}, {"seed": 2}):
        result = certificate(gateway, "/route", messages=[QUESTION], **field)
        assert result["reasons"] == [Reason.CONDITIONS_DIFFER.of(name) for name in field]
    assert certificate(gateway, "/route", messages=[QUESTION], seed=1)["holds"] is True


LATER, OTHER_KIND = "multi_turn_uncalibrated", "unlabelled_request_kind"


@pytest.mark.parametrize(
    ("messages", "role", "kind"),
    [
        ([{"role": "function", "content": "5", "name": "f"}, QUESTION], "function", [LATER]),
        ([{"role": "System", "content": "be brief"}, QUESTION], "System", [LATER]),
        ([{"role": "system", "content": "be brief"}, QUESTION], "system", []),
        ([{**QUESTION, "name": "ann"}], "user", [OTHER_KIND]),
        (
            [{"role": "user", "content": [{"type": "text", "text": text} for text in "34"]}],
            "user",
            [OTHER_KIND],
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}, "text": ""}]}],
            "user",
            [OTHER_KIND],
        ),
    ],
)
def test_other_messages_than_were_labelled_void(
    gateway: Gateway, messages: list[dict[str, Any]], role: str, kind: list[str]
) -> None:
    """Rows are one user message of plain text; any other body belongs to another population."""
    certified = certificate(gateway, "/route", messages=messages)
    reasons = [f"conditions_differ:messages.{role}", *kind]
    assert (certified["holds"], certified["reasons"]) == (False, reasons)


def test_a_score_of_the_request_is_remarked(gateway: Gateway) -> None:
    """Choosing the smaller of two sets depends on the query, so the certificate has a reason."""
    result = certificate(gateway, "/route", query="What is 3 plus 4?", score="prob")
    assert (result["holds"], result["reasons"]) == (True, [Reason.SCORE_ASSUMED])


def test_the_strongest_is_one_that_the_request_allows(serve: Serve, pool: FakePool) -> None:
    """With ``candidates`` no other candidate is called, not even when the router abstains."""
    gateway = serve()
    gateway.calibrate(risk_target="paper", alpha=0.2)
    options = {"candidates": ["speller", "poet"], "on_abstain": "strongest"}
    assert gateway.ask("Write a poem about 3 and 4", options).status_code == 200
    assert set(pool.models_called()) <= {"speller", "poet"}
    assert pool.models_called()


def test_the_reasons_of_a_decision_have_one_order() -> None:
    """The query's, the pool's, the rows', the options'."""
    premises = Premises(
        rows=RowSelection(population=0, turn=TurnKind.UNCALIBRATED, differing=("seed",)),
        choice=CandidateChoice(names=("a",), is_requested=True, has_unable=True, down=("b", "c")),
        is_too_long=True,
        is_too_large=True,
        is_not_drawn=True,
        is_other_kind=True,
        is_pending=True,
        has_rows=False,
        is_alpha_requested=True,
        is_score_requested=True,
        is_group_requested=True,
        is_group_calibrated=False,
    )
    assert premises.reasons == (
        "conditions_differ:seed",
        "unlabelled_request_kind",
        "pool_assumed_independent_of_query",
        "unlabelled_request_kind",
        "candidate_down:b",
        "candidate_down:c",
        "query_too_long",
        "request_too_large",
        "not_drawn",
        "multi_turn_uncalibrated",
        "sub_pool_pending_whole_pool",
        "no_calibration_for_pool",
        "group_uncalibrated",
        "alpha_assumed_independent_of_query",
        "score_assumed_independent_of_query",
        "group_assumed_independent_of_query",
    )


# Requests that no row covers -------------------------------------------------------------------


QUERY = "Spell the number 3 and then 4"  # the speller alone answers it
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
SYSTEM = {"messages": [{"role": "system", "content": "Be brief."}, *user(QUERY)]}
LATER_TURN = {"messages": [*user(ONE), {"role": "assistant", "content": "7"}, *user(QUERY)]}
UNCOVERED = [
    (TOOLS, "unlabelled_request_kind"),
    (SYSTEM, "conditions_differ:messages.system"),
    (LATER_TURN, "multi_turn_uncalibrated"),
]
uncovered = pytest.mark.parametrize(
    ("fields", "reason"), UNCOVERED, ids=["tools", "system", "later"]
)


@pytest.mark.parametrize(
    ("policy", "selected", "chosen_by"),
    [
        ("set", ["speller"], "threshold"),
        ("whole_pool", [*POOL], "everyone"),
        ("poet", ["poet"], "fallback"),
    ],
)
@uncovered
def test_what_answers_is_configured(
    shared: Shared,
    pool: FakePool,
    fields: dict[str, Any],
    reason: str,
    policy: str,
    selected: list[str],
    chosen_by: str,
) -> None:
    """The threshold's set, the whole pool or one candidate; what rows cover has its set."""
    case = shared(routing={"on_uncovered": policy})
    for name in POOL:
        pool.say(name, f"{name} answers")  # no vote is decided before all have answered
    answer = case.ask(QUERY, **fields)
    assert (answer.certificate["holds"], reason in answer.reasons) == (False, True)
    if policy != "set" or fields is not LATER_TURN:
        assert sorted(answer.racer["selected"]) == sorted(selected)
    assert pool.models_called() == sorted(answer.racer["selected"])
    stored = case.decision(answer)
    assert stored["chosen_by"] == chosen_by
    assert (stored["lambda_hat"] is None) == (policy != "set")
    verified = case.gateway.post(f"/decisions/{answer.decision_id}/verify", ADMIN_KEY)
    if policy == "set":
        assert verified.json()["matches"]
    elif policy == "poet":
        assert (verified.status_code, "without a threshold" in verified.text) == (404, True)
    pool.reset()
    assert case.certificate(QUERY)["holds"]
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
