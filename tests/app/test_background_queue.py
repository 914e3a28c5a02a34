"""The background queue: bounded in items and bytes, and closed without a lost item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

import pytest

from app.concurrency.background_queue import BackgroundQueue
from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded


class Work:
    """Work that waits until it is let go, and what became of it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()

    async def __call__(self, item: str) -> None:
        """Work on an item."""
        self.begun.append(item)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        if item == "bad":
            raise ValueError(item)
        self.done.append(item)


Story = Callable[[Work, BackgroundQueue[str], MemoryBudget], Coroutine[None, None, None]]


def run(story: Story) -> None:
    """Run a story with a queue of two tasks, three waiting items and ten bytes."""

    async def scene() -> None:
        work, memory = Work(), MemoryBudget(10, Overloaded, "full")
        queue = BackgroundQueue(work, name="test", tasks=2, limit=3, memory=memory)
        await story(work, queue, memory)
        assert await queue.close() == []
        assert memory.used == 0

    asyncio.run(scene())


def test_a_full_queue_refuses_and_works_in_order() -> None:
    """Two are worked on, three wait; the next finds room once one has begun."""

    async def story(work: Work, queue: BackgroundQueue[str], _: MemoryBudget) -> None:
        assert [queue.add(item, 1) for item in "ab"] == [True, True]
        await asyncio.sleep(0)
        assert [queue.add(item, 1) for item in "cdef"] == [True, True, True, False]
        assert work.begun == ["a", "b"]
        work.may_end.set()
        await queue.finish(10)
        assert work.begun == sorted(work.done) == ["a", "b", "c", "d", "e"]
        assert queue.add("g", 1)
        await queue.finish(10)
        assert work.done[-1] == "g"

    run(story)


def test_bytes_are_held_until_an_item_is_done() -> None:
    """Of a budget that other queues may share."""

    async def story(work: Work, queue: BackgroundQueue[str], memory: MemoryBudget) -> None:
        assert [queue.add("a", 8), queue.add("b", 3)] == [True, False]
        await asyncio.sleep(0)
        assert memory.used == 8
        work.may_end.set()
        await queue.finish(10)
        assert memory.used == 0
        assert queue.add("b", 10)
        await queue.finish(10)

    run(story)


def test_an_item_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Its fault is logged with the name of the queue."""

    async def story(work: Work, queue: BackgroundQueue[str], _: MemoryBudget) -> None:
        work.may_end.set()
        for item in ("bad", "bad", "a"):
            queue.add(item, 1)
        await queue.finish(10)
        assert work.done == ["a"]

    with caplog.at_level(logging.ERROR):
        run(story)
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["test", "test"]


def test_closing_cancels_what_was_begun_and_returns_the_rest() -> None:
    """A time limit for finishing ends first; a closed queue takes nothing."""

    async def story(work: Work, queue: BackgroundQueue[str], memory: MemoryBudget) -> None:
        for item in "abc":
            queue.add(item, 1)
        await queue.finish(0.01)
        assert (work.begun, work.done) == (["a", "b"], [])
        assert await queue.close() == ["c"]
        assert sorted(work.cancelled) == ["a", "b"]
        assert memory.used == 0
        assert not queue.add("d", 1)

    run(story)
