"""Overlap with training: when rows that repeat training queries may still calibrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from racer_core.types import RowsKind

MAX_KNOWN: Final = 0.5  # share of known queries of a sample that repeats itself too little for more
NEVER: Final = 0.99  # share of known queries from which no sample is fresh
SLACK: Final = 2.0  # of a share that few repeats estimate
MIN_ONCE: Final = 20  # with fewer queries that occur once, every row has to be known


def is_fresh_traffic(
    fingerprints: Sequence[bytes], trained: Collection[bytes], kind: RowsKind | None
) -> bool:
    """Whether the rows are said to be a sample of traffic, and can be a new one.

    A query that trained the router may come again in traffic, in a calibration row as in the next
    request, so such rows are exchangeable. Rows of the training file are not: their labels trained
    the router. The queries that a sample holds once show the difference, since they are rare: at
    most half of them may be known. More may be known where traffic repeats itself. A row of n fresh
    rows is known to n others of traffic as often as it repeats another row of its own file, and to
    m others at most m/n times as often; distinct queries stand for rows here. Of the training file
    itself, or of a part of it, all are known.

    Args:
        fingerprints: Of the rows' queries.
        trained: Of the queries that trained or tuned the router.
        kind: What the operator said; a guess does not excuse an overlap.
    """
    if kind is not RowsKind.TRAFFIC:
        return False
    counts = Counter(fingerprints)
    once = [each for each, count in counts.items() if count == 1]
    if len(once) < MIN_ONCE:
        return not all(each in trained for each in fingerprints)
    repeating = 1.0 - len(once) / len(fingerprints)
    explained = SLACK * repeating * len(trained) / len(counts)
    limit = min(NEVER, max(MAX_KNOWN, explained))
    return sum(each in trained for each in once) <= limit * len(once)
