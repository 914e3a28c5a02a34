"""Overlap with training: when rows that repeat training queries may still calibrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from racer_core.types import RowsKind

KNOWN: Final = 0.99  # the share of known queries from which a sample is not fresh
MIN_ONCE: Final = 20  # with fewer queries that occur once, every row has to be known


def is_fresh_traffic(
    fingerprints: Sequence[bytes], trained: Collection[bytes], kind: RowsKind | None
) -> bool:
    """Whether the rows are said to be a sample of traffic, and can be a new one.

    A query that trained the router may come again in traffic, in a calibration row as in the next
    request, so such rows are exchangeable. Rows of the training file are not: their labels trained
    the router. The queries that a sample holds once show the difference, since they are rare. Of a
    query with the chance p, m training rows lack it with the chance (1 - p)^m. Where p is 1/n or
    less and the sample has n >= m/4 rows, that is 1.8 % or more; of the training file itself, or of
    a part of it, they lack none.

    Args:
        fingerprints: Of the rows' queries.
        trained: Of the queries that trained or tuned the router.
        kind: What the operator said; a guess does not excuse an overlap.
    """
    if kind is not RowsKind.TRAFFIC:
        return False
    once = [each for each, count in Counter(fingerprints).items() if count == 1]
    if len(once) < MIN_ONCE:
        return not all(each in trained for each in fingerprints)
    return sum(each in trained for each in once) <= KNOWN * len(once)
