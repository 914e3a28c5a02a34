"""The method step by step: augmented scores, nonconformity, sets and their loss. Eq. (2)-(4)."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from racer_core.calibration.augmentation import augment_scores, augment_truth, checked_scores
from racer_core.calibration.nonconformity import (
    inverse_probability,
    score_gap,
    smoothing_noise,
)
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.threshold import critical_scores
from racer_core.errors import InputError
from racer_core.types import Score
from tests.kit.strategies import fingerprints_of, matrices, scores_kinds, tables, thresholds


def losses(sets, truth, r=1):
    """1{|C and G'| < min(r, |G'|)} for each row."""
    return (sets & truth).sum(axis=1) < np.minimum(r, truth.sum(axis=1))


@given(fit=matrices(), pair=st.tuples(thresholds, thresholds))
def test_prediction_sets_are_nested(fit, pair):
    """Lemma 4.1: a larger threshold never drops a candidate."""
    low, high = sorted(pair)
    assert not np.any(prediction_sets(fit, low) & ~prediction_sets(fit, high))


def test_sets_are_closed_and_infinity_selects_the_whole_pool():
    """A score equal to lambda is inside; lambda = inf takes the whole pool, even s = +inf."""
    fit = np.array([[0.1, 0.2, math.inf]])
    assert prediction_sets(fit, 0.1).tolist() == [[True, False, False]]
    assert prediction_sets(fit, math.nextafter(0.2, 0)).tolist() == [[True, False, False]]
    assert prediction_sets(fit, math.inf).all()


@given(
    table=tables(), kind=scores_kinds, pair=st.tuples(thresholds, thresholds), r=st.integers(1, 4)
)
def test_loss_never_rises_with_the_threshold(table, kind, pair, r):
    """Lemma 4.2, for every r: more candidates never turn a hit into a miss."""
    low, high = sorted(pair)
    fit, truth = table.nonconformity(kind), augment_truth(table.labels)
    at_low, at_high = (losses(prediction_sets(fit, each), truth, r) for each in (low, high))
    assert not np.any(at_high & ~at_low)


@given(table=tables(), kind=scores_kinds, threshold=thresholds, r=st.integers(1, 4))
def test_critical_score_is_where_the_loss_ends(table, kind, threshold, r):
    """A row is missed exactly while lambda is below its critical score, for every r."""
    fit, truth = table.nonconformity(kind), augment_truth(table.labels)
    critical = critical_scores(fit, truth, r)
    for each in (threshold, *critical):
        missed = losses(prediction_sets(fit, each), truth, r)
        np.testing.assert_array_equal(missed, critical > each)


@given(table=tables(), kind=scores_kinds, threshold=st.floats(0, 1, exclude_max=True))
def test_empirical_risk_is_right_continuous(table, kind, threshold):
    """It drops at a score, not after it: between two neighbouring values nothing changes."""
    fit, truth = table.nonconformity(kind), augment_truth(table.labels)
    jumps = np.append(critical_scores(fit, truth), threshold)
    for at in jumps:
        above = min((jump for jump in np.unique(jumps) if jump > at), default=math.inf)
        assume(math.nextafter(at, math.inf) < above)
        here, next_to_it = (
            losses(prediction_sets(fit, each), truth).mean()
            for each in (at, math.nextafter(at, math.inf))
        )
        assert here == next_to_it


@given(table=tables(), r=st.integers(1, 4), threshold=thresholds)
def test_asking_for_more_right_candidates_never_lowers_the_loss(table, r, threshold):
    """r-coverage: what fails for r fails for r + 1."""
    fit, truth = table.nonconformity(Score.PROB), augment_truth(table.labels)
    sets = prediction_sets(fit, threshold)
    assert not np.any(losses(sets, truth, r) & ~losses(sets, truth, r + 1))
    assert np.all(critical_scores(fit, truth, r) <= critical_scores(fit, truth, r + 1))


def test_critical_score_is_the_rth_smallest_right_one():
    """By hand: right columns 0.4, 0.1, 0.9; wrong ones do not count; r is capped at |G|."""
    fit = np.array([[0.4, 0.0, 0.1, 0.9]])
    truth = np.array([[True, False, True, True]])
    assert [critical_scores(fit, truth, r)[0] for r in (1, 2, 3, 4)] == [0.1, 0.4, 0.9, 0.9]


@given(table=tables())
def test_best_column_of_the_gap_is_zero(table):
    """So at lambda >= 0 the argmax of M' is always in the set; no gap is negative."""
    fit = table.nonconformity(Score.GAP)
    assert np.all(fit.min(axis=1) == 0.0)
    np.testing.assert_array_equal(fit.argmin(axis=1), augment_scores(table.scores).argmax(axis=1))


