"""Statistical assertions: counts against their law, at a stated false-alarm probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")


def assert_binomial(successes: int, trials: int, p: float, false_alarm: float) -> None:
    """Fail when a Bin(trials, p) count lies outside its central interval."""
    low, high = stats.binom.interval(1.0 - false_alarm, trials, p)
    assert low <= successes <= high, (
        f"{successes} of {trials} = {successes / trials:.4f}, "
        f"but p = {p} allows {low / trials:.4f} to {high / trials:.4f}"
    )


def assert_at_most(successes: int, trials: int, p: float, false_alarm: float) -> None:
    """Fail when a count is larger than a Bin(trials, p) count would be."""
    high = stats.binom.isf(false_alarm, trials, p)
    assert successes <= high, (
        f"{successes} of {trials} = {successes / trials:.4f}, "
        f"but p <= {p} allows at most {high / trials:.4f}"
    )


def assert_split_risk(
    mean_risk: float, *, splits: int, n: int, n_test: int, alpha: float, false_alarm: float
) -> None:
    """Fail when a mean over random splits lies outside its exact law.

    For distinct critical scores, the misses among n_test rows of a random split are
    BetaBinomial(n_test, m, n + 1 - m) whatever the rows are, and splits of the same rows are
    independent given the rows: the sum over splits is a convolution.
    """
    cdf = _split_cdf(splits, n, n_test, alpha)
    misses = round(mean_risk * n_test * splits)
    low, high = np.searchsorted(cdf, [false_alarm / 2, 1.0 - false_alarm / 2])
    assert low <= misses <= high, (
        f"mean risk {mean_risk:.4f}, but the law of {splits} splits allows "
        f"{low / n_test / splits:.4f} to {high / n_test / splits:.4f}"
    )


def assert_split_risk_at_most(
    mean_risk: float, *, splits: int, n: int, n_test: int, alpha: float, false_alarm: float
) -> None:
    """Fail when a mean over splits is larger than its law allows.

    Ties between critical scores make the risk given a calibration set stochastically smaller, so
    the law of distinct scores bounds it from above.
    """
    high = np.searchsorted(_split_cdf(splits, n, n_test, alpha), 1.0 - false_alarm)
    assert round(mean_risk * n_test * splits) <= high, (
        f"mean risk {mean_risk:.4f}, but {splits} splits allow at most {high / n_test / splits:.4f}"
    )


def _split_cdf(splits: int, n: int, n_test: int, alpha: float) -> np.ndarray:
    m = np.count_nonzero(np.arange(1, n + 1) / (n + 1) <= alpha)
    one = stats.betabinom.pmf(np.arange(n_test + 1), n_test, m, n + 1 - m)
    total = np.ones(1)
    for _ in range(splits):
        total = np.convolve(total, one)
    return np.cumsum(total)


def rarely_exceeded(
    log_moment: Callable[[float], float], false_alarm: float, rates: Iterable[float]
) -> float:
    """A value that a statistic exceeds with probability ``false_alarm`` at most (Chernoff).

    Args:
        log_moment: log E exp(t X) of the statistic X at a rate t; a larger one only widens.
        false_alarm: The probability.
        rates: Positive t among which the smallest value is sought.
    """
    return min((log_moment(rate) - math.log(false_alarm)) / rate for rate in rates)
