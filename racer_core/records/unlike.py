"""Queries unlike the rows: less like what trained the router than nearly all rows are.

A set is chosen from what the router learned of similar questions. Where a query is similar to none,
the router's scores of it are a guess, whatever they are. Rows tell how similar queries usually are.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from racer_core.types import FloatArray

SHARE: Final = 0.01  # of queries that are drawn like the rows, at most so many are called unlike


def least_similarity(similarity: FloatArray) -> float | None:
    """The cosine below which a query is unlike the rows.

    It is the k-th smallest of n, with the largest k <= SHARE (n + 1). A query that is drawn like
    the rows is below it with probability k/(n + 1) at most, for each rank of it among them is
    equally likely. None for fewer than 99 rows.

    Args:
        similarity: The cosine of each row with its nearest training row, shape (n,).
    """
    place = math.floor(SHARE * (similarity.size + 1))
    return None if place == 0 else float(np.partition(similarity, place - 1)[place - 1])
