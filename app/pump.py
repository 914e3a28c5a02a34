"""A stream in a task of its own: its deadline and clean-up stay with the task that began it.

The web framework iterates a response in another task than the one that made it; a time limit or a
connection must not change tasks. Leaving the stream cancels the task, hence the calls inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

_QUEUE: Final = 64  # events that may wait for a slow reader before the source waits too


class Pump:
    """Iterates ``source`` in a task and hands its items on."""

    def __init__(self, source: AsyncGenerator[bytes]) -> None:
        self._items: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_QUEUE)
        self._head: bytes | None = None
        self._task = asyncio.create_task(self._drain(source))

    async def _drain(self, source: AsyncGenerator[bytes]) -> None:
        end: Exception | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    await self._items.put(item)
        except Exception as exc:  # noqa: BLE001 - handed to whoever reads
            end = exc
        await self._items.put(end)

    async def started(self, timeout_s: float | None = None) -> None:
        """Wait for the first item, at most so long; an error before it is raised here."""
        try:
            async with asyncio.timeout(timeout_s):
                head = await self._items.get()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self.stop()
            raise
        if isinstance(head, Exception):
            raise head
        if head is None:  # an empty source: its end is still to be read
            self._items.put_nowait(None)
        self._head = head

    async def items(self, on_error: Callable[[Exception], bytes]) -> AsyncIterator[bytes]:
        """The items; an error after the first becomes the last item, never a silent end."""
        try:
            item = self._head or await self._items.get()
            while item is not None:
                if isinstance(item, Exception):
                    yield on_error(item)
                    return
                yield item
                item = await self._items.get()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel the source and wait until it has cleaned up."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
