"""`BackgroundStream`: no item is lost, the queue is bounded, and leaving closes the source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from app.concurrency.background_stream import MAX_QUEUED, BackgroundStream


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


def numbers(count: int) -> list[bytes]:
    """What a source gives."""
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize(
    "count", [0, 1, MAX_QUEUED - 1, MAX_QUEUED, MAX_QUEUED + 1, 5 * MAX_QUEUED]
)
def test_every_item_arrives_in_order(count: int) -> None:
    """Fewer and more than may wait; also when the first was waited for."""

    async def story(*, started: bool) -> list[bytes]:
        stream = BackgroundStream(Source(count)())
        if started:
            await stream.started()
        return await read(stream)

    for started in (False, True):
        assert asyncio.run(story(started=started)) == numbers(count)


def test_a_source_waits_for_its_reader() -> None:
    """It stops where the queue is full, and goes on with each item that is taken."""

    async def story() -> None:
        source = Source(1_000)
        stream = BackgroundStream(source())
        await asyncio.sleep(0.05)
        assert source.made == MAX_QUEUED
        items = stream.items(lambda _: b"")
        assert await anext(items) == b"0"
        await asyncio.sleep(0.05)
        assert source.made == MAX_QUEUED + 1
        await stream.stop()

    asyncio.run(story())


def test_waiting_in_vain_for_the_first_item_loses_nothing() -> None:
    """``started`` returns after its time, and the item comes later."""

    async def story() -> list[bytes]:
        stream = BackgroundStream(Source(3, pause=lambda number: 0.0 if number else 0.1)())
        await stream.started(0.001)
        return await read(stream)

    assert asyncio.run(story()) == numbers(3)


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

    async def later() -> list[bytes]:
        stream = BackgroundStream(failing(2))
        await stream.started()
        return await read(stream)

    with pytest.raises(LookupError):
        asyncio.run(first())
    assert asyncio.run(later()) == [*numbers(2), b"LookupError"]
