"""KNN router: the share of the nearest training queries that a candidate answered right.

Paper, Sec. 5.1, App. B: cosine similarity, k = 40. For ``cover`` it also returns the correctness
patterns of another number of neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.patterns import pattern_ids
from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.routers.inverted_file import InvertedFile, build_inverted_file
from racer_core.routers.neighbours import ExactSearch, Neighbours
from racer_core.routers.sparse_search import SparseSearch, exact_search
from racer_core.types import BoolArray, IdArray

EXACT_BELOW: Final = 100_000  # training rows; exact search takes 159 ms at 10^6 rows
_CHUNK = 256  # queries looked up at once


@dataclass(frozen=True)
class KnnRouter:
    """An index of the training rows, and their labels (n, K).

    Attributes:
        k: Number of neighbours in the scores.
        reach: Number of neighbours whose patterns are returned.
    """

    kind: ClassVar[str] = "knn"

    index: Neighbours
    labels: BoolArray
    k: int = 40
    reach: int = 200

    @classmethod
    def fit(
        cls,
        embeddings: NDArray[np.float32],
        labels: BoolArray,
        k: int = 40,
        reach: int = 200,
        *,
        seed: int = 0,
        exact_below: int = EXACT_BELOW,
    ) -> Self:
        """Index the training rows; ``k`` and ``reach`` are lowered to their number.

        From ``exact_below`` rows on the search is approximate, built for as many neighbours with
        the random numbers of ``seed``.
        """
        if not len(embeddings):
            raise InputError("no training rows")
        count = len(embeddings)
        k, reach = min(k, count), min(reach, count)
        exact = count < exact_below
        index: Neighbours = (
            exact_search(embeddings)
            if exact
            else build_inverted_file(embeddings, max(k, reach), seed)
        )
        return cls(index, labels, k, reach)

    def reaching(self, reach: int) -> Self:
        """The same index, returning the patterns of another number of neighbours."""
        return replace(self, reach=min(reach, len(self.labels)))

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        return int(self.labels.shape[1])

    def predict(self, batch: Batch) -> RouterOutput:
        """f(x, m) = share of the k nearest training queries that m answered right.

        A query's scores do not depend on its batch.
        """
        queries = batch.encoded.embeddings.astype(np.float64)
        scores = np.empty((len(queries), self.columns))
        patterns = np.empty((len(queries), self.reach), dtype=self._patterns.dtype)
        similarity = np.empty(len(queries))
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            nearest = self.index.nearest(queries[part], max(self.k, self.reach))
            scores[part] = self.labels[nearest[:, : self.k]].mean(axis=1)
            patterns[part] = self._patterns[nearest[:, : self.reach]]
            similarity[part] = self.index.similarity(queries[part], nearest[:, 0])
        return RouterOutput(scores, patterns, similarity)

    @cached_property
    def _patterns(self) -> IdArray:
        """The pattern id of each training row, shape (n,), as small as it can be."""
        ids = pattern_ids(self.labels)
        return ids.astype(np.min_scalar_type(int(ids.max())))

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """The training rows and their labels."""
        return {**self.index.tensors(), "labels": self.labels.astype(np.uint8)}

    def settings(self) -> Mapping[str, Any]:
        """The numbers of neighbours, and the settings of the index."""
        return {"k": self.k, "reach": self.reach, **self.index.settings()}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors` and :meth:`settings`; InputError when they do not fit."""
        index, labels = _load_index(tensors, settings), tensors["labels"]
        k, reach = settings["k"], settings["reach"]
        if labels.ndim != 2 or len(index) != len(labels):
            raise InputError(f"{len(index)} embeddings and labels {labels.shape} do not fit")
        counts = (k, reach)
        if not all(isinstance(each, int) and 1 <= each <= len(labels) for each in counts):
            raise InputError(f"k is {k!r} and reach {reach!r}, with {len(labels)} training rows")
        return cls(index, labels.astype(bool), k, reach)


def _load_index(tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Neighbours:
    """Rebuild the index that was saved; InputError when its tensors do not fit."""
    if "list_sizes" in tensors:
        return InvertedFile.load(tensors, settings)
    if "sparse_sizes" in tensors:
        return SparseSearch.load(tensors, settings)
    return exact_search(ExactSearch.load(tensors).embeddings)
