"""The exact laws that realised risk follows. Vovk 2012; Angelopoulos & Bates 2021.

With n exchangeable rows, distinct critical scores and m = max{j : j/(n + 1) <= alpha}:

    risk given the calibration set  ~  Beta(m, n + 1 - m)
    misses among N future queries   ~  BetaBinomial(N, m, n + 1 - m)

With ties the risk is stochastically smaller. Written with numpy and ``math.lgamma``, so that
the package needs no scipy; the tests compare with scipy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from racer_core.types import FloatArray


def binomial_cdf(n: int, p: float) -> FloatArray:
    """P(Bin(n, p) <= c) for c = 0 .. n, shape (n + 1,)."""
    c = np.arange(n + 1)
    log_pmf = _log_binomial(n) + c * math.log(p) + (n - c) * math.log1p(-p)
    return np.minimum(np.cumsum(np.exp(log_pmf)), 1.0)


def beta_binomial_interval(trials: int, a: int, b: int, level: float = 0.95) -> tuple[int, int]:
    """Central interval of BetaBinomial(trials, a, b) that holds at least ``level``; a, b >= 1."""
    k = np.arange(trials + 1)
    log_pmf = _log_binomial(trials) + _log_beta(k + a, trials - k + b) - _log_beta(a, b)
    cdf = np.cumsum(np.exp(log_pmf))
    tail = (1.0 - level) / 2.0
    return int(np.searchsorted(cdf, tail)), int(np.searchsorted(cdf, 1.0 - tail))


def beta_quantile(q: float, a: int, b: int) -> float:
    """The q-quantile of Beta(a, b) for whole a, b >= 1.

    Uses P(Beta(a, b) <= x) = P(Bin(a + b - 1, x) >= a), a continuous increasing function of x,
    and halves the bracket until it is no wider than a double can show.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        below = 1.0 - binomial_cdf(a + b - 1, middle)[a - 1]
        low, high = (middle, high) if below < q else (low, middle)
    return (low + high) / 2.0


def _log_binomial(n: int) -> FloatArray:
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    return log_factorial[n] - log_factorial - log_factorial[::-1]


def _log_beta(a: ArrayLike, b: ArrayLike) -> FloatArray:
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(np.add(a, b))


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
