"""KNN router: the share of the nearest training queries that a candidate answered right.

Paper, Sec. 4.1: cosine similarity, k = 40. numpy only; exact search. For ``cover`` it also tells
which correctness patterns a wider circle of neighbours has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.patterns import pattern_ids
from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.types import BoolArray, IdArray

_CHUNK = 256  # rows of similarities held at once
_DECIMALS = 6


@dataclass(frozen=True)
class KnnRouter:
    """Training embeddings (n, D) of length 1, their labels (n, K), and how many neighbours count.

    ``k`` neighbours vote for the scores; the patterns of ``reach`` of them are reported.
    """

    kind: ClassVar[str] = "knn"

    embeddings: NDArray[np.float32]
    labels: BoolArray
    k: int = 40
    reach: int = 200

    @classmethod
    def fit(
        cls, embeddings: NDArray[np.float32], labels: BoolArray, k: int = 40, reach: int = 200
    ) -> Self:
        """Remember the training rows; fewer than ``k`` or ``reach`` lower them to their number."""
        if not len(embeddings):
            raise InputError("no training rows")
        count = len(embeddings)
        return cls(embeddings, labels, min(k, count), min(max(k, reach), count))

    def reaching(self, reach: int) -> Self:
        """The same router, reporting the patterns of fewer or more neighbours."""
        return type(self).fit(self.embeddings, self.labels, self.k, reach)

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
        neighbours = np.empty((len(queries), self.reach), dtype=self._patterns.dtype)
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            nearest = self._nearest(np.round(queries[part] @ self._columns, _DECIMALS))
            scores[part] = self.labels[nearest[:, : self.k]].mean(axis=1)
            neighbours[part] = self._patterns[nearest]
        return RouterOutput(scores, neighbours)

    @cached_property
    def _patterns(self) -> IdArray:
        """The pattern id of each training row, shape (n,), as small as it can be."""
        ids = pattern_ids(self.labels)
        return ids.astype(np.min_scalar_type(int(ids.max())))

    @cached_property
    def _columns(self) -> NDArray[np.float64]:
        """The training embeddings as (D, n) in double precision, copied once."""
        return self.embeddings.T.astype(np.float64)

    def _nearest(self, similarity: NDArray[np.float64]) -> NDArray[np.intp]:
        """The ``reach`` nearest training rows, nearest first, shape (B, reach)."""
        last = self.reach - 1
        kth = -np.partition(-similarity, last, axis=1)[:, last : last + 1]
        nearer, equal = similarity > kth, similarity == kth
        places = self.reach - nearer.sum(axis=1, keepdims=True)
        chosen = nearer | (equal & (np.cumsum(equal, axis=1) <= places))
        rows = np.nonzero(chosen)[1].reshape(len(similarity), self.reach)
        order = np.argsort(-np.take_along_axis(similarity, rows, axis=1), axis=1, kind="stable")
        return np.take_along_axis(rows, order, axis=1)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """Embeddings and labels."""
        return {"embeddings": self.embeddings, "labels": self.labels.astype(np.uint8)}

    def settings(self) -> Mapping[str, Any]:
        """The numbers of neighbours."""
        return {"k": self.k, "reach": self.reach}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors` and :meth:`settings`; InputError when they do not fit."""
        embeddings, labels = tensors["embeddings"], tensors["labels"]
        k, reach = settings["k"], settings["reach"]
        if embeddings.ndim != 2 or labels.ndim != 2 or len(embeddings) != len(labels):
            raise InputError(f"embeddings {embeddings.shape} and labels {labels.shape} do not fit")
        if not (isinstance(k, int) and isinstance(reach, int) and 1 <= k <= reach <= len(labels)):
            raise InputError(f"k is {k!r} and reach {reach!r}, with {len(labels)} training rows")
        return cls(embeddings, labels.astype(bool), k, reach)
