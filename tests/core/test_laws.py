"""laws.py against scipy, which the package itself does without."""

from itertools import combinations

import numpy as np
import pytest

from racer_core.calibration.laws import (
    beta_binomial_interval,
    beta_quantile,
    binomial_cdf,
    binomial_cdf_at,
    simultaneous_risk_bound,
    student_quantile,
)
from racer_core.calibration.split_risk import split_risk
from racer_core.calibration.threshold import threshold_from_sorted
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")


@pytest.mark.parametrize("n", [1, 2, 19, 300, 10_000])
@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.99])
def test_binomial_cdf(n, p):
    """P(Bin <= c) for every c; cumulated logarithms lose less than 1e-9."""
    np.testing.assert_allclose(
        binomial_cdf(n, p), stats.binom.cdf(np.arange(n + 1), n, p), atol=1e-9
    )


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1), (1, 19), (2, 18), (100, 901), (1_000, 9_001), (19, 1)]
)
@pytest.mark.parametrize("q", [0.025, 0.5, 0.95])
def test_beta_quantile(a, b, q):
    """Through the binomial identity, to nine digits."""
    assert beta_quantile(q, a, b) == pytest.approx(stats.beta.ppf(q, a, b), abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 99, 3_000])
@pytest.mark.parametrize("q", [0.6, 0.975, 0.99, 0.99999])
def test_student_quantile(q, freedom):
    """To six digits."""
    assert student_quantile(q, freedom) == pytest.approx(stats.t.ppf(q, freedom), rel=1e-6)


@pytest.mark.parametrize(
    ("trials", "a", "b"), [(1, 1, 1), (100, 2, 18), (350, 35, 317), (5_000, 100, 901)]
)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_beta_binomial_interval(trials, a, b, level):
    """The same two quantiles that scipy gives, and they hold at least the level."""
    low, high = beta_binomial_interval(trials, a, b, level)
    assert (low, high) == stats.betabinom.interval(level, trials, a, b)
    inside = stats.betabinom.cdf(high, trials, a, b) - stats.betabinom.cdf(low - 1, trials, a, b)
    assert inside >= level


@pytest.mark.parametrize("p", [1e-5, 0.1, 0.5, 0.999])
def test_a_million_rows_keep_ten_digits(p):
    """Sums of a million logarithms would lose half of them; scipy itself is good to 2e-11 here."""
    n = 1_000_000
    count = np.arange(n + 1)
    np.testing.assert_allclose(binomial_cdf(n, p), stats.binom.cdf(count, n, p), atol=1e-10)
    a = max(1, int(n * p))
    assert beta_quantile(0.95, a, n + 1 - a) == pytest.approx(
        stats.beta.ppf(0.95, a, n + 1 - a), rel=1e-10
    )


@pytest.mark.parametrize(("n", "p"), [(0, 0.3), (1, 0.3), (300, 0.01), (5_000, 0.4)])
def test_one_count_agrees_with_all(n, p):
    """Also below 0 and above n."""
    whole = binomial_cdf(n, p)
    chosen = range(0, n + 1, max(1, n // 50))
    np.testing.assert_allclose([binomial_cdf_at(c, n, p) for c in chosen], whole[list(chosen)])
    assert binomial_cdf_at(-1, n, p) == 0.0
    assert binomial_cdf_at(n + 1, n, p) == 1.0


def test_small_tails_keep_their_digits():
    """Relative accuracy where a difference from 1 would have none."""
    expected = stats.binom.cdf(100, 1_000, 0.4)
    assert expected < 1e-90
    assert binomial_cdf_at(100, 1_000, 0.4) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("q", "error"), [(1e-12, 1e-8), (1.0 - 1e-12, 1e-12)])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 10**6), (10**6, 1), (3, 2)])
def test_extreme_quantiles(q, error, a, b):
    """Next to 0 and to 1 the search ends without dividing by zero; upper points are exact."""
    assert beta_quantile(q, a, b) == pytest.approx(stats.beta.ppf(q, a, b), abs=error)


def band(n, delta):
    """The bound of every number of missed rows."""
    return np.array([simultaneous_risk_bound(n, missed, delta) for missed in range(n)])


def chance_that_all_hold(bounds):
    """P(the (j + 1)-th smallest of n uniforms <= bounds[j] for every j), exactly.

    The count of uniforms below a rising limit is a Markov chain with binomial steps; at bounds[j]
    it must have reached j + 1.
    """
    n = len(bounds)
    chance = np.zeros(n + 1)
    chance[0], limit = 1.0, 0.0
    for j, bound in enumerate(bounds):
        step = (bound - limit) / (1.0 - limit) if limit < 1.0 else 0.0
        moved = np.zeros(n + 1)
        for count in np.flatnonzero(chance):
            left = n - count
            moved[count:] += chance[count] * stats.binom.pmf(np.arange(left + 1), left, step)
        moved[: j + 1] = 0.0
        chance, limit = moved, bound
    return chance.sum()


@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("n", [1, 2, 12, 60])
def test_bounds_hold_for_all_thresholds_at_once(n, delta):
    """Exactly, but for rounding; and they waste less than nine tenths of delta."""
    chance = chance_that_all_hold(band(n, delta))
    assert 1.0 - delta - 1e-12 <= chance <= 1.0 - delta / 10.0


@pytest.mark.parametrize(("alpha", "misses"), [(0.01, 1), (0.05, 25), (0.1, 70)])
def test_more_misses_than_dkw_allows(alpha, misses):
    """Dvoretzky-Kiefer-Wolfowitz allows none, 11 and 61 of 1,000 at delta = 0.05."""
    bounds = band(1_000, 0.05)
    assert np.all(np.diff(bounds) >= 0.0)
    assert np.searchsorted(bounds, alpha, side="right") - 1 == misses
    assert misses > 1_000 * (alpha - np.sqrt(np.log(1 / 0.05) / 2_000))


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


def test_infeasible_levels_miss_nothing():
    """The whole pool is called."""
    assert split_risk(np.zeros(3), np.zeros(3), -1).interval == (0.0, 0.0)