@given(table=tables())
def test_augmented_truth_is_never_empty(table):
    """Eq. (2): G' is G, or the null model alone where no candidate is right."""
    truth = augment_truth(table.labels)
    assert truth.any(axis=1).all()
    np.testing.assert_array_equal(truth[:, :-1], table.labels)
    np.testing.assert_array_equal(truth[:, -1], ~table.labels.any(axis=1))


def test_scores_by_hand():
    """Eq. (3) and App. B: the null model is the last column, with 1 - max f."""
    r = augment_scores(np.array([[0.75, 0.5], [0.25, 0.125]]))
    assert r.tolist() == [[0.75, 0.5, 0.25], [0.25, 0.125, 0.75]]
    assert score_gap(r).tolist() == [[0.0, 0.25, 0.5], [0.5, 0.625, 0.0]]
    assert inverse_probability(r).tolist() == [[0.25, 0.5, 0.75], [0.75, 0.875, 0.25]]


def test_best_candidate_and_null_model_may_tie():
    """At max f = 0.5 both have gap 0, and both are in the set."""
    fit = score_gap(augment_scores(np.array([[0.5, 0.2]])))
    assert prediction_sets(fit, 0.0).tolist() == [[True, False, True]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.01, 1.01])
def test_router_scores_outside_0_and_1_are_refused(bad):
    """The row is named; a logit or a cosine would make 1 - max f meaningless."""
    with pytest.raises(InputError, match="row 2"):
        checked_scores(np.array([[0.1, 0.2], [0.3, bad]]))


@pytest.mark.parametrize("shape", [(3,), (2, 0), (1, 2, 3)])
def test_router_scores_need_rows_and_columns(shape):
    """A vector would be read as one candidate or as one query."""
    with pytest.raises(InputError, match="shape"):
        checked_scores(np.zeros(shape))


def test_router_scores_become_float64():
    """float32 has 18 values in 0.5 + U[0, 1e-6]: ties would return."""
    assert checked_scores(np.array([[0.5]], dtype=np.float32)).dtype == np.float64


@given(rows=st.integers(1, 4), columns=st.integers(1, 4))
def test_smoothing_is_small_and_belongs_to_query_and_column(rows, columns):
    """A function of (salt, query, column) alone, in every batch and pool."""
    queries, names = fingerprints_of(rows), [f"m{i}" for i in range(columns)]
    noise = smoothing_noise(b"salt", queries, names)
    assert noise.shape == (rows, columns)
    assert np.all((noise >= 0.0) & (noise < 1e-6))
    assert np.unique(noise).size == noise.size
    one = smoothing_noise(b"salt", queries[-1:], names[-1:])
    assert one[0, 0] == noise[-1, -1]
    assert smoothing_noise(b"pepper", queries[-1:], names[-1:])[0, 0] != one[0, 0]


def test_smoothing_keeps_query_and_column_apart():
    """(query "b", column "a") and (query "", column "ab") must not share their noise."""
    shifted = smoothing_noise(b"salt", [b"b"], ["a"]), smoothing_noise(b"salt", [b""], ["ab"])
    assert shifted[0][0, 0] != shifted[1][0, 0]


def test_smoothing_is_uniform():
    """Kolmogorov-Smirnov on 4,000 draws; false alarm 1e-6. Half the width would be seen."""
    from scipy import stats

    noise = smoothing_noise(b"salt", fingerprints_of(1_000), ["a", "b", "c", "d"])
    assert stats.kstest(noise.ravel() / 1e-6, "uniform").pvalue > 1e-6
