"""Names to addresses. While the name server fails, the last good answer goes on serving."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

KEPT_S: Final = 300.0
PATIENCE_S: Final = 1.0  # with a name server that is slow, where an older answer is at hand


class CachingResolver(AbstractResolver):
    """Asks another resolver, and remembers for five minutes what it said."""

    def __init__(
        self, resolver: AbstractResolver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._resolver = resolver
        self._clock = clock
        # Hosts come from the configuration, so this cannot grow.
        self._last: dict[tuple[str, int, int], tuple[float, list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See :class:`aiohttp.abc.AbstractResolver`. Raises OSError."""
        key = (host, port, family)
        at, known = self._last.get(key, (0.0, []))
        usable = bool(known) and self._clock() - at < KEPT_S
        try:
            async with asyncio.timeout(PATIENCE_S if usable else None):
                found = await self._resolver.resolve(host, port, family)
        except OSError:  # a TimeoutError is one
            if usable:
                return known
            raise
        self._last[key] = (self._clock(), found)
        return found

    async def close(self) -> None:
        """Close the resolver that is asked."""
        await self._resolver.close()
