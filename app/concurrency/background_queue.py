"""Background queue: a bounded work queue that a few tasks empty. No caller waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from app.concurrency.memory_budget import MemoryBudget
from racer_core.errors import RacerError

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class BackgroundQueue(Generic[Item]):
    """Items that wait, and the tasks that work on them while there are any.

    Args:
        work: Works on one item. An item is cancelled when the queue is closed meanwhile.
        name: Name of the tasks.
        tasks: Maximum number of items worked on at the same time.
        limit: Maximum number of items that wait.
        memory: Budget of the bytes of all items; several queues may share it.
    """

    def __init__(
        self,
        work: Callable[[Item], Awaitable[None]],
        *,
        name: str,
        tasks: int,
        limit: int,
        memory: MemoryBudget,
    ) -> None:
        self._work = work
        self._name = name
        self._max_tasks = tasks
        self._limit = limit
        self._memory = memory
        self._waiting: deque[tuple[Item, int]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def add(self, item: Item, size: int) -> bool:
        """Queue an item; returns False if the queue is full or closed. Never waits, never raises.

        Args:
            item: The item.
            size: The bytes that it holds.
        """
        if self._is_closed or len(self._waiting) >= self._limit:
            return False
        try:
            self._memory.reserve(size)
        except RacerError:
            return False
        self._waiting.append((item, size))
        if len(self._tasks) < self._max_tasks:
            task = asyncio.create_task(self._run(), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def finish(self, limit_s: float) -> None:
        """Wait until no item is left, at most ``limit_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    async def close(self) -> list[Item]:
        """Cancel the items that are worked on; returns those that were not begun."""
        self._is_closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        items = [item for item, _ in self._waiting]
        while self._waiting:
            self._memory.release(self._waiting.popleft()[1])
        return items

    async def _run(self) -> None:
        while self._waiting and not self._is_closed:
            item, size = self._waiting.popleft()
            try:
                await self._work(item)
            except Exception:
                log.exception("%s: an item failed unexpectedly", self._name)
            finally:
                self._memory.release(size)
