"""Polling: wait until a condition holds, in a thread or on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SEEN_S = 1.0  # ten times the goal for an upstream to see that nobody waits any more


def until(condition: Callable[[], bool], seconds: float = SEEN_S) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a condition, and fail if it does not become true in time."""
    assert until(condition, within_s), f"the condition was not true within {within_s} s"


async def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> float:
    """Wait for a condition on an event loop; returns how many seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "the condition did not become true in time"
        await asyncio.sleep(0.002)
    return time.monotonic() - started
