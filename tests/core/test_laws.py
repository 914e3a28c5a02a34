"""laws.py against scipy, which the package itself does without."""

import numpy as np
import pytest

from racer_core.calibration.laws import (
    beta_binomial_interval,
    beta_quantile,
    binomial_cdf,
    student_quantile,
)
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
