"""Sorts training rows into lists, and measures with how many of them a query must be compared.

k-means by cosine gives the centres. A neighbour is found where its list is probed. So the places
that the lists of held-out rows' true neighbours have, by the similarity of their centres, tell the
recall of every number of probes at once.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.encoder.base import unit_rows
from racer_core.routers.neighbours import DECIMALS, InvertedFile, nearest_first

_FOUND: Final = 0.995  # among held-out rows; 0.99 is the aim, and this the margin of a sample
_HELD_OUT: Final = 500
_LISTS_PER_ROOT: Final = 4  # lists for each square root of the rows
_ROWS_PER_LIST: Final = 64  # that k-means looks at, on average
_ROUNDS: Final = 10
_BLOCK: Final = 4096  # rows that are compared with all centres at once
_SCANNED: Final = 16  # queries that are compared with all rows at once


def sorted_into_lists(embeddings: NDArray[np.float32], reach: int, seed: int = 0) -> InvertedFile:
    """Lists for rows of length 1, probed so that the share is found of any number up to ``reach``.

    Args:
        embeddings: The training rows, shape (n, D), n >= 2.
        reach: The most nearest rows that a query will have.
        seed: Of the rows that are held out and of those that k-means begins with.
    """
    n = len(embeddings)
    drawn = np.random.default_rng(seed).permutation(n)
    held_out, others = np.split(drawn, [min(_HELD_OUT, n // 2)])
    count = round(_LISTS_PER_ROOT * math.sqrt(n))
    centres = _centres(embeddings[others[: count * _ROWS_PER_LIST]], count)
    used, owners, sizes = np.unique(
        _owners(embeddings, centres), return_inverse=True, return_counts=True
    )
    centres = centres[used]
    nearest = _nearest(embeddings, held_out, min(reach, n - 1))
    probes, recall = enough(_places(embeddings[held_out], centres, owners[nearest]))
    order = np.argsort(owners, kind="stable")
    return InvertedFile(
        embeddings=embeddings[order],
        rows=order,
        sizes=sizes,
        centres=centres,
        probes=probes,
        recall=recall,
    )


def enough(places: NDArray[np.intp]) -> tuple[NDArray[np.int64], float]:
    """The fewest probes that find the share of the j + 1 nearest, shape (J,); the least found.

    Args:
        places: Of the lists of queries' nearest rows, nearest first, shape (B, J), from 0 on.
    """
    firsts = [places[:, :count] for count in range(1, places.shape[1] + 1)]
    last = [int(np.quantile(each, _FOUND, method="inverted_cdf")) for each in firsts]
    # Never fewer for more of them, so that the k nearest are found where `reach` are looked for.
    probes: NDArray[np.int64] = 1 + np.maximum.accumulate(np.array(last))
    found = (
        np.count_nonzero(each < most) / each.size for each, most in zip(firsts, probes, strict=True)
    )
    return probes, min(found)


def _centres(rows: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """At most ``count`` centres of rows in a random order, shape (L, D)."""
    centres = rows[:count]
    for _ in range(_ROUNDS):
        owners = _owners(rows, centres)
        order = np.argsort(owners, kind="stable")
        _, starts = np.unique(owners[order], return_index=True)  # who lost all rows is gone
        centres = unit_rows(np.add.reduceat(rows[order], starts, axis=0))
    return centres


def _owners(rows: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.intp]:
    """The most similar centre of each row, shape (n,)."""
    blocks = (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
    return np.concatenate([np.argmax(block @ centres.T, axis=1) for block in blocks])


def _nearest(
    embeddings: NDArray[np.float32], held_out: NDArray[np.intp], reach: int
) -> NDArray[np.intp]:
    """The nearest rows of some rows, themselves left out, shape (B, reach)."""
    found: list[NDArray[np.intp]] = []
    for start in range(0, len(held_out), _SCANNED):
        part = held_out[start : start + _SCANNED]
        similarity = np.round(embeddings[part] @ embeddings.T, DECIMALS)
        similarity[np.arange(len(part)), part] = -np.inf
        found.append(nearest_first(similarity, reach))
    return np.concatenate(found)


def _places(
    queries: NDArray[np.float32], centres: NDArray[np.float32], lists: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The place that each of ``lists`` (B, J) has among all lists of its query, from 0 on."""
    similarity = np.round(queries.astype(np.float64) @ centres.T.astype(np.float64), DECIMALS)
    order = np.argsort(-similarity, axis=1, kind="stable")
    return np.take_along_axis(np.argsort(order, axis=1), lists, axis=1)
