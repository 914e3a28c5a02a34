"""DNS cache: one look-up in ten seconds; while the name server fails, the last good answer.

Successive connections get the addresses of a host in rotation.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

FRESH_S: Final = 10.0  # until then the name server is not asked again
CACHE_S: Final = 300.0
LOOKUP_S: Final = 1.0  # limit of a look-up when a cached answer can replace it

Address = tuple[int, int, int, str, tuple[Any, ...]]  # as `socket.getaddrinfo` returns it
Lookup = Callable[[str, int], Awaitable[Sequence[Address]]]


async def look_up(host: str, port: int) -> Sequence[Address]:
    """Ask the system for a host's addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class DnsCache:
    """The addresses of hosts."""

    def __init__(
        self, lookup: Lookup = look_up, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        # Hosts come from the configuration, so these cannot grow.
        self._cache: dict[tuple[str, int], tuple[float, list[Address]]] = {}
        self._locks = defaultdict[tuple[str, int], asyncio.Lock](asyncio.Lock)

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host, at least one. Raises OSError."""
        key = (host, port)
        async with self._locks[key]:  # many connections at once need one look-up
            asked_at, addresses = self._cache.get(key, (-CACHE_S, []))
            if self._clock() - asked_at >= FRESH_S:
                asked_at, addresses = await self._ask(key, asked_at, addresses)
            self._cache[key] = asked_at, addresses[1:] + addresses[:1]
        return addresses

    async def _ask(
        self, key: tuple[str, int], asked_at: float, cached: list[Address]
    ) -> tuple[float, list[Address]]:
        is_usable = bool(cached) and self._clock() - asked_at < CACHE_S
        try:
            async with asyncio.timeout(LOOKUP_S if is_usable else None):
                return self._clock(), [*await self._lookup(*key)]
        except OSError:  # a TimeoutError is one
            if is_usable:
                return asked_at, cached
            raise
