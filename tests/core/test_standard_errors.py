"""Standard errors over rows cover fresh pools of rows; the spread over splits does not."""

import numpy as np
import pytest

from racer_core.aggregation.batch import RowAnswers
from racer_core.calibration.patterns import PatternModel
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import Chosen, Setting
from racer_core.offline.protocol import Protocol, Shares
from racer_core.offline.selection import ScoredRows
from racer_core.offline.standard_errors import (
    RESAMPLES,
    bootstrap,
    standard_error,
    standard_error_of_mean,
)
from racer_core.offline.table import EvaluationTable
from racer_core.types import RiskTarget, Score

POOL = ("a", "b", "c", "d")
SPLITS = 10


def pool_of_rows(rng, count, per_cluster):
    """Scored rows; rows of a cluster share how hard they are."""
    clusters = np.repeat(np.arange(count // per_cluster), per_cluster)
    hard = rng.standard_normal(count // per_cluster)[clusters]
    own = rng.standard_normal((count, len(POOL)))
    chance = 1.0 / (1.0 + np.exp(-(0.5 * own - 1.2 * hard[:, None])))
    labels = rng.random((count, len(POOL))) < chance
    noisy = 1.0 / (1.0 + np.exp(-(0.5 * own - 0.8 * hard[:, None])))
    return clusters, np.round(noisy, 6), labels


def evaluated(rng, count=240, per_cluster=1):
    """The evaluation of a fresh pool of rows, answers included."""
    clusters, scores, labels = pool_of_rows(rng, count, per_cluster)
    table = EvaluationTable(
        benchmarks={"one": np.arange(count)},
        rows=ScoredRows(
            pool=POOL,
            fingerprints=tuple(i.to_bytes(16) for i in range(count)),
            scores=scores,
            neighbours=None,
            labels=labels,
            units=clusters,
        ),
        patterns=(PatternModel.of(labels[:50]),),
        answers=RowAnswers(classes=np.where(labels, 0, 1 + np.arange(len(POOL)))),
        stacked=None,
        n_train=0,
        copies=0,
        clusters=clusters,
        protocol=Protocol(
            splits=SPLITS,
            shares=Shares(calibration=0.5, validation=0.1),
            alphas=(0.2,),
            scores=(Score.GAP,),
            risk_targets=(RiskTarget.ANSWERABLE,),
            false_abstain_budget=None,
            seed=int(rng.integers(2**31)),
        ),
    )
    return evaluate(table, encoder="-", router="-")


SETTING = Setting(scope="one", risk_target=RiskTarget.ANSWERABLE, score=Score.GAP, alpha=0.2)
RANDOM = ("random_miss", "random_majority")
MEASURES = ("size", "miss_given_answerable", "served_error", "accuracy_majority", *RANDOM)


def simulated(pools, seed, per_cluster=1):
    """Figure, its error over rows and its error by the spread over splits, of fresh pools."""
    rng = np.random.default_rng(seed)
    found = {name: [] for name in MEASURES}
    for _ in range(pools):
        evaluation = evaluated(rng, per_cluster=per_cluster)
        for name in MEASURES:
            mean, sd = evaluation.mean(SETTING, name), evaluation.sd(SETTING, name)
            found[name].append((mean, evaluation.se_rows(SETTING, name), sd / np.sqrt(SPLITS)))
    return {name: np.array(rows) for name, rows in found.items()}


@pytest.mark.slow
def test_intervals_over_rows_cover_fresh_pools_and_the_spread_over_splits_does_not():
    """Of 40 fresh pools, the 95 % intervals over rows cover the mean size in 27 or more.

    Measured on 60 other pools: 92 % by rows, 30 % by the spread over ten splits. An interval that
    covers 85 % would fail here with a chance of 0.2 %, one that covers 45 % would pass with 0.3 %.
    Accuracy is covered in 98 % and 72 %. Random sets of the same sizes: their misses in 88 % by
    rows, their majority in all; the mean errors are 0.83 and 1.17 of the spread over pools.
    """
    found = simulated(40, seed=5)
    for name in ("size", "accuracy_majority"):
        mean, by_rows, by_splits = found[name].T
        away = np.abs(mean - mean.mean())
        assert (away <= 1.96 * by_rows).sum() >= 27, name
        assert (away <= 1.96 * by_splits).sum() < 30, name
    for name in ("size", *RANDOM):
        mean, by_rows, _ = found[name].T
        assert (np.abs(mean - mean.mean()) <= 1.96 * by_rows).sum() >= 27, name
        assert 0.6 < by_rows.mean() / mean.std() < 1.4, name


# The error of a standard deviation over 2,000 resamples is 1.6 %; one is off by more than 5 of
# these with a chance below 1e-6. The bootstrap itself lacks the factor G / (G - 1), 0.3 % or less.
TOLERANCE = 5.0 / np.sqrt(2.0 * RESAMPLES) + 0.003


def resampled_means(values, units, seed=0):
    """The mean of each column in resamples of the units."""
    counts = np.bincount(units).astype(float)
    sums = [np.bincount(units, weights=column) for column in values.T]
    totals = bootstrap(np.column_stack([*sums, counts]), np.random.default_rng(seed))
    return totals[:, :-1] / totals[:, -1:]


def test_errors_of_a_mean_and_of_a_paired_difference_are_the_closed_forms():
    """Sd / sqrt(n) of the values, and of the differences row by row."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal(400)
    values = np.column_stack([one, one + 0.3 * rng.standard_normal(400)])
    drawn = resampled_means(values, np.arange(400))
    closed = values.std(axis=0, ddof=1) / np.sqrt(400)
    for column, expected in enumerate(closed):
        assert standard_error(drawn[:, column]) == pytest.approx(expected, rel=TOLERANCE)
    paired = np.diff(values, axis=1).std(ddof=1) / np.sqrt(400)
    assert standard_error(drawn[:, 1] - drawn[:, 0]) == pytest.approx(paired, rel=TOLERANCE)
    assert paired < 0.4 * closed.min()
    assert standard_error(drawn[:, 0] - drawn[:, 0]) == 0.0
    assert standard_error_of_mean(one, np.arange(400)) == pytest.approx(closed[0])


def test_copies_in_a_cluster_add_nothing():
    """Each row four times in a cluster of its own: the error of the rows, not half of it."""
    values, units = np.random.default_rng(0).standard_normal((400, 1)), np.arange(400)
    copies, clusters = np.repeat(values, 4, axis=0), np.repeat(units, 4)
    once = standard_error(resampled_means(values, units))
    np.testing.assert_allclose(standard_error(resampled_means(copies, clusters)), once)
    as_rows = standard_error(resampled_means(copies, np.arange(1600)))
    assert as_rows == pytest.approx(once / 2, rel=2 * TOLERANCE)
    assert standard_error_of_mean(copies[:, 0], clusters) == pytest.approx(
        standard_error_of_mean(values[:, 0], units)
    )


def test_clusters_of_unequal_size_have_the_closed_form():
    """The mean is a ratio of totals: its error is that of the cluster sums of deviations."""
    rng = np.random.default_rng(3)
    units = np.repeat(np.arange(500), rng.integers(1, 6, 500))
    values = rng.standard_normal(500)[units] + rng.standard_normal(len(units))
    drawn = resampled_means(values[:, None], units)
    expected = standard_error_of_mean(values, units)
    # The ratio is not linear: a second-order term of 1 / G, below 1 % here.
    assert standard_error(drawn) == pytest.approx(expected, rel=TOLERANCE + 0.01)


def test_equal_generators_draw_equal_resamples():
    """In blocks or at once, and another generator draws others."""
    sums = np.random.default_rng(1).random((300, 2))
    one = bootstrap(sums, np.random.default_rng(7))
    assert one.shape == (RESAMPLES, 2)
    np.testing.assert_array_equal(one, bootstrap(sums, np.random.default_rng(7)))
    assert not np.array_equal(one, bootstrap(sums, np.random.default_rng(8)))
    counts = bootstrap(np.ones((300, 1)), np.random.default_rng(7))
    np.testing.assert_array_equal(counts, 300.0)


def test_one_cluster_has_no_error():
    """Nothing says how other rows would differ."""
    assert np.isnan(standard_error(np.empty(0)))
    assert np.isnan(standard_error_of_mean(np.arange(4.0), np.zeros(4, dtype=np.intp)))


def test_errors_of_differences_are_paired():
    """A better vote's lead has less than the two errors, and so has the gain of a choice."""
    evaluation = evaluated(np.random.default_rng(1))
    one, two = (
        evaluation.draws("one", SETTING, f"accuracy_{rule}") for rule in ("majority", "weighted")
    )
    assert standard_error(one - two) < np.hypot(standard_error(one), standard_error(two))
    full = evaluation.draws("one", "full pool tuned", "accuracy")
    chosen = evaluation.draws("one", Chosen(SETTING.risk_target, SETTING.score), "accuracy")
    assert 0.0 < standard_error(chosen - full) < 2.0 * standard_error(full)
    cell = evaluation.as_json()["cells"][0]
    assert cell["se_rows"]["size"] == evaluation.se_rows(SETTING, "size")
    for name in RANDOM:
        assert cell["se_rows"][name] == evaluation.se_rows(SETTING, name) > 0.0


def test_the_same_seed_gives_the_same_errors():
    """The resamples follow the seed of the protocol."""
    one, two = (evaluated(np.random.default_rng(2)) for _ in range(2))
    assert one.as_json() == two.as_json()
