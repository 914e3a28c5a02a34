"""Principal components of embeddings: a few numbers that say what kind of query it is.

Drift detection compares these numbers of served queries with those of the calibration rows. They
are stored with decisions and calibrations, and are too few to tell the text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.types import FloatArray

COMPONENTS: Final = 6
DECIMALS: Final = 4  # the last bits of an embedding depend on the batch
_ROWS: Final = 2_000  # of which the components are computed; more rows change them little


def principal_components(
    embeddings: NDArray[np.float32], count: int = COMPONENTS
) -> NDArray[np.float32] | None:
    """The directions of largest variance, shape (D, d); None for a single row or equal rows.

    Uses evenly spaced rows if there are many.

    Args:
        embeddings: Shape (n, D).
        count: d at most.
    """
    chosen = np.unique(np.linspace(0, len(embeddings) - 1, _ROWS).astype(int))
    rows = embeddings[chosen].astype(np.float64)
    rows -= rows.mean(axis=0)
    variances, vectors = np.linalg.eigh(rows @ rows.T)
    kept = [i for i in range(len(chosen) - 1, -1, -1) if variances[i] > 1e-9][:count]
    if not kept:
        return None
    return (rows.T @ vectors[:, kept] / np.sqrt(variances[kept])).astype(np.float32)


def projected(embeddings: NDArray[np.float32], components: NDArray[np.float32]) -> FloatArray:
    """Embeddings (B, D) on the components (D, d), on a grid, shape (B, d)."""
    return np.round(embeddings.astype(np.float64) @ components, DECIMALS) + 0.0
