"""KNN router: the share of the nearest training queries that a candidate answered right.

Paper, Sec. 4.1: cosine similarity, k = 40. numpy only; exact search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.types import BoolArray

_CHUNK = 1_024  # rows of similarities held at once


@dataclass(frozen=True, slots=True)
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
        """f(x, m) = share of the k nearest training queries that m answered right."""
        queries = batch.encoded.embeddings
        scores = np.empty((len(queries), self.labels.shape[1]))
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            similarity = queries[part] @ self.embeddings.T
            nearest = np.argpartition(-similarity, self.k - 1, axis=1)[:, : self.k]
            scores[part] = self.labels[nearest].mean(axis=1)
        return RouterOutput(scores)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """Embeddings and labels."""
        return {"embeddings": self.embeddings, "labels": self.labels.astype(np.uint8)}

    def settings(self) -> Mapping[str, Any]:
        """The number of neighbours."""
        return {"k": self.k}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors` and :meth:`settings`."""
        return cls(tensors["embeddings"], tensors["labels"].astype(bool), int(settings["k"]))
