"""The null model: augmented scores r and augmented truth G'. Paper, Eq. (2)-(3).

The null model m0 ("no candidate is right") is always the last column.
"""

from __future__ import annotations

import numpy as np

from racer_core.errors import InputError
from racer_core.types import BoolArray, FloatArray


def checked_scores(scores: FloatArray) -> FloatArray:
    """Return router scores f as float64; refuse values that would corrupt an order statistic.

    Raises:
        InputError: Not shape (n, K), or a value is NaN or outside [0, 1]; names the first row.
    """
    f = np.asarray(scores, dtype=np.float64)
    if f.ndim != 2 or f.shape[1] == 0:
        raise InputError(f"router scores need shape (n, K) with K >= 1, not {f.shape}")
    bad = ~((f >= 0.0) & (f <= 1.0)).all(axis=1)  # NaN fails both comparisons
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"row {row + 1}: a router score is NaN or outside [0, 1]", param="scores")
    return f


def null_score(scores: FloatArray) -> FloatArray:
    """phi(x) = 1 - max_m f(x, m), shape (n,): the estimate that no candidate is right. Eq. (3).

    Comparable with f only while f are probabilities in [0, 1].
    """
    return 1.0 - scores.max(axis=1)


def augment_scores(scores: FloatArray) -> FloatArray:
    """R = (f, phi), shape (n, K + 1). Eq. (3)."""
    return np.column_stack([scores, null_score(scores)])


def augment_truth(labels: BoolArray) -> BoolArray:
    """G' = G, or {m0} where G is empty; shape (n, K) to (n, K + 1). Eq. (2)."""
    return np.column_stack([labels, ~labels.any(axis=1)])
