"""Wrong keys, counted per client address.

Only requests with a wrong key are slowed down. Who has a right one is always let in: behind a
proxy everybody has one address, and nobody should be able to lock the others out.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import Final

from app.access.client_address import network
from app.access.quotas import Clock
from app.errors import RateLimited

_WINDOW_S: Final = 60.0
_MOST_ADDRESSES: Final = 10_000  # a flood from many addresses forgets the oldest, and no more


class FailedLogins:
    """So many wrong keys a minute from one address get a plain answer."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self._most = per_minute
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def note(self, address: str) -> None:
        """Count a wrong key. Raises RateLimited when there were too many."""
        where, now = network(address), self._clock()
        since, count = self._seen.pop(where, (now, 0))
        if now - since >= _WINDOW_S:
            since, count = now, 0
        self._seen[where] = (since, count + 1)
        while len(self._seen) > _MOST_ADDRESSES:
            self._seen.popitem(last=False)
        if count >= self._most:
            raise RateLimited(
                "too many wrong keys from this address",
                retry_after_s=max(1, math.ceil(since + _WINDOW_S - now)),
            )
