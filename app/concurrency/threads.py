"""Keep the event loop free: large documents are read on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
TextT = TypeVar("TextT", bytes, str)

SMALL_BYTES: Final = 64 * 2**10  # parsed in under a millisecond; a thread would cost more


async def off_loop(parse: Callable[[TextT], T], data: TextT) -> T:
    """``parse(data)``, on a thread when the data is large enough to be felt by other requests."""
    if len(data) <= SMALL_BYTES:
        return parse(data)
    return await asyncio.to_thread(parse, data)
