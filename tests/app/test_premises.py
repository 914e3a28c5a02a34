"""``holds`` is true only where every premise of the guarantee held."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.routing.premises import CandidateChoice, Premises
from app.routing.reasons import Reason, Remark, breaks
from app.routing.row_selection import RowSelection, TurnKind
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    Gateway,
    Serve,
    as_json,
    candidates,
    configure,
    labelled,
    running,
)
from tests.kit.upstream import FakePool

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
REASONS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def certificate(gateway: Gateway, path: str, **body: Any) -> dict[str, Any]:
    """The certificate that a request gets."""
    response = gateway.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer.get("racer", answer)["certificate"]


def test_a_plain_question_holds(gateway: Gateway) -> None:
    """The control of this module: without a broken premise there is no reason."""
    plain = certificate(gateway, "/v1/chat/completions", model="auto", messages=[QUESTION])
    assert (plain["holds"], plain["reasons"]) == (True, [])


@pytest.mark.parametrize(
    "field",
    [{"temperature": 2.0}, {"bad_words": ["7"]}, {"min_tokens": 9}, {"a_field_of_tomorrow": 1}],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/route"])
def test_fields_that_may_change_an_answer_void_the_guarantee(
    gateway: Gateway, path: str, field: dict[str, Any]
) -> None:
    """A field that is not declared harmless changes the conditions, with and without a call."""
    result = certificate(gateway, path, model="auto", messages=[QUESTION], **field)
    reasons = [Reason.CONDITIONS_DIFFER.of(name) for name in field]
    assert (result["holds"], result["reasons"]) == (False, reasons)


@pytest.mark.parametrize("field", [{"n": 2}, {"user": "me"}, {"logprobs": True}])
def test_fields_that_change_no_answer_keep_the_guarantee(
    gateway: Gateway, field: dict[str, Any]
) -> None:
    """Fields about the request rather than the answer leave the guarantee alone."""
    assert certificate(gateway, "/route", messages=[QUESTION], **field)["holds"] is True


def test_all_labelled_parameters_are_compared(serve: Serve, pool: FakePool) -> None:
    """Rows labelled as JSON say nothing of plain text, nor one seed of another."""
    labelled_with = {"response_format": {"type": "json_object"}, "seed": 1}
    gateway = serve(candidates=candidates(pool.url, parameters=labelled_with))
    for field in ({"response_format": {"type": "text"}}, {"seed": 2}):
        result = certificate(gateway, "/route", messages=[QUESTION], **field)
        assert result["reasons"] == [Reason.CONDITIONS_DIFFER.of(name) for name in field]
    assert certificate(gateway, "/route", messages=[QUESTION], seed=1)["holds"] is True


def test_a_refusal_is_certified_like_an_answer(serve: Serve) -> None:
    """No candidate is called for a poem, and other conditions void that decision too."""
    gateway = serve()
    gateway.calibrate(risk_target="paper", alpha=0.2)
    poem = {"role": "user", "content": "Write a poem about 3 and 4"}
    result = certificate(
        gateway, "/v1/chat/completions", model="auto", messages=[poem], temperature=2.0
    )
    assert result["reasons"] == [Reason.CONDITIONS_DIFFER.of("temperature")]


@pytest.mark.parametrize(
    ("messages", "reasons"),
    [
        (
            [{"role": "function", "content": "5", "name": "f"}, QUESTION],
            ["conditions_differ:messages.function", "multi_turn_uncalibrated"],
        ),
        (
            [{"role": "System", "content": "be brief"}, QUESTION],
            ["conditions_differ:messages.System", "multi_turn_uncalibrated"],
        ),
        (
            [{"role": "system", "content": "be brief"}, QUESTION],
            ["conditions_differ:messages.system"],
        ),
        (
            [{**QUESTION, "name": "ann"}],
            ["conditions_differ:messages.user", "unlabelled_request_kind"],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": text} for text in "34"]}],
            ["conditions_differ:messages.user", "unlabelled_request_kind"],
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}, "text": ""}]}],
            ["conditions_differ:messages.user", "unlabelled_request_kind"],
        ),
    ],
)
def test_other_messages_than_were_labelled_void(
    gateway: Gateway, messages: list[dict[str, Any]], reasons: list[str]
) -> None:
    """Rows are one user message of plain text; any other body belongs to another population."""
    certified = certificate(gateway, "/route", messages=messages)
    assert (certified["holds"], certified["reasons"]) == (False, reasons)


def test_a_score_of_the_request_is_remarked(gateway: Gateway) -> None:
    """Choosing the smaller of two sets depends on the query, so the certificate has a reason."""
    result = certificate(gateway, "/route", query="What is 3 plus 4?", score="prob")
    assert (result["holds"], result["reasons"]) == (True, [Reason.SCORE_ASSUMED])


def test_scores_uploaded_with_rows_void_the_guarantee(serve: Serve) -> None:
    """The gateway cannot know whether this router would give the same scores."""
    gateway = serve()
    rows = as_json(labelled(10_000, 40))
    pool = gateway.settings.pool
    bare = [{"correct": row["correct"], "scores": dict.fromkeys(pool, 0.5)} for row in rows]
    gateway.post("/calibrate", ADMIN_KEY, json={"rows": bare, "confirm": True}).raise_for_status()
    result = certificate(gateway, "/route", query="What is 3 plus 4?")
    assert Reason.ROW_SCORES_UNVERIFIED in result["reasons"]
    assert result["holds"] is False


def test_a_calibration_is_bound_to_how_candidates_are_served(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """After a restart with another model behind a name, the old rows label another model."""
    path = configure(tmp_path, artifact, pool.url)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate()
    values = path.read_text(encoding="utf-8").replace("name: adder", "model: other\n  name: adder")
    path.write_text(values, encoding="utf-8")
    with running(path, ENVIRONMENT) as gateway:
        ready = gateway.ready()
    assert ready["calibration"] is None
    assert "served otherwise" in ready["missing"][0]["reason"]


def test_the_strongest_is_one_that_the_request_allows(serve: Serve, pool: FakePool) -> None:
    """With ``candidates`` no other candidate is called, not even when the router abstains."""
    gateway = serve()
    gateway.calibrate(risk_target="paper", alpha=0.2)
    options = {"candidates": ["speller", "poet"], "on_abstain": "strongest"}
    assert gateway.ask("Write a poem about 3 and 4", options).status_code == 200
    assert set(pool.models_called()) <= {"speller", "poet"}
    assert pool.models_called()


def test_every_reason_is_explained(gateway: Gateway) -> None:
    """The reference has a line for each, under the heading that says whether it voids."""
    _, void, holds, remarks = re.split(
        r"^## (?:Reasons .*|Remarks)$", REASONS.read_text("utf-8"), flags=re.M
    )
    line = re.compile(r"^- `([a-z_]+)(?::<name>)?`: \S", re.M)
    assert sorted(line.findall(void)) == sorted(each for each in Reason if breaks(each))
    assert sorted(line.findall(holds)) == sorted(each for each in Reason if not breaks(each))
    assert sorted(line.findall(remarks)) == sorted(Remark)


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
