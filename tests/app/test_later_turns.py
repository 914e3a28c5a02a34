"""Turns after the first of a conversation: their own rows, their own threshold, or no guarantee."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.laws import beta_binomial_interval
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.racer import Racer
from racer_core.types import LabelledRows, Score
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    POOL,
    TWO,
    Gateway,
    Restart,
    Serve,
    as_json,
    labelled,
    noisy,
)

FIRST, LATER = noisy(20_000, 240, flipped=0.05), noisy(30_000, 240, flipped=0.45)
BEFORE: list[dict[str, Any]] = [
    {"role": "user", "content": "Good morning, what is your name?"},
    {"role": "assistant", "content": "I have none, ask me something."},
]
QUESTION: dict[str, Any] = {"role": "user", "content": TWO}
ALPHA = 0.2


def later(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows, each as the second question of a conversation."""
    return [
        {name: value for name, value in row.items() if name != "query"}
        | {"messages": [*BEFORE, {"role": "user", "content": row["query"]}]}
        for row in rows
    ]


def certified(gateway: Gateway, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The certificate of a decision."""
    answer = gateway.post("/route", json={"messages": messages, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["certificate"]


def second(query: str = TWO) -> list[dict[str, Any]]:
    """A second question."""
    return [*BEFORE, {"role": "user", "content": query}]


BOTH = [*as_json(FIRST), *later(as_json(LATER))]


@pytest.fixture
def mixed(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway with rows of both kinds; those of later turns are much harder."""
    case = shared(artifact=noisy_artifact, calibrated=False, group="later turns")
    return case.gateway.once(BOTH, alpha=ALPHA)


@pytest.fixture(scope="module")
def oracles(noisy_artifact: Path) -> dict[str, Calibration]:
    """The core's own calibrations of either kind alone."""
    racer = Racer.load(noisy_artifact)
    options = CalibrationOptions(
        smoothing_salt=SMOOTHING_SALT,
        alpha=ALPHA,
        score=Score.GAP,
        null_threshold=racer.artifact.null_threshold,
    )
    kinds = {"first": FIRST, "later": LATER}
    return {name: racer.calibrate(rows, options=options) for name, rows in kinds.items()}


def test_each_kind_has_the_threshold_of_its_own_rows(
    mixed: Gateway, oracles: dict[str, Calibration]
) -> None:
    """As if the other rows were not there, for every alpha and for smaller pools."""
    assert len({each.lambda_hat(ALPHA, Score.GAP) for each in oracles.values()}) == 2
    messages_of = {"first": [QUESTION], "later": second()}
    for kind, messages in messages_of.items():
        for pool in (POOL, POOL[:2]):
            rows = oracles[kind].restrict(pool)
            for alpha in (0.1, ALPHA, 0.4):
                result = certified(mixed, messages, alpha=alpha, candidates=list(pool))
                assert result["lambda_hat"] == rows.lambda_hat(alpha, Score.GAP)
                assert result["n"] == rows.n
                assert result["holds"] is True
                assert ("later_turn" in result["reasons"]) == (kind == "later")


def test_an_answer_to_a_later_turn_is_certified(mixed: Gateway) -> None:
    """Through the chat endpoint, with what clients send back of an answer: nulls and nothing."""
    answered = {**BEFORE[1], "refusal": None, "tool_calls": None, "annotations": []}
    turns = [BEFORE[0], answered, QUESTION]
    answer = mixed.post("/v1/chat/completions", json={"model": "auto", "messages": turns})
    assert answer.headers["x-racer-guarantee"] == "holds"
    assert answer.json()["racer"]["certificate"]["reasons"] == ["later_turn"]


ODD_TURNS: list[list[dict[str, Any]]] = [
    [*BEFORE, {"role": "tool", "content": "5", "tool_call_id": "1"}],
    [BEFORE[0], {**BEFORE[1], "tool_calls": [{"id": "1"}]}],
    [BEFORE[0], {**BEFORE[1], "tool_calls": []}],
    [BEFORE[0], {"role": "assistant", "content": None}],
    [BEFORE[0], {**BEFORE[1], "reasoning_content": "hm"}],
    [QUESTION, BEFORE[1]],  # to be continued
]


@pytest.mark.parametrize("turns", ODD_TURNS)
def test_turns_that_rows_cannot_have_are_void(
    mixed: Gateway, oracles: dict[str, Calibration], turns: list[dict[str, Any]]
) -> None:
    """Calls, their results and hidden thoughts: later turns' rows decide, nothing holds."""
    certificate = certified(mixed, turns if turns[0] is QUESTION else [*turns, QUESTION])
    role = turns[-1]["role"]
    reasons = [f"conditions_differ:messages.{role}", "later_turn"]
    assert (certificate["holds"], certificate["reasons"]) == (False, reasons)
    assert certificate["n"] == oracles["later"].n


def test_later_turns_come_as_responses_too(mixed: Gateway) -> None:
    """With what that endpoint's clients send back: items of parts, with annotations."""
    part = {"type": "output_text", "text": BEFORE[1]["content"], "annotations": []}
    items = [BEFORE[0], {"type": "message", "role": "assistant", "content": [part]}, QUESTION]
    answer = mixed.post("/v1/responses", json={"model": "auto", "input": items})
    assert answer.status_code == 200, answer.text
    certificate = answer.json()["racer"]["certificate"]
    assert certificate["reasons"] == ["conditions_differ:endpoint", "later_turn"]


def test_the_evidence_is_about_first_turns_and_names_the_others(mixed: Gateway) -> None:
    """A mean over the sizes and thresholds of two populations would describe neither."""
    found = mixed.upload(BOTH, dry_run=True, alpha=ALPHA)["evidence"]
    alone = mixed.upload(as_json(FIRST), dry_run=True, alpha=ALPHA)["evidence"]
    turns = found["later_turns"]
    assert {name: found[name] for name in ("n", "lambda_hat", "mean_size", "curve")} == {
        name: alone[name] for name in ("n", "lambda_hat", "mean_size", "curve")
    }
    assert (turns["rows"], turns["feasible"]) == (len(LATER), True)
    assert turns["lambda_hat"] != found["lambda_hat"]
    assert "later_turns" not in alone


def test_too_few_rows_of_later_turns_are_not_used(serve: Serve, noisy_artifact: Path) -> None:
    """Three rows bound nothing: such turns stay uncalibrated, and the evidence says why."""
    gateway = serve(artifact=str(noisy_artifact))
    some = LabelledRows(pool=LATER.pool, rows=LATER.rows[:3])
    found = gateway.upload([*as_json(FIRST), *later(as_json(some))], alpha=ALPHA)["evidence"][
        "later_turns"
    ]
    assert (found["rows"], found["feasible"], found["lambda_hat"]) == (3, False, None)
    assert found["min_n"] > found["n"]
    result = certified(gateway, second())
    assert (result["holds"], result["reasons"]) == (False, ["multi_turn_uncalibrated"])


def test_rows_of_later_turns_alone_are_refused(serve: Serve) -> None:
    """There would be no guarantee for the first turn of any conversation."""
    gateway = serve()
    request = {"rows": later(as_json(LATER))}
    response = gateway.post("/calibrate", ADMIN_KEY, json=request)
    assert response.status_code == 422
    assert "rows of first turns" in response.json()["error"]["message"]


def test_later_turns_without_a_right_candidate_change_nothing(serve: Serve) -> None:
    """Such rows do not count for answerable queries; first turns are calibrated all the same."""
    gateway = serve()
    wrong = [row | {"correct": dict.fromkeys(POOL, False)} for row in later(as_json(LATER))]
    made = gateway.upload([*as_json(FIRST), *wrong], alpha=ALPHA)
    turns = made["evidence"]["later_turns"]
    assert (turns["rows"], turns["n"], turns["feasible"]) == (len(LATER), 0, False)
    assert certified(gateway, second())["reasons"] == ["multi_turn_uncalibrated"]
    paper = gateway.upload([*as_json(FIRST), *wrong], risk_target="paper", alpha=ALPHA)
    assert paper["evidence"]["later_turns"]["n"] == len(LATER)


def test_a_shift_of_later_turns_is_a_shift(mixed: Gateway) -> None:
    """Of their threshold and sizes; and losing them, as a wrong file would, is all of it."""
    rows = BOTH
    same = mixed.upload(rows, dry_run=True, alpha=ALPHA)["evidence"]["shift"]
    assert (same["largest"], same["later_turns"]["size_change"]) == (0.0, 0.0)
    easier = [*as_json(FIRST), *later(as_json(noisy(80_000, 240, flipped=0.05)))]
    found = mixed.upload(easier, dry_run=True, alpha=ALPHA)["evidence"]["shift"]
    assert found["size_change"] == 0.0
    assert found["largest"] == max(abs(each) for each in found["later_turns"].values()) > 0.0
    assert same["alert"] is None
    lost = mixed.upload(as_json(FIRST), dry_run=True, alpha=ALPHA)["evidence"]["shift"]
    assert (lost["later_turns"], lost["largest"]) == ("lost", 1.0)
    assert "later turns lose theirs" in lost["alert"]


def test_training_rows_among_later_turns_are_refused(serve: Serve) -> None:
    """The router has seen what it reads of them."""
    gateway = serve()
    known = later(as_json(labelled(0, 20)))
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": [*as_json(FIRST), *known]})
    assert response.status_code == 422
    assert "20 of" in response.json()["error"]["message"]
    made = gateway.upload([*as_json(FIRST), *known], allow_overlap=True, alpha=ALPHA)
    assert made["evidence"]["overlap"] == 20
    assert "training_overlap" in certified(gateway, second())["reasons"]


def test_another_text_than_the_rows_were_read_with_is_uncalibrated(
    restart: Restart, noisy_artifact: Path
) -> None:
    """After a change of ``routing.text`` the router reads something else of the same turns."""
    rows = BOTH
    with restart(artifact=noisy_artifact) as gateway:
        gateway.upload(rows, alpha=ALPHA)
        assert certified(gateway, second())["reasons"] == ["later_turn"]
    with restart(artifact=noisy_artifact, routing={"text": "conversation"}) as gateway:
        assert certified(gateway, second())["reasons"] == ["multi_turn_uncalibrated"]
        gateway.upload(rows, alpha=ALPHA)
        assert certified(gateway, second())["reasons"] == ["later_turn"]


def test_with_the_whole_conversation_rows_are_read_as_requests_are(
    serve: Serve, noisy_artifact: Path
) -> None:
    """The same turns have the same scores, so that an uploaded row is known again when served."""
    gateway = serve(artifact=str(noisy_artifact), routing={"text": "conversation", "alpha": ALPHA})
    gateway.upload(BOTH, alpha=ALPHA)
    racer = Racer.load(noisy_artifact)
    texts = ["\n\n".join([*(each["content"] for each in BEFORE), row.query]) for row in LATER.rows]
    read = LabelledRows(
        pool=LATER.pool,
        rows=tuple(replace(row, query=text) for row, text in zip(LATER.rows, texts, strict=True)),
    )
    options = CalibrationOptions(
        smoothing_salt=SMOOTHING_SALT,
        alpha=ALPHA,
        score=Score.GAP,
        null_threshold=racer.artifact.null_threshold,
    )
    own = racer.calibrate(read, options=options)
    result = certified(gateway, second(LATER.rows[0].query))
    assert result["lambda_hat"] == own.lambda_hat(ALPHA, Score.GAP)
    blank = certified(gateway, [*BEFORE, {"role": "user", "content": " "}])
    kind = ["conditions_differ:messages.user", "unlabelled_request_kind"]
    assert blank["reasons"] == [*kind, "later_turn"]
    bad = later(as_json(LATER))[0] | {"messages": [{"role": "user", "content": None}]}
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": [*as_json(FIRST), bad]})
    assert response.status_code == 422
    assert f"row {len(FIRST) + 1}" in response.json()["error"]["message"]


def test_groups_are_of_either_kind(serve: Serve, noisy_artifact: Path) -> None:
    """A language or a tenant has a threshold among first turns and another among later ones."""
    gateway = serve(artifact=str(noisy_artifact))
    easy, hard = as_json(noisy(40_000, 60, flipped=0.05)), as_json(noisy(50_000, 60, flipped=0.45))
    rows = [row | {"group": "a"} for row in [*easy, *later(hard)]]
    gateway.upload([*rows, *as_json(FIRST), *later(as_json(LATER))], alpha=ALPHA)
    first = certified(gateway, [QUESTION], group="a")
    result = certified(gateway, second(), group="a")
    assert [each["guarantee"]["group"] for each in (first, result)] == ["a", "a"]
    assert first["n"] <= 60 >= result["n"]
    assert first["lambda_hat"] != result["lambda_hat"]


def test_later_turns_miss_as_often_as_the_exact_law_says(
    mixed: Gateway, oracles: dict[str, Calibration]
) -> None:
    """Fresh later turns miss no more than the law allows in all but 1e-6 of the cases.

    By the first turns' threshold they miss more than it allows in 99 %. (Scores that are alike only
    lower the risk.)
    """
    rows = [row for row in noisy(70_000, 300, flipped=0.45).rows if row.correct]
    missed = sum(
        row.correct.isdisjoint(
            mixed.post("/route", json={"messages": second(row.query)}).json()["selected"]
        )
        for row in rows
    )
    own = oracles["later"]
    misses = own.misses(ALPHA)
    law = partial(beta_binomial_interval, len(rows), misses + 1, own.n - misses)
    assert missed <= law(1 - 2e-6)[1]
    by_others = sum(row.correct.isdisjoint(mixed.route(row.query)["selected"]) for row in rows)
    assert by_others > law(0.98)[1]
