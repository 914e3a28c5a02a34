"""Threads for work that would block the event loop, such as parsing large documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
TextT = TypeVar("TextT", bytes, str)

SMALL_BYTES: Final = 64 * 2**10  # parsed in under a millisecond; a thread would cost more


async def off_loop(parse: Callable[[TextT], T], data: TextT) -> T:
    """``parse(data)``, on a thread if the data is large enough to delay other requests."""
    if len(data) <= SMALL_BYTES:
        return parse(data)
    return await asyncio.to_thread(parse, data)
