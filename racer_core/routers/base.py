"""Router protocol, and the batch and output types of all routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.encoder.base import Encoder, EncoderOutput
from racer_core.types import FloatArray, IdArray

SCORE_DECIMALS = 6


@dataclass(frozen=True)
class Batch:
    """Queries, with embeddings computed on demand."""

    texts: Sequence[str]
    encoder: Encoder = field(repr=False)

    @cached_property
    def encoded(self) -> EncoderOutput:
        """Embeddings (B, D) of the texts, computed once."""
        return self.encoder.encode(self.texts)


@dataclass(frozen=True, slots=True)
class RouterOutput:
    """A router's output for a batch.

    Attributes:
        scores: f, shape (B, K), in [0, 1]: the predicted chance that each candidate is right.
        neighbours: Pattern ids of the nearest training rows, nearest first, shape (B, J):
            ``cover`` counts their patterns. None for routers without neighbours: ``cover`` then
            tilts the overall frequencies by the scores.
        similarity: The cosine with the nearest training row, shape (B,). None for routers without
            neighbours.
    """

    scores: FloatArray
    neighbours: IdArray | None = None
    similarity: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The scores, so that numpy takes an output for an array."""
        return np.array(self.scores, dtype=dtype, copy=copy)

    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> Self:
        """Some rows of the batch."""
        return replace(
            self,
            scores=self.scores[rows],
            neighbours=None if self.neighbours is None else self.neighbours[rows],
            similarity=None if self.similarity is None else self.similarity[rows],
        )


def on_grid(scores: FloatArray) -> FloatArray:
    """Scores rounded to 1e-6; training, calibration and serving must agree, or tau moves."""
    return np.round(scores, SCORE_DECIMALS)


class Router(Protocol):
    """A base router f. It never sees a threshold, and calibration never sees a router."""

    kind: ClassVar[str]

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        ...

    def predict(self, batch: Batch) -> RouterOutput:
        """Score every candidate for every query of the batch."""
        ...

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """All learned tensors, for an artifact."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """All settings, for an artifact's manifest."""
        ...
