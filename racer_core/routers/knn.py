"""KNN router: the share of the nearest training queries that a candidate answered right.

Paper, Sec. 4.1: cosine similarity, k = 40. numpy only; exact search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.types import BoolArray

_CHUNK = 256  # rows of similarities held at once
_DECIMALS = 6


@dataclass(frozen=True)
class KnnRouter:
    """Training embeddings (n, D) of length 1, their labels (n, K), and k."""

    kind: ClassVar[str] = "knn"

    embeddings: NDArray[np.float32]
    labels: BoolArray
    k: int = 40

    @classmethod
    def fit(cls, embeddings: NDArray[np.float32], labels: BoolArray, k: int = 40) -> Self:
        """Remember the training rows; k is lowered to their number where there are fewer."""
        if not len(embeddings):
            raise InputError("no training rows")
        return cls(embeddings, labels, min(k, len(embeddings)))

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        return int(self.labels.shape[1])

    def predict(self, batch: Batch) -> RouterOutput:
        """f(x, m) = share of the k nearest training queries that m answered right.

        The last bits of a product differ with its shape, so similarities are compared on a grid and
        ties go to the earlier training row: a query gets the same scores in whatever batch.
        """
        queries = batch.encoded.embeddings.astype(np.float64)
        scores = np.empty((len(queries), self.columns))
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            similarity = np.round(queries[part] @ self._columns, _DECIMALS)
            scores[part] = self._nearest(similarity).astype(np.float64) @ self.labels / self.k
        return RouterOutput(scores)

    @cached_property
    def _columns(self) -> NDArray[np.float64]:
        """The training embeddings as (D, n) in double precision, copied once."""
        return self.embeddings.T.astype(np.float64)

    def _nearest(self, similarity: NDArray[np.float64]) -> BoolArray:
        """Which k training rows are nearest, shape (B, n)."""
        kth = -np.partition(-similarity, self.k - 1, axis=1)[:, self.k - 1 : self.k]
        nearer, equal = similarity > kth, similarity == kth
        places = self.k - nearer.sum(axis=1, keepdims=True)
        return nearer | (equal & (np.cumsum(equal, axis=1) <= places))

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """Embeddings and labels."""
        return {"embeddings": self.embeddings, "labels": self.labels.astype(np.uint8)}

    def settings(self) -> Mapping[str, Any]:
        """The number of neighbours."""
        return {"k": self.k}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors` and :meth:`settings`; InputError when they do not fit."""
        embeddings, labels, k = tensors["embeddings"], tensors["labels"], settings["k"]
        if embeddings.ndim != 2 or labels.ndim != 2 or len(embeddings) != len(labels):
            raise InputError(f"embeddings {embeddings.shape} and labels {labels.shape} do not fit")
        if not isinstance(k, int) or not 1 <= k <= len(labels):
            raise InputError(f"k is {k!r}, with {len(labels)} training rows")
        return cls(embeddings, labels.astype(bool), k)
