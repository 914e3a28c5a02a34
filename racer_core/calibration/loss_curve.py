"""Conformal risk control: the total loss of the rows as a step function of the threshold.

Serves the losses that no order statistic describes: graded losses and those of whole conversations,
which fall in several steps as the set grows, and rows of unequal weights. With n rows of losses in
[0, 1] and weights w_i

    lambda_hat = min {lambda : (sum_i w_i loss_i(lambda) + w_max) / (sum_i w_i + w_max) <= alpha}

among the scores at which some loss falls; +inf if there is none. Without weights every w is 1.

**Theorem.** If rows and query are exchangeable and losses do not grow with lambda, then
E[loss(lambda_hat)] <= alpha. If w(x) is the density ratio of the served queries to the rows, up to
a constant, and w_max bounds it over the served queries, the same holds for served queries: the
exact rule has the query's own w(x) in place of w_max, and its left-hand side grows with that
weight, so w_max gives a larger threshold. That costs at most w_max / (sum_i w_i + w_max) of alpha.

All sums are integers: losses times ``SCALE``, weights on a scale that leaves no overflow. One
division of integers, which Python rounds to the nearest double, is compared with alpha, as in
Algorithm 1. For losses of 0 and 1 and equal weights the threshold is that of ``threshold.py``.

References: Angelopoulos, Bates, Fisch, Lei & Schuster 2024 (conformal risk control), Theorem 1;
Tibshirani, Barber, Candes & Ramdas 2019 (covariate shift); Bates, Angelopoulos, Lei, Malik & Jordan
2021 (Hoeffding-Bentkus bound, for ``delta``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.laws import binomial_cdf_at
from racer_core.errors import CalibrationError
from racer_core.types import FloatArray, checked_alpha

SCALE: Final = 10**6  # a loss of 1 as an integer; qualities are rounded to multiples of 1e-6
IntArray = NDArray[np.int64]


def scaled_losses(values: FloatArray) -> IntArray:
    """Numbers in [0, 1] as integers from 0 to ``SCALE``."""
    return np.rint(values * SCALE).astype(np.int64)


def scaled_weights(weights: FloatArray, max_weight: float) -> tuple[IntArray, int]:
    """Weights as integers of at least 1, and ``max_weight`` on the same scale.

    An integer 1 is ``max_weight`` / 2^32 for 1,000 rows, and twice that for twice as many, so that
    no sum of weighted losses overflows; 2 million rows leave 2^-21.
    """
    scale = 2 ** (42 - len(weights).bit_length())
    return np.maximum(np.rint(weights / max_weight * scale), 1.0).astype(np.int64), scale


def shortfall_steps(nonconformity: FloatArray, quality: IntArray) -> tuple[FloatArray, IntArray]:
    """Scores at which each row's shortfall falls, ascending, and by how much; shapes (n, K).

    The shortfall of a set C is max over the pool of quality - max over C of quality; the empty set
    falls short by the whole best.

    Args:
        nonconformity: s, shape (n, K).
        quality: Integers from 0 to ``SCALE``, shape (n, K).
    """
    order = np.argsort(nonconformity, axis=1, kind="stable")
    best_called = np.maximum.accumulate(np.take_along_axis(quality, order, axis=1), axis=1)
    scores = np.take_along_axis(nonconformity, order, axis=1)
    return scores, np.diff(best_called, axis=1, prepend=0)


def unit_steps(
    scores: FloatArray, drops: IntArray, units: NDArray[np.int64]
) -> tuple[FloatArray, IntArray]:
    """Scores at which the mean loss of each unit's rows falls, and by how much, shape (n S, 1).

    The mean is rounded up to a multiple of 1 / ``SCALE`` at every score, so that no threshold is
    too small.

    Args:
        scores: Scores at which the losses of rows fall, shape (n, S).
        drops: By how much, shape (n, S); those of a row sum to at most ``SCALE``.
        units: The unit of each row, such as the conversation of a turn, shape (n,).
    """
    owner = np.repeat(np.unique(units, return_inverse=True)[1], scores.shape[1])
    order = np.lexsort((scores.ravel(), owner))
    owner, steps, amounts = owner[order], scores.ravel()[order], drops.ravel()[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    rows = np.diff(starts, append=len(owner))[owner] // scores.shape[1]
    fallen = np.cumsum(amounts)
    totals = np.add.reduceat(amounts, starts) if len(starts) else amounts
    left = np.cumsum(totals)[owner] - fallen  # of the unit, after each step
    after, before = -(-left // rows), -(-(left + amounts) // rows)
    return steps[:, None], (before - after)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossCurve:
    """The weighted loss of all rows at every threshold.

    Attributes:
        scores: Scores at which some loss falls, ascending, shape (P,).
        left: The loss of the empty sets, then what each score leaves of it, shape (P + 1,).
        total: Sum of the weights: the loss if every row lost 1.
        largest: The largest weight of a query, times the largest loss.
        n: Number of rows, or of units of several.
    """

    scores: FloatArray
    left: IntArray
    total: int
    largest: int
    n: int

    @classmethod
    def of(
        cls,
        scores: FloatArray,
        drops: IntArray,
        *,
        weights: FloatArray | None = None,
        max_weight: float = 1.0,
        units: int | None = None,
    ) -> Self:
        """The curve of rows whose losses fall by ``drops`` at ``scores``, both of shape (n, S).

        A row's drops sum to its loss at the empty set, at most ``SCALE``. A drop at +inf is a loss
        at every finite threshold. ``units`` is the number of units whose losses the rows are parts
        of, as ``unit_steps`` returns them; None: each row is one.
        """
        integers, largest = np.ones(len(scores), np.int64), 1
        if weights is not None:
            integers, largest = scaled_weights(weights, max_weight)
        weighted = drops * integers[:, None]
        falls = weighted > 0
        where, amounts = scores[falls], weighted[falls]
        order = np.argsort(where)
        fallen = np.concatenate([np.zeros(1, np.int64), np.cumsum(amounts[order])])
        return cls(
            scores=where[order],
            left=fallen[-1] - fallen,
            total=(int(integers.sum()) if units is None else units) * SCALE,
            largest=largest * SCALE,
            n=len(scores) if units is None else units,
        )

    def allowed(self, alpha: float, delta: float | None = None) -> int:
        """The largest total loss that a threshold may leave; -1 when no finite one is valid."""
        if delta is None:
            return _allowed_mean(self.total, self.largest, checked_alpha(alpha))
        if self.largest != SCALE:
            raise CalibrationError("delta needs rows of equal weight: leave it out, or the weights")
        return _allowed_pac(self.n, checked_alpha(alpha), checked_alpha(delta, "delta"))

    def threshold(self, alpha: float, delta: float | None = None) -> float:
        """lambda_hat: the smallest score that leaves no more than the allowed loss.

        ``delta`` needs rows of equal weight.
        """
        return self.leaving(self.allowed(alpha, delta))

    def leaving(self, allowed: int) -> float:
        """The smallest score that leaves no more than this total loss; +inf for -1."""
        steps = bisect_left(self.left, True, lo=1, key=lambda left: bool(left <= allowed))
        return float(self.scores[steps - 1]) if steps < len(self.left) else math.inf

    def mean_loss(self, threshold: float) -> float:
        """The weighted mean loss of the rows at a threshold; NaN without rows."""
        steps = np.searchsorted(self.scores, threshold, side="right")
        return int(self.left[steps]) / self.total if self.total else math.nan


@dataclass(frozen=True, kw_only=True)
class RowLosses:
    """The loss of each row, which falls by ``drops`` at ``scores``.

    Attributes:
        scores: Of shape (n, S): the critical score alone where a set misses or does not.
        drops: In units of 1 / ``SCALE``, shape (n, S).
    """

    scores: FloatArray
    drops: IntArray

    @classmethod
    def of_misses(cls, critical: FloatArray) -> Self:
        """A loss of 1 below the critical score, shape (n,), and of 0 from there on."""
        scores = critical[:, None]
        return cls(scores=scores, drops=np.full(scores.shape, SCALE))

    @classmethod
    def of_shortfalls(cls, nonconformity: FloatArray, quality: FloatArray) -> Self:
        """The shortfall of the sets below the pool's best; s and qualities of shape (n, K)."""
        scores, drops = shortfall_steps(nonconformity, scaled_losses(quality))
        return cls(scores=scores, drops=drops)

    @cached_property
    def curve(self) -> LossCurve:
        """The total loss at every threshold."""
        return LossCurve.of(self.scores, self.drops)

    def at(self, lambda_hat: float) -> FloatArray:
        """The loss of each row at a threshold, in [0, 1], shape (n,)."""
        return np.where(self.scores > lambda_hat, self.drops, 0).sum(axis=1) / SCALE


