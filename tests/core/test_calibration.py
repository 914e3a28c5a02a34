"""One object for every threshold: look-ups, restrictions and decisions are recomputations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.errors import CalibrationError, InputError
from racer_core.types import RiskTarget, Score
from tests.core.by_hand import critical_by_hand
from tests.kit.lazy import LazyModule
from tests.kit.strategies import (
    alphas,
    calibration_of,
    calibration_options,
    fingerprints_of,
    pool_of,
    probabilities,
    risk_targets,
    scores_kinds,
    tables,
)

stats = LazyModule("scipy.stats")


def query_sets(calibration, table, **request):
    """The decisions for the rows of a table as queries, each under a fingerprint of its own."""
    near = table.near(calibration.patterns) if calibration.neighbours is not None else None
    return [
        calibration.decide(
            name, table.scores[i].tolist(), neighbours=None if near is None else near[i], **request
        )
        for i, name in enumerate(fingerprints_of(len(table), "query"))
    ]


@given(table=tables(), kind=scores_kinds, target=risk_targets)
def test_thresholds_are_those_of_the_critical_scores(table, kind, target):
    """At alpha = j/(n + 1) the j-th largest; ``answerable`` knows no null column, no other rows."""
    critical = sorted(critical_by_hand(table, kind, target), reverse=True)
    calibration = table.calibration(risk_target=target)
    n = calibration.n
    assert n == len(critical)
    tolerance = 0.0 if kind in (Score.GAP, Score.PROB) else 1e-8  # masses lie on a grid of 1e-9
    expected = pytest.approx(critical, rel=0, abs=tolerance)
    assert [calibration.lambda_hat(j / (n + 1), kind) for j in range(1, n + 1)] == expected
    half = calibrate_threshold(np.array(critical), 0.5)
    assert calibration.lambda_hat(0.5, kind) == pytest.approx(half, rel=0, abs=tolerance)


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


@given(
    table=tables(columns=3),
    options=calibration_options(),
    pair=st.tuples(alphas, alphas),
    f=tables(columns=3),
)
def test_larger_alpha_never_enlarges_the_set(table, options, pair, f):
    """Nested in alpha, for every score, target, r, tau and smoothing."""
    low, high = sorted(pair)
    calibration = table.calibration(**options)
    careful = query_sets(calibration, f, alpha=low)
    cheap = query_sets(calibration, f, alpha=high)
    for small, large in zip(cheap, careful, strict=True):
        assert set(small.selected) <= set(large.selected)
        if options["risk_target"] is RiskTarget.PAPER:  # elsewhere the null model is in no set
            assert large.null_selected or not small.null_selected


@given(
    table=tables(columns=4), options=calibration_options(), alpha=alphas, seed=st.integers(0, 99)
)
def test_order_of_the_pool_does_not_matter(table, options, alpha, seed):
    """The null model is a column of its own; no tie is broken by position."""
    order = np.random.default_rng(seed).permutation(4)
    calibration = table.calibration(alpha=alpha, **options)
    turned = table.columns(order)
    other = replace(
        calibration,
        pool=tuple(np.array(calibration.pool)[order].tolist()),
        scores=turned.scores,
        labels=turned.labels,
        patterns=turned.patterns,
        prices=turned.prices,
    )
    for mine, theirs in zip(query_sets(calibration, table), query_sets(other, turned), strict=True):
        assert set(mine.selected) == set(theirs.selected)
        assert mine.lambda_hat == theirs.lambda_hat
        assert mine.abstain_reason == theirs.abstain_reason


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
    table=tables(columns=4),
    options=calibration_options(),
    alpha=alphas,
    keep=st.permutations(range(4)),
)
def test_restricting_equals_calibrating_from_scratch(table, options, alpha, keep):
    """An outage: G', the null score and lambda_hat are those of the smaller pool."""
    smaller = table.columns(keep[:2])
    calibration = table.calibration(alpha=alpha, **options)
    names = [f"m{column}" for column in keep[:2]]
    scratch = Calibration(
        pool=tuple(names),
        fingerprints=calibration.fingerprints,
        scores=smaller.scores,
        labels=smaller.labels,
        options=calibration.options,
        neighbours=smaller.neighbours,
        patterns=smaller.patterns,
        prices=smaller.prices,
    )
    restricted = calibration.restrict(names)
    assert query_sets(restricted, smaller) == query_sets(scratch, smaller)
    assert restricted.n == scratch.n


def test_restricting_to_an_unknown_candidate_is_an_input_error():
    """A key's allow-list may name anything."""
    with pytest.raises(InputError, match="stranger"):
        calibration_of(np.full((3, 2), 0.5), np.ones((3, 2), bool)).restrict(["m0", "stranger"])


@given(
    table=tables(), options=calibration_options(), f=st.lists(probabilities, min_size=5, max_size=5)
)
def test_alpha_too_small_for_the_rows_calls_the_whole_pool(table, options, f):
    """No finite threshold is valid, so the whole pool is called, even where p_null >= tau.

    Abstaining at lambda = inf would be a miss that no calibration row has paid for.
    """
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


def test_shapes_must_agree():
    """Labels of another pool, or scores of other rows, are no calibration."""
    with pytest.raises(CalibrationError, match="must both be"):
        calibration_of(np.full((3, 2), 0.5), np.ones((3, 3), bool))
    with pytest.raises(CalibrationError, match="must both be"):
        Calibration(
            pool=pool_of(2),
            fingerprints=fingerprints_of(2),
            scores=np.full((3, 2), 0.5),
            labels=np.ones((3, 2), bool),
            options=CalibrationOptions(),
        )


def test_scores_outside_0_and_1_are_refused():
    """NaN in a calibration row, and in a query's scores."""
    with pytest.raises(InputError, match="row 1"):
        calibration_of(np.array([[math.nan, 0.5]]), np.ones((1, 2), bool))
    with pytest.raises(InputError, match="row 1"):
        calibration_of(np.full((1, 2), 0.5), np.ones((1, 2), bool)).decide(b"q", [math.nan, 0.5])


def test_risk_q95_is_the_point_of_the_beta_law():
    """At n = 1000, alpha = 0.1: 95 % of calibration sets stay below 0.116."""
    rng = np.random.default_rng(1)
    scores, labels = rng.random((1_000, 2)), np.ones((1_000, 2), bool)
    calibration = calibration_of(scores, labels, score=Score.PROB)  # all tie at 0 by gap
    assert calibration.risk_q95(0.1) == pytest.approx(stats.beta.ppf(0.95, 100, 901), abs=1e-9)
    assert round(calibration.risk_q95(0.1), 3) == 0.116
    assert calibration.risk_q95(1e-4) == 0.0  # the whole pool is called


def test_delta_holds_the_risk_of_most_calibration_sets_below_alpha():
    """With delta = 0.05 the 95 % point is at most alpha; one more miss would put it above."""
    rng = np.random.default_rng(1)
    scores, labels = rng.random((300, 2)), np.ones((300, 2), bool)
    calibration = calibration_of(scores, labels, delta=0.05, score=Score.PROB)
    assert calibration.misses(0.1) == 21
    assert calibration.risk_q95(0.1) <= 0.1 < stats.beta.ppf(0.95, 23, 278)
    assert calibration_of(scores, labels).misses(0.1, delta=0.05) == 21
