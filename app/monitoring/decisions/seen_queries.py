"""Seen queries: an LRU cache of query fingerprints, so that no query is learnt from twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachetools import LRUCache

MAX_QUERIES: Final = 100_000  # about 20 MB


class SeenQueries:
    """The latest distinct queries; at first, the calibration's rows.

    Whether a query is a repeat depends on the past and on which query it is, never on its scores or
    answers. So as long as every arrival is either a repeat or a new query drawn like the rows, the
    new queries alone are drawn like the rows, however the repeats are chosen. A sample of traffic
    has repeats of its own, and new queries are rarer ones than its rows: there every arrival is
    drawn like a row, and counts.

    Args:
        rows: Fingerprints of the calibration's rows.
        limit: Maximum number of queries; the least recently recorded one is forgotten first.
    """

    def __init__(self, rows: Sequence[bytes] = (), *, limit: int = MAX_QUERIES) -> None:
        self._seen = LRUCache[bytes, None](limit)
        for row in rows[-limit:]:
            self._seen[row] = None

    def __contains__(self, fingerprint: bytes) -> bool:
        """Whether a query was seen."""
        return fingerprint in self._seen

    def record(self, fingerprint: bytes) -> bool:
        """Record a query; returns whether it was seen before."""
        seen = fingerprint in self._seen
        self._seen[fingerprint] = None  # now the most recent one
        return seen


def first_of_each(fingerprints: Sequence[bytes]) -> list[int]:
    """The first row of each query."""
    first: dict[bytes, int] = {}
    for row, fingerprint in enumerate(fingerprints):
        first.setdefault(fingerprint, row)
    return list(first.values())
