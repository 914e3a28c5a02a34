"""The laws at a million rows, and bounds that hold for every alpha at once."""

import numpy as np
import pytest

from racer_core.calibration.laws import (
    beta_quantile,
    binomial_cdf,
    binomial_cdf_at,
    simultaneous_risk_bound,
)
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")


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


def test_bounds_for_one_alpha_each_do_not_hold_together():
    """Negative control: the exact rule at delta for every count, without a price for the choice."""
    n = 60
    pointwise = [beta_quantile(0.95, j + 1, n - j) for j in range(n)]
    assert chance_that_all_hold(pointwise) < 0.9


@pytest.mark.parametrize(("alpha", "misses"), [(0.01, 1), (0.05, 25), (0.1, 70)])
def test_more_misses_than_dkw_allows(alpha, misses):
    """Dvoretzky-Kiefer-Wolfowitz allows none, 11 and 61 of 1,000 at delta = 0.05."""
    bounds = band(1_000, 0.05)
    assert np.all(np.diff(bounds) >= 0.0)
    assert np.searchsorted(bounds, alpha, side="right") - 1 == misses
    assert misses > 1_000 * (alpha - np.sqrt(np.log(1 / 0.05) / 2_000))
