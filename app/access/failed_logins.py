"""Rate limit of failed logins (wrong API keys) per client address.

Only requests with a wrong key are limited. A valid key is always accepted: behind a proxy all
clients have one address, and one of them must not lock out the others.
"""

from __future__ import annotations

import ipaddress
import math
import time
from typing import Final

from cachetools import LRUCache

from app.access.lease import Clock
from app.errors import RateLimited

MAX_ADDRESSES: Final = 10_000
_WINDOW_S: Final = 60.0


class FailedLogins:
    """Failures of each address in a window of one minute, which its first failure starts.

    Args:
        per_minute: Failures of one address before it is limited.
        clock: Monotonic time in seconds.
        max_addresses: Addresses in memory; the least recent one is forgotten first.
    """

    def __init__(
        self,
        per_minute: int,
        clock: Clock = time.monotonic,
        *,
        max_addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._limit = per_minute
        self._clock = clock
        self._windows: LRUCache[str, tuple[float, int]] = LRUCache(max_addresses)

    def limit_to(self, per_minute: int) -> None:
        """Take another limit; failures so far stay counted."""
        self._limit = per_minute

    def record(self, address: str) -> None:
        """Count a wrong key. Raises RateLimited above the limit."""
        key, now = network(address), self._clock()
        since, count = self._windows.get(key, (now, 0))
        if now - since >= _WINDOW_S:
            since, count = now, 0
        self._windows[key] = (since, count + 1)
        if count >= self._limit:
            raise RateLimited(
                "too many wrong keys from this address",
                retry_after_s=max(1, math.ceil(since + _WINDOW_S - now)),
            )


def network(address: str) -> str:
    """The IPv4 address, also of an IPv4-mapped one, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:  # the form of IPv4 clients on a socket bound to `::`
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
