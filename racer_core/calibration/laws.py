"""Exact distributions of realised risk: binomial, beta, beta-binomial.

Vovk 2012; Angelopoulos & Bates 2021.

With n exchangeable rows, distinct critical scores and m = max{j : j/(n + 1) <= alpha}:

    risk given the calibration set  ~  Beta(m, n + 1 - m)
    misses among N future queries   ~  BetaBinomial(N, m, n + 1 - m)

With ties the risk is stochastically smaller (``realised_risk``). Written with numpy and
``math.lgamma``, so that the package needs no scipy; the tests compare with scipy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from racer_core.types import FloatArray

NEGLIGIBLE = 750.0  # exp(-750) is 0 in doubles


def binomial_cdf(n: int, p: float) -> FloatArray:
    """P(Bin(n, p) <= c) for c = 0 .. n, shape (n + 1,)."""
    first, pmf = _binomial_pmf(n, p)
    cdf = np.zeros(n + 1)
    cdf[first : first + pmf.size] = np.cumsum(pmf)
    cdf[first + pmf.size :] = 1.0
    return np.minimum(cdf, 1.0)


def binomial_cdf_at(c: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= c) for one c, at a cost of sqrt(n) rather than n."""
    first, pmf = _binomial_pmf(n, p)
    if c >= first + pmf.size - 1:
        return 1.0
    return min(float(pmf[: max(c + 1 - first, 0)].sum()), 1.0)


def beta_binomial_pmf(trials: int, a: int, b: int) -> FloatArray:
    """P(BetaBinomial(trials, a, b) = k) for k = 0 .. trials, shape (trials + 1,); a, b >= 1."""
    k = np.arange(trials + 1)
    return np.exp(_log_binomial(trials) + _log_beta(k + a, trials - k + b) - _log_beta(a, b))


def beta_binomial_interval(trials: int, a: int, b: int, level: float = 0.95) -> tuple[int, int]:
    """Central interval of BetaBinomial(trials, a, b) with mass >= ``level``; a, b >= 1."""
    cdf = np.cumsum(beta_binomial_pmf(trials, a, b))
    tail = (1.0 - level) / 2.0
    return int(np.searchsorted(cdf, tail)), int(np.searchsorted(cdf, 1.0 - tail))


@lru_cache(4_096)  # one calibration needs about 60, and the next of the same size the same ones
def beta_quantile(q: float, a: int, b: int) -> float:
    """The q-quantile of Beta(a, b) for whole a, b >= 1.

    Uses P(Beta(a, b) <= x) = P(Bin(a + b - 1, x) >= a), with the derivative
    P(Bin(a + b - 1, x) = a) a / x. Newton's method on the logarithm of the smaller tail, which is
    concave in x: from the normal quantile it takes about 10 steps, until they no longer shrink.
    """
    n, is_upper = a + b - 1, q >= 0.5
    tail = 1.0 - q if is_upper else q
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1.0 - mean) / (a + b + 1))
    low, high = 0.0, 1.0
    x = min(max(mean + NormalDist().inv_cdf(q) * deviation, mean / 2.0), (1.0 + mean) / 2.0)
    last = math.inf
    for _ in range(200):
        first, pmf = _binomial_pmf(n, x)
        at = a - first  # where P(Beta <= x) begins
        mass = float(pmf[: max(at, 0)].sum() if is_upper else pmf[max(at, 0) :].sum())
        low, high = (x, high) if (mass > tail) == is_upper else (low, x)
        density = float(pmf[at]) * a / x if 0 <= at < pmf.size else 0.0
        step = math.inf
        if density > 0.0 and mass > 0.0:
            step = (1.0 if is_upper else -1.0) * mass / density * math.log(mass / tail)
        following = x + step if low < x + step < high else (low + high) / 2.0
        moved = abs(following - x)
        if moved <= 4e-15 * x or (moved < 1e-12 * x and moved >= last):
            break
        x, last = following, moved
    return x


