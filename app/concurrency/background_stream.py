"""Background stream: an asynchronous generator iterated in a task of its own, with a bounded queue.

The web framework sends a response in another task than the one that made it. A time limit or a
connection must stay in one task, from its beginning to its clean-up. Leaving the stream cancels the
task, and so the calls inside it. Once the response has begun, the task sends the items itself: an
item wakes no second task, and the source waits where the client is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

MAX_QUEUED: Final = 64  # items that may wait for a slow reader before the source waits too

_Item = bytes | Exception | None  # None is the end


class BackgroundStream:
    """Iterates ``source`` in a task and passes its items to one reader."""

    def __init__(self, source: AsyncGenerator[bytes]) -> None:
        self._items: deque[_Item] = deque()
        self._has_items = asyncio.Event()
        self._has_room = asyncio.Event()
        self._first: bytes | None = None
        self._sink: Callable[[bytes], Awaitable[None]] | None = None
        self._task = asyncio.create_task(self._drain(source))

    async def _drain(self, source: AsyncGenerator[bytes]) -> None:
        end: Exception | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    if self._sink is not None:
                        await self._sink(item)
                        continue
                    self._put(item)
                    while len(self._items) >= MAX_QUEUED:
                        self._has_room.clear()
                        await self._has_room.wait()
        except Exception as exc:  # noqa: BLE001 - passed to the reader
            end = exc
        self._put(end)

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        self._has_items.set()

    async def _next(self) -> _Item:
        if not self._items:
            self._has_items.clear()
            await self._has_items.wait()
        self._has_room.set()
        return self._items.popleft()

    async def started(self, timeout_s: float | None = None) -> bool:
        """Whether the first item arrives, or the end; an error before it is raised here.

        Args:
            timeout_s: The longest wait; None has no limit.
        """
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._next()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            await self.stop()
            raise
        if isinstance(first, Exception):
            raise first
        if first is None:  # an empty source: the end is still to be read
            self._put(None)
        self._first = first
        return True

    async def items(self, on_error: Callable[[Exception], bytes]) -> AsyncGenerator[bytes]:
        """The items; an error after the first becomes the last item, never a silent end."""
        try:
            item = self._first or await self._next()
            while item is not None:
                if isinstance(item, Exception):
                    yield on_error(item)
                    return
                yield item
                item = await self._next()
        finally:
            await self.stop()

    async def send_to(
        self, sink: Callable[[bytes], Awaitable[None]], on_error: Callable[[Exception], bytes]
    ) -> None:
        """Send the items; an error after the first becomes the last item, never a silent end.

        Args:
            sink: Sends one item. From the last queued item on, the source's task calls it.
            on_error: Makes an item of an error.
        """
        if self._first is not None:
            await sink(self._first)
        while True:
            while self._items:
                item = self._items.popleft()
                if item is None:
                    return
                if isinstance(item, Exception):
                    await sink(on_error(item))
                    return
                await sink(item)
            self._sink = sink
            self._has_room.set()
            await self._task  # then the queue has the end

    async def stop(self) -> None:
        """Cancel the source and wait until it has cleaned up."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
