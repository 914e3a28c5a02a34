"""`BackgroundStream`: no item is lost, the queue is bounded, and leaving closes the source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import product

import pytest

from app.concurrency.background_stream import MAX_QUEUED, BackgroundStream
from tests.kit.loops import on_loop

Taken = Callable[[BackgroundStream], Awaitable[list[bytes]]]


class Source:
    """Numbers, one after the other, as far as it is let."""

    def __init__(self, count: int, pause: Callable[[int], float] = lambda _: 0.0) -> None:
        self.made = 0
        self.closed = False
        self._count = count
        self._pause = pause

    async def __call__(self) -> AsyncGenerator[bytes]:
        """The items."""
        try:
            for number in range(self._count):
                await asyncio.sleep(self._pause(number))
                self.made += 1
                yield b"%d" % number
        finally:
            self.closed = True


async def read(stream: BackgroundStream) -> list[bytes]:
    """To the end; an error is its last item."""
    return [item async for item in stream.items(lambda exc: type(exc).__name__.encode())]


async def sent(stream: BackgroundStream) -> list[bytes]:
    """As ``read``; each item is sent."""
    items: list[bytes] = []

    async def sink(item: bytes) -> None:
        await asyncio.sleep(0)
        items.append(item)

    await stream.send_to(sink, lambda exc: type(exc).__name__.encode())
    return items


def numbers(count: int) -> list[bytes]:
    """What a source gives."""
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize(
    "count", [0, 1, MAX_QUEUED - 1, MAX_QUEUED, MAX_QUEUED + 1, 5 * MAX_QUEUED]
)
def test_every_item_arrives_in_order(count: int) -> None:
    """Fewer and more than may wait; also when the first was waited for."""

    async def story(taken: Taken, *, started: bool, waits: bool) -> list[bytes]:
        stream = BackgroundStream(Source(count)())
        if started:
            await stream.started()
        if waits:
            await asyncio.sleep(0.01)
        return await taken(stream)

    for taken, started, waits in product((read, sent), (False, True), (False, True)):
        assert asyncio.run(story(taken, started=started, waits=waits)) == numbers(count)


@on_loop
async def test_a_source_sends_no_faster_than_its_client_reads() -> None:
    """Behind the queue, one item is made for each that was sent, by the source's own task."""
    source = Source(1_000)
    stream = BackgroundStream(source())
    tasks: list[object] = []
    may_send = asyncio.Semaphore(0)

    async def sink(_: bytes) -> None:
        await may_send.acquire()
        tasks.append(asyncio.current_task())

    sending = asyncio.create_task(stream.send_to(sink, lambda _: b""))
    await asyncio.sleep(0.02)
    assert source.made <= MAX_QUEUED + 1
    for count in (MAX_QUEUED + 10, 20):
        for _ in range(count):
            may_send.release()
        await asyncio.sleep(0.02)
    assert source.made == len(tasks) + 1
    assert len(set(tasks[-20:])) == 1
    assert sending not in tasks[-20:]
    sending.cancel()
    await stream.stop()
    assert source.closed


@on_loop
async def test_a_source_waits_for_its_reader() -> None:
    """It stops where the queue is full, and goes on with each item that is taken."""
    source = Source(1_000)
    stream = BackgroundStream(source())
    await asyncio.sleep(0.05)
    assert source.made == MAX_QUEUED
    items = stream.items(lambda _: b"")
    assert await anext(items) == b"0"
    await asyncio.sleep(0.05)
    assert source.made == MAX_QUEUED + 1
    await stream.stop()


@pytest.mark.parametrize("read_first", [0, 1])
def test_leaving_ends_a_source_that_waits_for_room(read_first: int) -> None:
    """And its clean-up is over when ``stop`` returns."""

    async def story() -> bool:
        source = Source(1_000)
        stream = BackgroundStream(source())
        items = stream.items(lambda _: b"")
        for _ in range(read_first):
            await anext(items)
        await asyncio.sleep(0.05)
        await stream.stop()
        return source.closed

    assert asyncio.run(story())


def test_an_error_before_the_first_item_is_raised_and_after_it_is_the_last() -> None:
    """Never a silent end."""

    async def failing(count: int) -> AsyncGenerator[bytes]:
        for item in numbers(count):
            yield item
        raise LookupError

    async def first() -> None:
        await BackgroundStream(failing(0)).started()

    async def later(taken: Taken) -> list[bytes]:
        stream = BackgroundStream(failing(2))
        await stream.started()
        return await taken(stream)

    with pytest.raises(LookupError):
        asyncio.run(first())
    for taken in (read, sent):
        assert asyncio.run(later(taken)) == [*numbers(2), b"LookupError"]