@lru_cache(maxsize=4096)  # called for every request
def _allowed_mean(total: int, largest: int, alpha: float) -> int:
    """The largest loss with (loss + largest) / (total + largest) <= alpha."""
    return _last_valid(total, lambda loss: (loss + largest) / (total + largest) <= alpha)


@lru_cache(maxsize=4096)
def _allowed_pac(n: int, alpha: float, delta: float) -> int:
    """The largest loss of n rows that refutes "the risk exceeds alpha" at level delta.

    The risk falls with lambda, so that the smallest threshold that passes has risk <= alpha for
    all but a share delta of calibration sets, without a correction for the number of thresholds
    (Bates et al. 2021). The p-value is the smaller of Hoeffding's and Bentkus' bounds.
    """
    return _last_valid(n * SCALE, lambda loss: _p_value(loss, n, alpha) <= delta)


def _p_value(loss: int, n: int, alpha: float) -> float:
    mean = min(loss / (n * SCALE), alpha)
    divergence = (1.0 - mean) * math.log((1.0 - mean) / (1.0 - alpha))
    if mean > 0.0:
        divergence += mean * math.log(mean / alpha)
    bentkus = math.e * binomial_cdf_at(-(-loss // SCALE), n, alpha)
    return min(math.exp(-n * divergence), bentkus)


def _last_valid(total: int, is_valid: Callable[[int], bool]) -> int:
    """The largest loss from 0 to ``total`` that is valid, as all smaller ones are; -1 if none."""
    low, high = -1, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_valid(middle) else (low, middle - 1)
    return low
