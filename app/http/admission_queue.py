"""Admission queue: load shedding by limiting how many requests start per event loop iteration.

The number of running requests says little about load, because requests wait for candidates for
seconds without using the CPU. The shared resource is the event loop: each iteration runs one step
of every runnable request. So the queue admits ``ADMITTED_PER_ITERATION`` requests per iteration.

While the loop keeps up, iterations are short and no request waits. Under overload, iterations grow
until as many requests finish per iteration as start. Then (steps per request) x
``ADMITTED_PER_ITERATION`` requests are in progress, however long the queue is. The scheme measures
nothing, and none of its parameters depends on the speed of the machine.

``limits.in_flight`` bounds the queue. Short iterations let access control refuse requests beyond it
at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

ADMITTED_PER_ITERATION: Final = 2
MAX_BURST: Final = 32  # admitted at once after iterations in which fewer arrived

CallSoon = Callable[[Callable[[], None]], object]


class AdmissionQueue:
    """A first-in, first-out queue with a token bucket that is refilled per event loop iteration.

    Args:
        call_soon: Schedules a callback for the next iteration; None: the running loop's
            ``call_soon``.
    """

    def __init__(self, call_soon: CallSoon | None = None) -> None:
        self._call_soon = call_soon or _call_soon
        self._tokens = MAX_BURST
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def admit(self) -> None:
        """Wait until the request may start."""
        if self._tokens == MAX_BURST:  # otherwise a refill is scheduled already
            self._call_soon(self._refill)
        if self._tokens > 0:
            self._tokens -= 1
            return
        admission = asyncio.get_running_loop().create_future()
        self._waiting.append(admission)
        await admission

    def _refill(self) -> None:
        self._tokens = min(MAX_BURST, self._tokens + ADMITTED_PER_ITERATION)
        while self._waiting and self._tokens > 0:
            admission = self._waiting.popleft()
            if not admission.done():  # otherwise the request was cancelled
                admission.set_result(None)
                self._tokens -= 1
        if self._tokens < MAX_BURST:
            self._call_soon(self._refill)


def _call_soon(call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(call)