@lru_cache(256)
def student_quantile(q: float, freedom: int) -> float:
    """The q-quantile of Student's t, 0.5 <= q < 1, to a relative error below 1e-6.

    With t = sqrt(freedom) tan(theta) the density of theta is proportional to
    cos(theta)^(freedom - 1).
    """
    theta = np.linspace(0.0, math.pi / 2.0, 2**17 + 1, dtype=np.float64)
    density: FloatArray = np.power(np.cos(theta), freedom - 1)
    mass = np.concatenate([np.zeros(1), np.cumsum(density[1:] + density[:-1])])
    angle: FloatArray = np.interp([(2.0 * q - 1.0) * mass[-1]], mass, theta)
    return math.sqrt(freedom) * math.tan(float(angle[0]))


def simultaneous_risk_bound(n: int, missed: int, delta: float) -> float:
    """A bound on the risk of a threshold that leaves ``missed`` of n rows above it, for any alpha.

    With probability at least 1 - delta over calibration sets the bounds of *all* thresholds hold
    together. So the bound of one threshold is valid however it was chosen, also by looking at the
    rows.

    Proof. Write the critical score S of a query as a decreasing function of a uniform U. The rows
    have uniforms U_(1) <= ... <= U_(n). A threshold t that leaves j rows above it has
    P(S > t) <= U_(j+1): the (j + 1)-th row is not above t, so S > t implies U < U_(j+1). This holds
    for all t at once, for tied scores as for distinct ones; where rows tie, j counts the rows
    strictly above t. U_(j+1) is Beta(j + 1, n - j). J of the counts, 1.5 standard deviations apart,
    get a one-sided bound at delta / J each (Bonferroni), and the others the bound of the next
    larger count.

    At small alpha this allows more misses than Dvoretzky-Kiefer-Wolfowitz: 70 instead of 61 of
    1,000 at alpha = 0.1, delta = 0.05, where one alpha fixed in advance allows 84. (From 100,000
    rows and alpha = 0.1 on it allows a few fewer.) The cost is one quantile, which is cached.

    Args:
        n: Rows.
        missed: Rows with a critical score above the threshold, in [0, n).
        delta: Probability that any of the bounds fails.
    """
    counts = spaced_counts(n - 1)
    count = counts[bisect_left(counts, missed)]
    return beta_quantile(1.0 - delta / len(counts), count + 1, n - count)


@lru_cache(256)
def spaced_counts(last: int) -> tuple[int, ...]:
    """Ascending counts from 0 to ``last``, 1.5 standard deviations of a Poisson count apart."""
    counts = [0]
    while counts[-1] < last:
        step = max(1, int(1.5 * math.sqrt(counts[-1])))
        counts.append(min(counts[-1] + step, last))
    return tuple(counts)


def _binomial_pmf(n: int, p: float) -> tuple[int, FloatArray]:
    """The first count with a probability above 0 in doubles, and the probabilities from there.

    Products of ratios from the mode outwards, then normalised. Differences of log-gammas would
    cancel for n around a million. By Bernstein's inequality the window misses less than
    exp(-NEGLIGIBLE).
    """
    third = NEGLIGIBLE / 3.0
    reach = third + math.sqrt(third * third + 2.0 * NEGLIGIBLE * n * p * (1.0 - p))
    first, last = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    mode = min(int((n + 1) * p), n)
    odds = p / (1.0 - p)
    up, down = np.arange(mode, last), np.arange(mode, first, -1)
    above = np.cumprod((n - up) / (up + 1) * odds)
    below = np.cumprod(down / (n - down + 1) / odds)
    pmf = np.concatenate([below[::-1], [1.0], above])
    return first, pmf / pmf.sum()


def log_factorials(n: int) -> FloatArray:
    """log(k!) for k = 0 .. n, shape (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


def _log_binomial(n: int) -> FloatArray:
    log_factorial = log_factorials(n)
    return log_factorial[n] - log_factorial - log_factorial[::-1]


def _log_beta(a: ArrayLike, b: ArrayLike) -> FloatArray:
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(np.add(a, b))


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
