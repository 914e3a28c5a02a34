"""The paired test of two scores: its false-alarm rate on exchangeable scores, and its power."""

import tracemalloc

import numpy as np
import pytest

from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.threshold import calibrate_threshold, critical_scores
from racer_core.offline import selection
from racer_core.offline.paired import (
    MIN_RANKS,
    risk_adjusted_costs,
    sign_blocks,
    significantly_below,
)
from racer_core.offline.protocol import PAPER_ALPHAS
from racer_core.offline.selection import ScoredRows, choose_scores
from racer_core.types import RiskTarget
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

RATE = 0.05
DRAWS = 200
CALLS = np.ones(5)


def most_false_alarms() -> int:
    """More than this in DRAWS come with a chance below 1e-6 where the rate is kept."""
    return int(stats.binom.isf(1e-6, DRAWS, RATE))


def labels_and_latent(rng, count):
    """Five candidates that are right together, on queries of different difficulty."""
    latent = rng.normal(size=(count, 1)) * 1.2 + rng.normal(size=(count, 5))
    latent += np.linspace(0.2, 1.2, 5)
    return latent > 0.3, latent


def exchangeable(rng, count):
    """Labels and two scores that see the query through noise of their own, equally well."""
    truth, latent = labels_and_latent(rng, count)
    return truth, *(-(latent + 1.5 * rng.normal(size=latent.shape)) for _ in range(2))


def differences(truth, one, other, alphas, adjusted=True):
    """Risk-adjusted costs of one score minus those of the other, a column for each level."""
    columns = []
    for alpha in alphas:
        costs = [risk_adjusted_costs(fit, truth, alpha, CALLS) for fit in (one, other)]
        if not adjusted:
            costs = [plain_costs(fit, truth, alpha) for fit in (one, other)]
        if costs[0] is not None:
            columns.append(costs[0] - costs[1])
    return np.column_stack(columns)


def plain_costs(fit, truth, alpha):
    """The sizes of the sets at the threshold that these rows give, by hand."""
    counted = truth.any(axis=1)
    threshold = calibrate_threshold(critical_scores(fit[counted], truth[counted]), alpha)
    return prediction_sets(fit, threshold).sum(axis=1).astype(float)


def false_alarms(alphas, adjusted=True, count=300):
    """In how many draws of exchangeable scores the first is called smaller at some level."""
    rng = np.random.default_rng(1)
    return sum(
        significantly_below(differences(*exchangeable(rng, count), alphas, adjusted), RATE).any()
        for _ in range(DRAWS)
    )


def test_mean_is_the_mean_cost_at_equal_risk():
    """The adjustment moves cost between rows; the mean stays that of the sets."""
    truth, one, _ = exchangeable(np.random.default_rng(2), 240)
    for alpha in (0.05, 0.1, 0.3):
        adjusted = risk_adjusted_costs(one, truth, alpha, CALLS)
        assert adjusted.mean() == pytest.approx(plain_costs(one, truth, alpha).mean())


def test_variance_is_that_of_the_mean_cost_over_samples():
    """The influence function by simulation: rows of 400 draws, thresholds and sizes anew."""
    rng = np.random.default_rng(3)
    means, predicted, plain = [], [], []
    for _ in range(400):
        truth, one, _ = exchangeable(rng, 200)
        adjusted = risk_adjusted_costs(one, truth, 0.1, CALLS)
        means.append(adjusted.mean())
        predicted.append(adjusted.var() / len(adjusted))
        plain.append(plain_costs(one, truth, 0.1).var() / len(truth))
    # The standard deviation of a variance estimated from 400 draws is 7 %.
    assert np.mean(predicted) == pytest.approx(np.var(means), rel=0.3)
    assert np.mean(plain) < 0.5 * np.var(means)


@pytest.mark.parametrize(
    "alphas", [(0.05,), pytest.param((0.1,), marks=pytest.mark.slow), PAPER_ALPHAS]
)
def test_false_alarm_rate_on_exchangeable_scores_is_kept(alphas):
    """At one level and over the whole grid; this test fails by luck once in a million."""
    assert false_alarms(alphas) <= most_false_alarms()


