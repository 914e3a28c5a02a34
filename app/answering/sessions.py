"""Sessions keep the set of their first turn for a time, so that caches at the candidates stay warm.

A kept set was not chosen for the query at hand: its certificate is void, ``pinned``.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Final

_MAX_SESSIONS: Final = 10_000


class Sessions:
    """Sets by session; the oldest are forgotten first.

    Args:
        ttl_s: How long a set is kept after the session's last turn; None keeps none.
    """

    def __init__(self, ttl_s: float | None) -> None:
        self._ttl_s = ttl_s
        self._sets: OrderedDict[bytes, tuple[float, tuple[str, ...]]] = OrderedDict()

    def set_of(self, session: str, selected: tuple[str, ...]) -> tuple[str, ...]:
        """The set that the session keeps; ``selected`` on its first turn, unless it is empty."""
        if self._ttl_s is None:
            return selected
        now = time.monotonic()
        key = hashlib.blake2b(session.encode(), digest_size=16).digest()  # however long it is
        until, kept = self._sets.pop(key, (0.0, ()))
        if now >= until or not kept:
            kept = selected
        if kept:
            self._sets[key] = (now + self._ttl_s, kept)
        while len(self._sets) > _MAX_SESSIONS:
            self._sets.popitem(last=False)
        return kept
