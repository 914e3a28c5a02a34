"""The method step by step: augmented scores, nonconformity, sets and their loss. Eq. (2)-(4)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.augmentation import augment_scores, augment_truth, checked_scores
from racer_core.calibration.metrics import set_metrics
from racer_core.calibration.nonconformity import inverse_probability, score_gap, smoothing_noise
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.threshold import critical_scores
from racer_core.errors import InputError
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


@given(table=tables(), kind=scores_kinds, threshold=thresholds, r=st.integers(1, 4))
def test_critical_score_is_where_the_loss_ends(table, kind, threshold, r):
    """A row is missed exactly while lambda is below its critical score, for every r."""
    fit, truth = table.nonconformity(kind), augment_truth(table.labels)
    critical = critical_scores(fit, truth, r)
    for each in (threshold, *critical):
        missed = losses(prediction_sets(fit, each), truth, r)
        np.testing.assert_array_equal(missed, critical > each)


def test_critical_score_is_the_rth_smallest_right_one():
    """By hand: right columns 0.4, 0.1, 0.9; wrong ones do not count; r is capped at |G|."""
    fit = np.array([[0.4, 0.0, 0.1, 0.9]])
    truth = np.array([[True, False, True, True]])
    assert [critical_scores(fit, truth, r)[0] for r in (1, 2, 3, 4)] == [0.1, 0.4, 0.9, 0.9]


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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.01, 1.01])
def test_router_scores_outside_0_and_1_are_refused(bad):
    """The row is named; a vector is no matrix, and float32 would bring ties back."""
    with pytest.raises(InputError, match="row 2"):
        checked_scores(np.array([[0.1, 0.2], [0.3, bad]]))
    for shape in ((3,), (2, 0), (1, 2, 3)):
        with pytest.raises(InputError, match="shape"):
            checked_scores(np.zeros(shape))
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


# G, C without the null model, whether the null model is in C
TABLE = [
    ("a", "ab", False),  # hit
    ("b", "a", False),  # missed: answered without a right candidate
    ("", "", True),  # no candidate is right, and none was called
    ("", "a", True),  # the paper counts it as covered; the user got a wrong answer
    ("", "abc", False),  # missed in every sense
    ("c", "", True),  # false abstention
    ("ab", "bc", True),  # hit
    ("c", "c", False),  # hit
]


def flags(names):
    """One row per text: which of a, b and c it names."""
    return np.array([[name in row for name in "abc"] for row in names])


def test_metrics_of_a_table_counted_by_hand():
    """Eight rows, five of them answerable."""
    right, called, null = zip(*TABLE, strict=True)
    metrics = set_metrics(flags(called), np.array(null), flags(right))
    assert metrics.risk == 3 / 8  # rows 2, 5, 6
    assert metrics.miss_given_answerable == 2 / 5  # rows 2, 6 of 1, 2, 6, 7, 8
    assert metrics.served_error == 3 / 8  # rows 2, 4, 5
    assert metrics.false_abstain == 1 / 5  # row 6
    assert metrics.abstain == 2 / 8  # rows 3, 6
    assert metrics.size == 10 / 8  # 2 + 1 + 0 + 1 + 3 + 0 + 2 + 1


def test_share_of_no_rows_is_nan():
    """Not 0: a risk that was never measured must not look good."""
    none_right = set_metrics(flags(["a"]), np.array([False]), flags([""]))
    assert math.isnan(none_right.miss_given_answerable)
    assert math.isnan(none_right.false_abstain)
    assert none_right.risk == none_right.served_error == 1.0
    nothing = set_metrics(flags(["a"])[:0], np.zeros(0, bool), flags(["a"])[:0])
    assert math.isnan(nothing.risk)
    assert math.isnan(nothing.size)
