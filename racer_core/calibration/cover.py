"""Greedy cover: orders candidates by the probability mass that each adds to those before it.

``prob`` and ``gap`` rate each candidate by itself, so near-copies enter a set together. Here a
candidate's nonconformity is the probability mass of correctness patterns that the candidates
before it already cover; a set stops growing once enough mass is covered.
"""

from __future__ import annotations

import numpy as np

from racer_core.types import BoolArray, FloatArray

# Sums of weights are compared on a grid, because the last bits of a product depend on the batch.
# The grid's boundaries avoid ratios of small numbers, where real masses lie.
_GRID = 1e9
_OFF_RATIOS = (5.0**0.5 - 1.0) / 2.0


def greedy_cover(
    weights: FloatArray, patterns: BoolArray, prices: FloatArray | None = None
) -> FloatArray:
    """s(x, m) = the mass covered before m was taken, shape (B, C).

    Repeatedly takes the column that covers most uncovered mass, or most uncovered mass per price.
    The order depends on the weights alone, so the sets {m : s <= lambda} are nested and calibration
    is the same as for any other score.

    Args:
        weights: W(x, g) >= 0, shape (B, P); each row sums to 1, or to 0 without information.
        patterns: The right columns of each pattern g, shape (P, C). Ties between columns are taken
            from left to right.
        prices: Price of each column, above 0, shape (C,); None ignores prices.
    """
    rows = np.arange(len(weights))
    left = weights.copy()
    member = patterns.astype(np.float64)
    missing = ~patterns.T
    covered = np.zeros(len(weights))
    score = np.empty((len(weights), patterns.shape[1]))
    taken = np.zeros(score.shape)
    for _ in range(patterns.shape[1]):
        gain = np.floor(left @ member * _GRID + _OFF_RATIOS) / _GRID
        value = gain - taken if prices is None else gain / prices - taken
        best = value.argmax(axis=1)
        score[rows, best] = covered
        taken[rows, best] = np.inf
        covered = covered + gain[rows, best]
        left *= missing[best]
    return score
