"""Which queries came before: nothing is learnt twice from the same one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

REMEMBERED: Final = 100_000  # about 15 MB


class SeenQueries:
    """The latest distinct queries, at first the calibration's rows.

    Whether a query is a repeat depends on the past and on which query it is, never on its scores or
    answers. So as long as every arrival is either one that came before or a new one drawn like the
    rows, the new ones by themselves are drawn like the rows, however the others are chosen.

    Args:
        rows: Fingerprints of the calibration's rows.
        limit: How many are remembered; whoever came least recently is forgotten first.
    """

    def __init__(self, rows: Sequence[bytes] = (), *, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._seen = OrderedDict.fromkeys(rows[-limit:])

    def saw(self, fingerprint: bytes) -> bool:
        """Whether this query came before; it has now."""
        known = fingerprint in self._seen
        self._seen[fingerprint] = None
        self._seen.move_to_end(fingerprint)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return known
