"""One object for every threshold: look-ups, restrictions and decisions are recomputations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.errors import CalibrationError, InputError
from racer_core.types import BINARY_TARGETS, RiskTarget, Score
from tests.kit.strategies import (
    alphas,
    calibration_of,
    calibration_options,
    fingerprints_of,
    probabilities,
    tables,
)


def query_sets(calibration, table, **request):
    """The decisions for the rows of a table as queries, each under a fingerprint of its own."""
    near = table.near(calibration.patterns) if calibration.neighbours is not None else None
    return [
        calibration.decide(
            name, table.scores[i].tolist(), neighbours=None if near is None else near[i], **request
        )
        for i, name in enumerate(fingerprints_of(len(table), "query"))
    ]


def test_smoothing_reaches_the_null_model_too():
    """Unanswerable queries whose best column is m0: gaps of 0, ties like others."""
    scores, none_right = np.full((9, 2), 0.25), np.zeros((9, 2), dtype=bool)
    paper = {"risk_target": RiskTarget.PAPER, "score": Score.GAP}
    smoothed = calibration_of(scores, none_right, smoothing_salt=b"salt", **paper)
    lambdas = {smoothed.lambda_hat(j / 10, Score.GAP) for j in range(1, 10)}
    assert len(lambdas) == 9
    assert all(0.0 < each < 1e-6 for each in lambdas)


@given(table=tables(), options=calibration_options(), pair=st.tuples(alphas, alphas))
def test_any_alpha_is_a_lookup(table, options, pair):
    """Calibrating for one alpha and deciding at another equals calibrating for the other."""
    first, second = pair
    one = table.calibration(alpha=first, **options)
    other = table.calibration(alpha=second, **options)
    assert query_sets(one, table, alpha=second) == query_sets(other, table)


@given(table=tables(), options=calibration_options(), alpha=alphas)
def test_sets_are_the_same_alone_and_in_a_batch(table, options, alpha):
    """Neither a neighbour in the batch nor its place there can change a set."""
    calibration = table.calibration(**options)
    prints = fingerprints_of(len(table.scores), "query")
    lambda_hat = calibration.lambda_hat(alpha, options["score"])
    batch = calibration.sets(table.scores, prints, lambda_hat, options["score"], table.neighbours)
    alone = query_sets(calibration, table, alpha=alpha)
    for row, decision in enumerate(alone):
        names = np.array(calibration.pool)[batch.selected[row]]
        assert set(decision.selected) == set(names)
        assert decision.null_selected == batch.null_selected[row]


@given(
    table=tables(), options=calibration_options(), f=st.lists(probabilities, min_size=5, max_size=5)
)
def test_alpha_too_small_for_the_rows_calls_the_whole_pool(table, options, f):
    """No finite threshold is valid, so the whole pool is called, even where p_null >= tau."""
    calibration = table.calibration(**options)
    row = f[: table.scores.shape[1]]
    near = None if table.neighbours is None else table.neighbours[0]
    decision = calibration.decide(b"query", row, neighbours=near, alpha=1e-6)
    assert decision.trivial
    assert set(decision.selected) == set(calibration.pool)
    assert decision.abstain_reason is None


@pytest.mark.parametrize("delta", [None, 0.05])
def test_sub_pool_that_no_row_covers_is_called_in_full(delta):
    """An outage may leave candidates that answered no row right: n = 0, so nothing is known."""
    labels = np.array([[True, False, False]] * 9)
    calibration = calibration_of(np.full((9, 3), 0.5), labels, alpha=0.5, delta=delta)
    left = calibration.restrict(["m2", "m1"])
    assert left.n == 0
    decision = left.decide(b"q", [0.25, 0.75])
    assert decision.trivial
    assert decision.selected == ("m1", "m2")
    assert left.risk_q95(0.5) == 0.0


def decide_at(f, lambda_hat, **options):
    """The decision for scores f under a calibration whose threshold is ``lambda_hat``.

    One row: m0 is right, so the critical ``prob`` score is 1 - f(m0); m1 looks sure, so p_null = 0.
    """
    scores = np.ones((1, len(f)))
    scores[0, 0] = 1.0 - lambda_hat
    labels = np.zeros((1, len(f)), dtype=bool)
    labels[0, 0] = True
    calibration = calibration_of(scores, labels, alpha=0.5, score=Score.PROB, **options)
    return calibration.decide(b"query", f)


@pytest.mark.parametrize(
    ("f", "lambda_hat", "options", "reason"),
    [
        ([0.25, 0.125], 0.5, {"risk_target": RiskTarget.PAPER}, "null_only"),
        ([0.5, 0.375], 0.25, {"risk_target": RiskTarget.PAPER}, "empty"),
        ([0.5, 0.375], 0.25, {}, "empty"),
        ([0.25, 0.125], 0.625, {"null_threshold": 0.75}, "p_null"),
    ],
)
def test_reasons_for_abstaining_are_kept_apart(f, lambda_hat, options, reason):
    """Three reasons: m0 alone, nothing at all, or p_null = 1 - max f >= tau (closed)."""
    decision = decide_at(f, lambda_hat, **options)
    assert decision.abstained
    assert decision.selected == decision.scores == ()
    assert decision.abstain_reason == reason
    assert decision.null_selected == (reason != "empty")


def test_tau_is_for_the_answerable_target_alone():
    """The paper's abstention is the null column; tau just above p_null keeps the query."""
    paper = decide_at([0.25, 0.125], 0.875, risk_target=RiskTarget.PAPER, null_threshold=0.75)
    assert paper.selected == ("m0", "m1")
    assert decide_at([0.25, 0.125], 0.875, null_threshold=0.76).selected == ("m0", "m1")


