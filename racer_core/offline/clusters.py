"""k-means on embeddings, for RouterDC's groups of similar queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 100


def cluster(vectors: NDArray[np.float32], count: int, seed: int) -> NDArray[np.int64]:
    """The number of each row's nearest of at most ``count`` centres, shape (n,).

    Starts with k-means++ and ends when no row changes its cluster. With fewer distinct rows than
    ``count`` there are fewer clusters.
    """
    rng = np.random.default_rng(seed)
    centres = _start(vectors, count, rng)
    nearest = _nearest(vectors, centres)
    for _ in range(_ROUNDS):
        for number in range(len(centres)):
            members = vectors[nearest == number]
            if len(members):  # a centre that lost all its rows stays where it is
                centres[number] = members.mean(axis=0)
        before, nearest = nearest, _nearest(vectors, centres)
        if np.array_equal(before, nearest):
            break
    return nearest


def _start(
    vectors: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """k-means++ seeds: rows drawn with probabilities proportional to squared distance."""
    chosen = [int(rng.integers(len(vectors)))]
    distance = np.full(len(vectors), np.inf)
    while len(chosen) < count:
        gap = vectors - vectors[chosen[-1]]
        distance = np.minimum(distance, np.einsum("nd,nd->n", gap, gap).astype(np.float64))
        if not distance.sum() > 0:
            break
        chosen.append(int(rng.choice(len(vectors), p=distance / distance.sum())))
    return vectors[chosen].copy()


def _nearest(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """By squared distance, without the row's own square, which is the same for all centres."""
    squares = np.einsum("kd,kd->k", centres, centres)
    return np.argmin(squares - 2 * (vectors @ centres.T), axis=1)
