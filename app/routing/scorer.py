"""The interface of router backends: a thread of this process, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from racer_core.trained_router import RouterScores
from racer_core.types import IdArray


@dataclass(frozen=True, slots=True)
class ScoredQuery:
    """Router scores f of one query in the order of the pool, and what else the router reports.

    Attributes:
        scores: One a candidate.
        truncated: The encoder cut the query.
        neighbours: Pattern ids of its nearest training rows.
        projection: Its embedding on the artifact's components.
        similarity: Its cosine with the nearest training row.
    """

    scores: list[float]
    truncated: bool
    neighbours: IdArray | None
    projection: tuple[float, ...] | None = None
    similarity: float | None = None

    @property
    def usable(self) -> bool:
        """Whether all scores are probabilities; with NaN, candidates have no order."""
        return all(0.0 <= score <= 1.0 for score in self.scores)


class RouterBackend(Protocol):
    """Scores queries, many rows, and embeds texts."""

    async def score(self, query: str) -> ScoredQuery:
        """Score one query; cancellation gives up its place in the queue.

        Raises:
            Overloaded: Too many queries wait, or this one waited too long.
        """
        ...

    def score_rows(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> RouterScores:
        """Score many rows, after live queries. Blocks the calling thread, not the event loop's.

        Args:
            texts: The texts of the rows.
            progress: Called with the number of scored rows and of all rows; an exception that it
                raises ends the scoring.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D), each of length 1."""
        ...


def room_for(part: RouterScores, count: int) -> RouterScores:
    """An empty result for ``count`` rows, to be filled slice by slice, without a second copy."""
    near, projections = part.neighbours, part.projections
    return RouterScores(
        np.empty((count, part.scores.shape[1])),
        np.empty(count, bool),
        None if near is None else np.empty((count, near.shape[1]), near.dtype),
        None if projections is None else np.empty((count, projections.shape[1])),
        None if part.similarity is None else np.empty(count),
    )


def put(part: RouterScores, whole: RouterScores, rows: Sequence[int]) -> None:
    """Write the scores of a slice to the places of its rows."""
    whole.scores[rows], whole.truncated[rows] = part.scores, part.truncated
    if whole.neighbours is not None and part.neighbours is not None:
        whole.neighbours[rows] = part.neighbours
    if whole.projections is not None and part.projections is not None:
        whole.projections[rows] = part.projections
    if whole.similarity is not None and part.similarity is not None:
        whole.similarity[rows] = part.similarity
