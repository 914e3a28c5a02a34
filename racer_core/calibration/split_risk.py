"""Exact law of the realised risk of one random split into calibration and test rows, with ties.

Given all N + n rows, the calibration rows are a uniformly random n of them. Sort the rows by
critical score, largest first, ties in random order, and let T be the threshold's row: the one with
``misses`` calibration rows and J test rows before it. Then

    J  ~  BetaBinomial(N, misses + 1, n - misses)

If g of the misses + J rows before T's row are strictly above T (the others tie with T), then the
missed test rows M are those of the g:

    M | J  ~  Hypergeometric(g draws from J test rows and ``misses`` calibration rows)

Without ties g = misses + J and M = J. ``realised_risk`` is the law for future queries, of which no
critical scores are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.laws import beta_binomial_pmf, log_factorials
from racer_core.types import FloatArray

_NEGLIGIBLE: Final = 1e-15
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRisk:
    """The law of the share of missed test rows.

    Attributes:
        third: Third central moment.
        interval: Central, of mass 95 % or more.
    """

    mean: float
    variance: float
    third: float
    interval: tuple[float, float]

    def of_units(self, design_effect: float) -> SplitRisk:
        """The law where units of several rows are split: approximate, and wider than the exact one.

        If the rows of a unit are all missed or none, the variance of a share grows by the design
        effect: the sum of the units' squared sizes over the sum of their sizes. 1 is exact.
        """
        wider = math.sqrt(design_effect)
        below, above = (self.mean + wider * (end - self.mean) for end in self.interval)
        return SplitRisk(
            mean=self.mean,
            variance=self.variance * design_effect,
            third=self.third * design_effect * wider,
            interval=(max(below, 0.0), min(above, 1.0)),
        )


def split_risk(calibration: FloatArray, test: FloatArray, misses: int) -> SplitRisk:
    """The law of one split, given the critical scores of all its rows.

    Args:
        calibration: Ascending critical scores, shape (n,).
        test: Critical scores in any order, shape (N,) with N >= 1.
        misses: Rows that may be missed: the threshold's rank; -1 calls the whole pool.
    """
    if misses < 0:
        return SplitRisk(mean=0.0, variance=0.0, third=0.0, interval=(0.0, 0.0))
    n, trials = calibration.size, test.size
    first, pmf = _before(trials, misses + 1, n - misses)
    before = first + np.arange(pmf.size)  # J
    rows = np.sort(np.concatenate([calibration, test]))
    thresholds = rows[rows.size - 1 - misses - before]
    above = rows.size - np.searchsorted(rows, thresholds, side="right")  # g
    if (above == misses + before).all():
        return _distinct(trials, misses + 1, n - misses)
    return _law(trials, *_missed(before, above, misses, pmf))


def _missed(
    before: _Counts, above: _Counts, misses: int, pmf: FloatArray
) -> tuple[int, FloatArray]:
    """The smallest possible M, and the probabilities from there."""
    low = max(0, int((above - misses).min()))
    total = np.zeros(int(before[-1]) + 1 - low)
    for g in map(int, np.unique(above)):
        group = above == g
        j = before[group][:, None]
        k = np.arange(max(0, g - misses), min(g, int(j[-1, 0])) + 1)
        total[k - low] += pmf[group] @ _hypergeometric(k, j, misses, g)
    return low, total


def _hypergeometric(k: _Counts, good: _Counts, bad: int, draws: int) -> FloatArray:
    """P(k of ``draws`` are good), shape (goods, k); all k >= draws - bad."""
    log = log_factorials(int(good[-1, 0]) + bad)
    possible = k <= good
    at = np.where(possible, k, good)
    rest = np.maximum(good + bad - draws, 0)
    log_pmf = (
        log[good] - log[at] - log[good - at]
        + log[bad] - log[draws - k] - log[bad - draws + k]
        - log[good + bad] + log[draws] + log[rest]
    )  # fmt: skip
    return np.where(possible, np.exp(log_pmf), 0.0)


@lru_cache(maxsize=64)
def _before(trials: int, a: int, b: int) -> tuple[int, FloatArray]:
    """The smallest J that is not negligible, and the probabilities from there."""
    pmf = beta_binomial_pmf(trials, a, b)
    kept = np.flatnonzero(pmf > _NEGLIGIBLE)
    return int(kept[0]), pmf[kept[0] : kept[-1] + 1]


@lru_cache(maxsize=64)
def _distinct(trials: int, a: int, b: int) -> SplitRisk:
    return _law(trials, *_before(trials, a, b))


def _law(trials: int, first: int, pmf: FloatArray) -> SplitRisk:
    pmf = pmf / pmf.sum()
    missed = (first + np.arange(pmf.size)) / trials
    mean = float(pmf @ missed)
    low, high = np.searchsorted(np.cumsum(pmf), (0.025, 0.975))
    return SplitRisk(
        mean=mean,
        variance=float(pmf @ (missed - mean) ** 2),
        third=float(pmf @ (missed - mean) ** 3),
        interval=(float(missed[low]), float(missed[min(high, pmf.size - 1)])),
    )
