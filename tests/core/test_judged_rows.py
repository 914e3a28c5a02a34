"""Calibrations of rows with a judge's verdicts: corrected thresholds, refusals, certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.judge_correction import Losses, Parts, alpha_grid, corrected_thresholds
from racer_core.errors import CalibrationError, InputError
from racer_core.records.row import parse_row
from racer_core.records.writer import row_line
from racer_core.trained_router import refuse_uncounted
from racer_core.types import BoolArray, RiskTarget, Score, any_column
from tests.kit.strategies import calibration_of

POOL = ("a", "b", "c")
DELTA = 0.1


@lru_cache
def judged_rows(
    count: int = 500, people: int = 120, wrong: float = 0.05, seed: int = 0, **options: Any
) -> Calibration:
    """Rows of three candidates, the first ``people`` of them labelled, all of them judged."""
    rng = np.random.default_rng(seed)
    scores = rng.random((count, 3))
    truth = rng.random((count, 3)) < scores
    verdicts = truth ^ (rng.random((count, 3)) < wrong)
    unlabelled = np.arange(count) >= people
    options = {"alpha": 0.1, "score": Score.GAP, "delta": DELTA} | options
    return calibration_of(
        scores,
        truth & ~unlabelled[:, None],
        unlabelled=unlabelled,
        judged=verdicts.astype(np.int8),
        **options,
    )


def verdicts_of(rows: Calibration) -> NDArray[np.int8]:
    """A copy of the verdicts."""
    assert rows.judged is not None
    return rows.judged.copy()


def test_thresholds_are_those_of_the_corrected_losses():
    """For the target `answerable`; critical scores and losses by hand."""
    rows = judged_rows()
    gap = rows.scores.max(axis=1, keepdims=True) - rows.scores

    def losses(labels: BoolArray) -> Losses:
        critical = np.where(labels, gap, np.inf).min(axis=1)
        return Losses(critical=critical, counted=any_column(labels))

    everything = np.ones(len(rows.scores), bool)
    parts = Parts.of(rows.fingerprints, np.arange(len(everything)) < 120, everything)
    expected = corrected_thresholds(
        losses(rows.labels),
        losses(verdicts_of(rows) > 0),
        parts,
        alpha_grid(0.1),
        DELTA,
        nonconformity=gap,
    )
    assert rows.lambda_hat() == pytest.approx(expected.threshold(0.1), abs=1e-9)
    assert rows.lambda_hat() < math.inf
    assert rows.lambda_hat(0.0735) == rows.lambda_hat(0.073)
    assert rows.lambda_hat(0.0005) == math.inf


def test_an_alpha_of_its_own_is_not_rounded():
    """It is a point of the grid."""
    assert 0.0735 in alpha_grid(0.0735)
    rows = judged_rows(alpha=0.1235)
    assert rows.corrected(Score.GAP).place(0.1235) > rows.corrected(Score.GAP).place(0.12)


@pytest.mark.parametrize("target", [RiskTarget.PAPER, RiskTarget.ANSWERABLE])
def test_every_target_of_losses_0_and_1_has_thresholds(target: RiskTarget):
    """With `paper` all rows count."""
    rows = judged_rows(risk_target=target, alpha=0.3)
    assert rows.lambda_hat() < math.inf
    assert rows.n == (120 if target is RiskTarget.PAPER else int(rows.labels.any(axis=1).sum()))


def test_smaller_pools_and_groups_have_corrected_thresholds():
    """Columns and rows of the verdicts are taken with the others."""
    rows = judged_rows()
    assert rows.restrict(("m2", "m0")).lambda_hat() < math.inf
    assert rows.take(list(range(20, 400))).lambda_hat() < math.inf
    assert rows.take(list(range(200, 400))).lambda_hat() == math.inf  # people labelled none


def test_labels_beside_few_judged_rows_are_enough():
    """Without rows that only the judge saw, labels decide alone."""
    rows = judged_rows(count=120, people=120)
    assert rows.unlabelled is None
    assert rows.corrected(Score.GAP).weights.max() == 0.0
    assert rows.lambda_hat() < math.inf


def test_rows_without_verdicts_and_labels_count_as_missed():
    """A tenth of the rows has neither: no alpha of 0.1 can be kept, and the reason is theirs."""
    rows = judged_rows()
    judged = verdicts_of(rows)
    judged[440:] = -1
    found = replace(rows, judged=judged)
    assert found.unlabelled_rows == 60
    assert found.lambda_hat() == math.inf
    assert str(found.trivial_reason(0.1)) == "unlabelled_exceeds_alpha_whole_pool"
    assert rows.lambda_hat(0.2) < found.lambda_hat(0.2) < math.inf


def test_the_certificate_names_the_judge_and_delta():
    """`labels` beside `delta`. An alpha picked after rows were seen has no band: void."""
    rows = judged_rows()
    guarantee = rows.certify().as_json()["guarantee"]
    assert (guarantee["labels"], guarantee["delta"]) == ("judge_corrected", DELTA)
    assert rows.certify().holds
    assert rows.risk_band(0.1) is None
    picked = replace(rows, options=replace(rows.options, is_alpha_fixed=False))
    assert "alpha_picked" in picked.certify().void_reasons
    plain = replace(rows, judged=None)
    assert plain.certify().as_json()["guarantee"]["labels"] is None


def test_the_evidence_has_the_judges_errors():
    """By candidate."""
    errors = judged_rows(wrong=0.2, people=500).judge_errors()
    assert errors is not None
    assert errors.rows == 500
    np.testing.assert_allclose(errors.by_candidate, 0.2, atol=0.07)


def test_a_row_with_verdicts_alone_is_unlabelled_and_written_back():
    """With or without saying that it is unlabelled."""
    verdicts = {"a": True, "b": False, "c": True}
    for fields in ({}, {"unlabelled": True}):
        row = parse_row({"query": "q", "judged": verdicts, **fields}, POOL, takes_unlabelled=True)
        assert (row.unlabelled, row.judged) == (True, frozenset("ac"))
        assert '"judged": {"a": true, "b": false, "c": true}' in row_line(row, POOL)
    both = parse_row(
        {"query": "q", "judged": verdicts, "correct": dict.fromkeys(POOL, False)}, POOL
    )
    assert (both.unlabelled, both.judged) == (False, frozenset("ac"))
    with pytest.raises(InputError, match="no label"):
        parse_row({"query": "q", "judged": verdicts}, POOL)


@pytest.mark.parametrize("judged", [{"a": True}, ["a"], {"a": 1, "b": 0, "c": 1}, "yes"])
def test_verdicts_of_another_shape_are_refused(judged: Any):
    """Each candidate of the pool has one."""
    with pytest.raises(InputError, match="each candidate of the pool to true or false"):
        parse_row({"query": "q", "judged": judged}, POOL, takes_unlabelled=True)


def test_rows_that_a_judge_cannot_calibrate_are_refused():
    """Each with one clear error; weights of one rate are none, and a judge at chance is taken."""
    rows = judged_rows(delta=0.2)
    weights = np.ones(500)
    assert replace(rows, weights=weights * 3.0).lambda_hat() == rows.lambda_hat()
    weights[0] = 2.0
    judged = verdicts_of(rows)
    judged[7] = -1
    refuse_uncounted(judged_rows(wrong=0.3))
    assert rows.offered == (Score.GAP,)
    weighted = replace(rows.options, max_weight=2.0)
    refused: dict[str, Callable[[], object]] = {
        "need delta": lambda: judged_rows(delta=None),
        "not clusters": lambda: judged_rows(one_per_cluster=True),
        "cannot have weights": lambda: replace(rows, weights=weights, options=weighted),
        "row 8 has a label and no verdicts": lambda: replace(rows, judged=judged),
        "choose one of": lambda: rows.lambda_hat(score=Score.PROB),
        "below chance": lambda: refuse_uncounted(judged_rows(wrong=0.9)),
        "corrected by people's labels": lambda: refuse_uncounted(judged_rows(people=0)),
    }
    for message, use in refused.items():
        with pytest.raises(CalibrationError, match=message):
            use()
