"""DNS cache: while the name server fails or is slow, the last good answer is used."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

CACHE_S: Final = 300.0
LOOKUP_S: Final = 1.0  # limit of a look-up when a cached answer can replace it


class CachingResolver(AbstractResolver):
    """Asks another resolver every time, and caches its last answer for five minutes."""

    def __init__(
        self, resolver: AbstractResolver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._resolver = resolver
        self._clock = clock
        # Hosts come from the configuration, so this cannot grow.
        self._cache: dict[tuple[str, int, int], tuple[float, list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See :class:`aiohttp.abc.AbstractResolver`. Raises OSError."""
        key = (host, port, family)
        cached_at, cached = self._cache.get(key, (0.0, []))
        is_usable = bool(cached) and self._clock() - cached_at < CACHE_S
        try:
            async with asyncio.timeout(LOOKUP_S if is_usable else None):
                addresses = await self._resolver.resolve(host, port, family)
        except OSError:  # a TimeoutError is one
            if is_usable:
                return cached
            raise
        self._cache[key] = (self._clock(), addresses)
        return addresses

    async def close(self) -> None:
        """Close the other resolver."""
        await self._resolver.close()
