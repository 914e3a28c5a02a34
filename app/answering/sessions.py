"""Session affinity: a session keeps its first set for a time, so candidates' caches stay warm.

Such a set was not chosen for the query at hand: its certificate is void, ``pinned``.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cachetools import TTLCache

_MAX_SESSIONS: Final = 10_000


class Sessions:
    """Sets by session, in a TTL cache.

    Args:
        ttl_s: Seconds that a set is kept after the session's last turn; None keeps none.
    """

    def __init__(self, ttl_s: float | None) -> None:
        self._sets: TTLCache[bytes, tuple[str, ...]] | None = None
        if ttl_s is not None:
            self._sets = TTLCache(_MAX_SESSIONS, ttl_s)

    def set_of(self, session: str, selected: tuple[str, ...]) -> tuple[str, ...]:
        """The set that a session keeps; on its first turn ``selected``, unless that is empty."""
        if self._sets is None:
            return selected
        key = hashlib.blake2b(session.encode(), digest_size=16).digest()  # bounds the key's size
        pinned = self._sets.get(key) or selected
        if pinned:
            self._sets[key] = pinned  # its time begins anew
        return pinned
