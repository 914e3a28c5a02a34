"""Near-duplicate detection by embedding: rows that are almost training rows of the router.

A keyed hash finds copies that differ in case and white space. A cosine finds changed numbers, names
and sentences, too. The router looks better on such rows than on traffic.
"""

from __future__ import annotations

from typing import Final

from racer_core.types import FloatArray

NEAR: Final = 0.95  # the cosine from which a row is a near copy


def count_near_copies(similarity: FloatArray) -> int | None:
    """How many rows are near copies of a training row, exact copies included.

    None if half of the rows are: the cosines of such an encoder, or rows of one template, do not
    tell copies apart.

    Args:
        similarity: The cosine of each row with its nearest training row, shape (n,).
    """
    near = similarity >= NEAR
    return None if near.mean() >= 0.5 else int(near.sum())
