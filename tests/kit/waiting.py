"""Polling: wait until a condition holds, in a thread or on an event loop."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Any

SEEN_S = 1.0  # ten times the goal for an upstream to see that its caller has left


def until(
    condition: Callable[[], bool], seconds: float = SEEN_S, *, every_s: float = 0.005
) -> bool:
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a condition, and fail if it does not become true in time."""
    assert until(condition, within_s), f"the condition was not true within {within_s} s"


def wait_while_running(
    condition: Callable[[], bool], process: subprocess.Popen[Any], within_s: float = 30.0
) -> None:
    """Wait for a condition, and fail if the process ends before or the time is over."""

    def is_true() -> bool:
        if condition():
            return True
        assert process.poll() is None, process.communicate()
        return False

    wait_until(is_true, within_s)


async def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> float:
    """Wait for a condition on an event loop; returns how many seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "the condition did not become true in time"
        await asyncio.sleep(0.002)
    return time.monotonic() - started
