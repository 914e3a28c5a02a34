"""The exact law of the risk of one split: against counting every split, and against simulation."""

from itertools import combinations

import numpy as np
import pytest

from racer_core.calibration.split_risk import split_risk
from racer_core.calibration.threshold import threshold_from_sorted
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

TIES = {
    "distinct": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "all tied": [1] * 9,
    "a tie at the threshold": [1, 2, 3, 5, 5, 5, 5, 8, 9],
    "two ties": [1, 1, 1, 1, 2, 2, 2, 2, 3],
    "infinite": [1, 2, 3, 4, 5, np.inf, np.inf, np.inf, np.inf],
}


def risk(calibration, test, misses):
    """The share of test rows above the threshold."""
    return (test > threshold_from_sorted(np.sort(calibration), misses)).mean()


@pytest.mark.parametrize("scores", TIES.values(), ids=TIES)
@pytest.mark.parametrize("misses", [0, 1, 3])
def test_law_counts_every_split(scores, misses):
    """Mean, variance, third moment and the smallest and largest risk of all 126 splits."""
    rows = np.array(scores, dtype=float)
    risks = []
    for chosen in combinations(range(9), 5):
        inside = np.isin(np.arange(9), chosen)
        risks.append(risk(rows[inside], rows[~inside], misses))
    risks = np.array(risks)
    law = split_risk(rows[:5], rows[5:], misses)
    assert law.mean == pytest.approx(risks.mean())
    assert law.variance == pytest.approx(risks.var(), abs=1e-12)
    assert law.third == pytest.approx(((risks - risks.mean()) ** 3).mean(), abs=1e-12)
    low, high = law.interval
    assert (risks < low).mean() <= 0.025 + 1e-9
    assert (risks > high).mean() <= 0.025 + 1e-9


def test_without_ties_the_law_is_beta_binomial():
    """By scipy, with many rows."""
    scores = np.random.default_rng(0).normal(size=900)
    law = split_risk(np.sort(scores[:600]), scores[600:], 59)
    exact = stats.betabinom(300, 60, 541)
    assert law.mean == pytest.approx(exact.mean() / 300)
    assert law.variance == pytest.approx(exact.var() / 300**2)
    assert law.interval == pytest.approx(tuple(np.divide(exact.interval(0.95), 300)))


def test_with_many_ties_the_law_is_that_of_random_splits():
    """Three values, of which the threshold takes two: the risk has two peaks."""
    rng = np.random.default_rng(1)
    rows = rng.choice([0.0, 0.5, 1.0], p=[0.7, 0.2, 0.1], size=900)
    risks = []
    for _ in range(4000):
        rng.shuffle(rows)
        risks.append(risk(rows[:600], rows[600:], 59))
    law = split_risk(np.sort(rows[:600]), rows[600:], 59)
    assert law.mean == pytest.approx(np.mean(risks), abs=5 * np.std(risks) / np.sqrt(4000))
    assert law.variance == pytest.approx(np.var(risks), rel=0.15)
    assert law.interval == pytest.approx(tuple(np.quantile(risks, (0.025, 0.975))), abs=0.011)


def test_infeasible_levels_miss_nothing():
    """The whole pool is called."""
    assert split_risk(np.zeros(3), np.zeros(3), -1).interval == (0.0, 0.0)