def test_null_model_may_be_in_the_set_beside_candidates():
    """``null_selected`` warns that the answer may have no right candidate behind it."""
    decision = decide_at([0.5, 0.25], 0.5, risk_target=RiskTarget.PAPER)
    assert decision.selected == ("m0",)
    assert decision.null_selected
    assert decision.abstain_reason is None


def test_best_candidates_come_first_and_ties_in_the_order_of_the_pool():
    """Scores stay with their names; ``prob`` selects every candidate up to 0.75."""
    decision = decide_at([0.25, 0.5, 0.125, 0.5], 0.75)
    assert decision.selected == ("m1", "m3", "m0")
    assert decision.scores == (0.5, 0.5, 0.25)


def test_a_request_may_name_its_score_and_its_alpha():
    """The calibration's own are defaults: 0.5 calls both at ``gap``, 0.4 is infeasible at n=1."""
    calibration = calibration_of(np.array([[0.5, 0.75]]), np.array([[True, False]]), alpha=0.5)
    assert calibration.decide(b"q", [0.5, 0.75]).score is Score.GAP
    assert calibration.decide(b"q", [0.5, 0.75]).lambda_hat == 0.25
    assert calibration.decide(b"q", [0.5, 0.75], score=Score.PROB).lambda_hat == 0.5
    assert calibration.decide(b"q", [0.5, 0.75], alpha=0.4).trivial
    assert calibration.decide(b"q", [0.5, 0.75], truncated=True).truncated


def test_calibrations_and_requests_that_do_not_fit_are_refused():
    """Labels of another pool, scores of other rows, NaN, an unknown candidate, alpha of a request.

    One score too few would make the null model a candidate; one too many, a candidate null.
    """
    half, right = np.full((3, 2), 0.5), np.ones((3, 2), bool)
    with pytest.raises(CalibrationError, match="must both be"):
        calibration_of(half, np.ones((3, 3), bool))
    with pytest.raises(CalibrationError, match="must both be"):
        replace(calibration_of(half, right), fingerprints=fingerprints_of(2))
    with pytest.raises(InputError, match="row 1"):
        calibration_of(np.array([[math.nan, 0.5]]), np.ones((1, 2), bool))
    with pytest.raises(InputError, match="stranger"):
        calibration_of(half, right).restrict(["m0", "stranger"])
    for target in BINARY_TARGETS:
        calibration = calibration_of(half, right, risk_target=target)
        for f in ([0.5], [0.5, 0.5, 0.5], [math.nan, 0.5]):
            with pytest.raises(InputError):
                calibration.decide(b"q", f)
        for alpha in (0, 1, math.nan, True, "0.1"):
            with pytest.raises(InputError, match="alpha"):
                calibration.decide(b"q", [0.5, 0.5], alpha=alpha)
