"""Nearest-neighbour search by cosine similarity: the index protocol and the exact search.

Rows have length 1; numpy only. The last bits of a product differ with its shape, so similarities
are rounded to a grid and ties go to the earlier row. A query then has the same neighbours in every
batch and process, and calibration sees the function that serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.types import FloatArray

DECIMALS: Final = 6  # grid of similarities


class Neighbours(Protocol):
    """An index of the training rows, numbered in their order."""

    def __len__(self) -> int:
        """The number of training rows, n."""
        ...

    def nearest(self, queries: FloatArray, reach: int) -> NDArray[np.intp]:
        """The ``reach`` nearest rows of each query (B, D), nearest first, shape (B, reach)."""
        ...

    def similarity(self, queries: FloatArray, rows: NDArray[np.intp]) -> FloatArray:
        """The cosine of each query (B, D) with one training row, shape (B,)."""
        ...

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """All tensors, for an artifact."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """All settings, for an artifact's manifest."""
        ...


@dataclass(frozen=True)
class ExactSearch:
    """Exact search: compares every row (n, D) with every query."""

    embeddings: NDArray[np.float32]

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild from :meth:`tensors`."""
        embeddings = tensors["embeddings"]
        if embeddings.ndim != 2:
            raise InputError(f"embeddings have shape {embeddings.shape}, expected (n, D)")
        return cls(embeddings)

    def __len__(self) -> int:
        """The number of training rows, n."""
        return len(self.embeddings)

    def nearest(self, queries: FloatArray, reach: int) -> NDArray[np.intp]:
        """The ``reach`` nearest of all rows."""
        return nearest_first(queries @ self._columns, reach)

    def similarity(self, queries: FloatArray, rows: NDArray[np.intp]) -> FloatArray:
        """The cosine of each query (B, D) with one training row, shape (B,)."""
        return np.einsum("bd,bd->b", queries, self.embeddings[rows])

    @cached_property
    def _columns(self) -> FloatArray:
        """The rows as (D, n) in double precision, copied once."""
        return self.embeddings.T.astype(np.float64)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """The rows in their order."""
        return {"embeddings": self.embeddings}

    def settings(self) -> Mapping[str, Any]:
        """Exact search has no settings."""
        return {}


def nearest_first(similarity: NDArray[np.floating[Any]], reach: int) -> NDArray[np.intp]:
    """The ``reach`` columns of each row that are most similar on the grid, shape (B, reach).

    Ties go to the earlier column. Sorts whole numbers, of which each stands for a similarity and
    its column: a fifth of the time of sorting similarities.
    """
    count = similarity.shape[1]
    steps: NDArray[np.intp] = np.rint(similarity * -(10.0**DECIMALS)).astype(np.intp)
    keys = cast("NDArray[np.intp]", steps * count + np.arange(count))
    keys.partition(reach - 1, axis=1)
    return np.sort(keys[:, :reach], axis=1) % count
