"""``answer_risk_max``: a limit on wrong final answers, tested on half of the rows and served."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrations.answer_risk import limit_answers
from app.calibrations.columns import RowColumns
from app.settings import Aggregation
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError, InputError
from racer_core.types import Score
from tests.core.laws import assert_at_most
from tests.kit.gateway import (
    ADMIN_KEY,
    POOL,
    Serve,
    as_json,
    noisy,
)
from tests.kit.random_answers import answering, randoms

ONE = "What is 3 plus 4?"


def agreeing(count: int, rate: float, seed: int) -> tuple[RowColumns, Calibration]:
    """Rows whose candidates give one answer: wrong at this rate, whatever is called."""
    plain = randoms(count, seed=seed)
    right = np.random.default_rng(seed).random(count) >= rate
    calibration = replace(
        plain,
        labels=np.repeat(right[:, None], len(POOL), axis=1),
        options=CalibrationOptions(alpha=0.3, score=Score.PROB),
    )
    return answering(calibration, spread=1, silent=0.0)[0], calibration


def test_a_limit_at_the_true_rate_is_seldom_certified() -> None:
    """Any certificate is wrong here: at most delta of 12 calibrations; the false alarm is 1e-6.

    6 of 12 are allowed. The law of ``passing`` at the boundary is in the core's tests.
    """
    certified = 0
    for seed in range(12):
        with suppress(CalibrationError):
            limit_answers(*agreeing(100, 0.3, seed), Aggregation(), None, 0.3)
            certified += 1
    assert_at_most(certified, 12, 0.05, 1e-6)


def test_rows_that_test_a_limit_choose_neither_tau_nor_the_grid() -> None:
    """The tested half is nearly always right, so that every threshold passes: the same ones."""
    plain = randoms(400)
    noisy_fit = plain.scores + 0.4 * np.random.default_rng(9).random(plain.scores.shape)
    labels = noisy_fit == noisy_fit.max(axis=1, keepdims=True)  # one is right
    labels &= plain.scores.max(axis=1, keepdims=True) > 0.6
    options = CalibrationOptions(alpha=0.3, score=Score.GAP)
    plain = replace(plain, labels=labels, options=options)
    rows = answering(plain, silent=0.0)[0]
    tested = limit_answers(rows, plain, Aggregation(), None, 0.9)[1].fingerprints
    second = np.flatnonzero([each in tested for each in plain.fingerprints])
    assert second.size == 200
    found = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        scores, labels = plain.scores.copy(), plain.labels.copy()
        scores[second] = scores[rng.permutation(second)] * (1.0 - 0.1 * seed)
        labels[second] = rng.random((200, 1)) < 0.99
        each = replace(plain, scores=scores, labels=labels)
        rows = answering(each, silent=0.0)[0]
        _, served, evidence = limit_answers(rows, each, Aggregation(), None, 0.25)
        assert served.answer_limit is not None
        assert evidence["passed"] == evidence["tested"] > 5
        found.append((served.answer_limit.thresholds, evidence["null_threshold"]))
    assert found[0] == found[1]
    assert found[0][1] is not None


def test_the_next_larger_threshold_that_passed_is_served() -> None:
    """It covers more, so the miss promise stays; none larger: lambda_hat, without a limit."""
    calibration = replace(randoms(200), options=CalibrationOptions(alpha=0.2, score=Score.PROB))
    raw = calibration.lambda_hat(0.2)
    limit = AnswerLimit(
        answer_risk_max=0.3, delta=0.05, thresholds=(raw / 2, raw + 0.01, raw + 0.02), vote="v"
    )
    served = replace(calibration, answer_limit=limit)
    assert served.lambda_hat(0.2) == raw + 0.01
    assert 0.0 < (served.risk_q95(0.2) or 0.0) <= (calibration.risk_q95(0.2) or 0.0)
    small = calibration.lambda_hat(0.01)
    assert served.lambda_hat(0.01) == small
    other = Score.GAP
    assert served.lambda_hat(0.2, other) == calibration.lambda_hat(0.2, other)
    for part in (served.restrict(POOL[:2]), served.take([0, 1, 2])):
        assert part.answer_limit is None

    def certified(alpha: float, score: Score | None = None) -> float | None:
        decision = served.decide(b"query", [0.5, 0.4, 0.3], alpha=alpha, score=score)
        return served.certify(decision).as_json()["guarantee"]["answer_risk_max"]

    assert certified(0.2) == 0.3
    assert certified(0.01) is None
    assert certified(0.2, other) is None
    decision = served.decide(b"query", [0.5, 0.4, 0.3], alpha=0.2)
    void = served.certify(decision, reasons=["stale:risk"])
    assert void.as_json()["guarantee"]["answer_risk_max"] is None
    assert not limit.holds_at(raw + 0.01, "another vote")


def test_the_limit_survives_the_store() -> None:
    """Encoded with the record; a record from before has none."""
    limit = AnswerLimit(answer_risk_max=0.3, delta=0.05, thresholds=(0.1, 0.2), vote="v")
    calibration = replace(randoms(30), answer_limit=limit)
    population = Population(calibration=calibration, conditions=("",) * len(POOL))
    later = replace(population, later=True, calibration=replace(calibration, answer_limit=None))
    record = CalibrationRecord(
        id="cal-1", created_at="", artifact="", populations=(population, later), evidence={}
    )
    read = CalibrationRecord.decoded("cal-1", "", "", *record.encoded())
    assert [each.calibration.answer_limit for each in read.populations] == [limit, None]


def test_rows_that_cannot_test_a_limit_are_refused() -> None:
    """Every row needs answers, and groups have thresholds that nothing tested."""
    calibration = randoms(100)
    rows, _ = answering(calibration)
    for broken, of, message in (
        (replace(rows, classes=None), calibration, "in every row"),
        (replace(rows, answered=np.arange(100) > 0), calibration, "in every row"),
        (rows, replace(calibration, groups=("a",) * 100), "without groups"),
    ):
        with pytest.raises(InputError, match=message):
            limit_answers(broken, of, Aggregation(), None, 0.3)


def answered(count: int, first: int = 40_000) -> list[dict[str, Any]]:
    """Rows with answers: those who are right say 7, the others differ."""
    return [
        row | {"answers": {n: "7" if ok else f"{i} {n}" for n, ok in row["correct"].items()}}
        for i, row in enumerate(as_json(noisy(first, count)))
    ]


def test_a_limit_is_served_and_an_infeasible_one_is_a_clear_answer(
    serve: Serve, noisy_artifact: Path
) -> None:
    """The error names the smallest feasible limit, for other rows; nothing is stored."""
    gateway = serve(artifact=noisy_artifact, calibrated=False, routing={"score": "cover"})
    body = {"rows": answered(600), "alpha": 0.3, "answer_risk_max": 0.001}
    refused = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert refused.status_code == 422, refused.text
    message = refused.json()["error"]["message"]
    assert "nothing was stored" in message
    assert gateway.get("/calibrations", ADMIN_KEY).json()["data"] == []
    for picked in ({"answer_risk_max": 0.9}, {"alpha": 0.4}):
        again = gateway.post("/calibrate", ADMIN_KEY, json=body | picked)
        assert again.status_code == 422, again.text
        assert "chosen after these rows were seen" in again.json()["error"]["message"]
    plain = {"rows": body["rows"], "alpha": 0.4, "dry_run": True}
    shown = gateway.post("/calibrate", ADMIN_KEY, json=plain).json()["evidence"]
    assert shown["alpha_basis"] == "band"
    body = {"rows": answered(600, 50_000), "alpha": 0.3, "answer_risk_max": 0.9}
    again = gateway.post("/calibrate", ADMIN_KEY, json=body | {"dry_run": True})
    assert again.status_code == 200, again.text
    stored = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert stored.status_code == 200, stored.text
    evidence = stored.json()["evidence"]
    assert (evidence["rows"], evidence["answer_limit"]["first_half"]) == (300, 300)
    assert evidence["answer_risk"]["upper"] == 0.9
    terms = gateway.route(ONE)["certificate"]["guarantee"]
    assert (terms["answer_risk_max"], terms["answer_risk_delta"]) == (0.9, 0.05)
    for options in ({"alpha": 0.001}, {"candidates": list(POOL[:2])}, {"score": "gap"}):
        other = gateway.route(ONE, **options)["certificate"]["guarantee"]
        assert other["answer_risk_max"] is None, options