def test_sizes_alone_would_break_the_rate():
    """Without the price of risk the thresholds' own luck is called a difference."""
    assert false_alarms((0.05,), adjusted=False) > most_false_alarms()


def test_better_score_is_found():
    """One of five candidates is right; one score sees which through half of the other's noise."""
    rng = np.random.default_rng(4)
    truth = np.eye(5, dtype=bool)[rng.integers(0, 5, 300)]
    better, worse = (sd * rng.normal(size=truth.shape) - truth for sd in (0.6, 0.9))
    assert significantly_below(differences(truth, better, worse, PAPER_ALPHAS), RATE).sum() > 10
    assert not significantly_below(differences(truth, worse, better, PAPER_ALPHAS), RATE).any()


def test_a_column_does_not_hide_another():
    """One level with a difference, one without, one that is worse."""
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(200, 3))
    assert significantly_below(noise - noise.mean(axis=0) + [-1.0, 0.0, 1.0], RATE).tolist() == [
        True,
        False,
        False,
    ]


def test_equal_scores_and_single_rows_name_nothing():
    """No spread is no evidence, and no division by zero."""
    assert not significantly_below(np.zeros((50, 2)), RATE).any()
    assert not significantly_below(np.zeros((50, 2)), RATE, np.arange(50)).any()
    assert not significantly_below(np.array([[-1.0]]), RATE).any()


@pytest.mark.parametrize(
    ("count", "tested"), [(MIN_RANKS * 10 - 2, False), (MIN_RANKS * 10 - 1, True)]
)
def test_extreme_thresholds_are_not_compared(count, tested):
    """Alpha (n + 1) counts: 48 answerable rows at 0.1 leave four ranks, 49 five."""
    truth = np.ones((count + 7, 5), dtype=bool)
    truth[count:] = False  # unanswerable rows do not count
    fit = np.random.default_rng(6).random(truth.shape)
    assert (risk_adjusted_costs(fit, truth, 0.1, CALLS) is not None) is tested


def test_signs_in_blocks_are_those_of_one_draw():
    """The block size changes no sign, so it changes no verdict."""
    count = 1500
    heads = np.random.default_rng(0).integers(0, 2, size=(2000, count))
    blocks = list(sign_blocks(count))
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.concatenate(blocks), np.where(heads == 1, 1.0, -1.0))


def test_memory_does_not_grow_with_flips_times_rows():
    """All signs of 20,000 rows at once take 320 MB."""
    noise = np.random.default_rng(0).normal(size=(20_000, 2))
    tracemalloc.start()
    significantly_below(noise, RATE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_rows_of_a_cluster_count_as_one():
    """Copies of every row prove as much as the rows do; as rows they would prove more."""
    rng = np.random.default_rng(3)
    rows = rng.normal(-0.15, 1.0, (60, 3))
    units = np.repeat(np.arange(60), 20)
    copies = rows[units]
    alone = significantly_below(rows, RATE)
    assert not alone.any()
    assert significantly_below(copies, RATE).any()
    np.testing.assert_array_equal(significantly_below(copies, RATE, units), alone)


def test_the_choice_of_a_score_counts_clusters(monkeypatch):
    """The units of the rows reach the test."""
    given = []

    def record(differences, error_rate, units):
        given.append(units.tolist())
        return np.zeros(differences.shape[1], dtype=bool)

    monkeypatch.setattr(selection, "significantly_below", record)
    rng = np.random.default_rng(4)
    scores = rng.random((200, 3))
    labels = rng.random((200, 3)) < scores
    units = np.arange(200) // 2
    rows = ScoredRows(
        pool=("a", "b", "c"),
        fingerprints=tuple(b"%d" % i for i in range(200)),
        scores=scores,
        neighbours=None,
        labels=labels,
        units=units,
    )
    choose_scores(rows, PatternModel.of(labels), alphas=(0.1,), risk_target=RiskTarget.ANSWERABLE)
    assert given == [units.tolist()]
