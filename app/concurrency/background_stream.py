"""A stream in a task of its own: its deadline and clean-up stay with the task that began it.

The web framework iterates a response in another task than the one that made it; a time limit or a
connection must not change tasks. Leaving the stream cancels the task, hence the calls inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

_QUEUE: Final = 64  # events that may wait for a slow reader before the source waits too

_Item = bytes | Exception | None  # None is the end


class BackgroundStream:
    """Iterates ``source`` in a task and hands its items on to one reader."""

    def __init__(self, source: AsyncGenerator[bytes]) -> None:
        self._items: deque[_Item] = deque()
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._head: bytes | None = None
        self._task = asyncio.create_task(self._drain(source))

    async def _drain(self, source: AsyncGenerator[bytes]) -> None:
        end: Exception | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    self._put(item)
                    while len(self._items) >= _QUEUE:
                        self._room.clear()
                        await self._room.wait()
        except Exception as exc:  # noqa: BLE001 - handed to whoever reads
            end = exc
        self._put(end)

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        self._some.set()

    async def _next(self) -> _Item:
        if not self._items:
            self._some.clear()
            await self._some.wait()
        self._room.set()
        return self._items.popleft()

    async def started(self, timeout_s: float | None = None) -> None:
        """Wait for the first item, at most so long; an error before it is raised here."""
        try:
            async with asyncio.timeout(timeout_s):
                head = await self._next()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self.stop()
            raise
        if isinstance(head, Exception):
            raise head
        if head is None:  # an empty source: its end is still to be read
            self._put(None)
        self._head = head

    async def items(self, on_error: Callable[[Exception], bytes]) -> AsyncIterator[bytes]:
        """The items; an error after the first becomes the last item, never a silent end."""
        try:
            item = self._head or await self._next()
            while item is not None:
                if isinstance(item, Exception):
                    yield on_error(item)
                    return
                yield item
                item = await self._next()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel the source and wait until it has cleaned up."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
