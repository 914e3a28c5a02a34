"""How late the event loop is: what every request waits for when something blocks it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Self

from prometheus_client import Gauge

EVERY_S: Final = 0.25
_LATELY: Final = 60  # measurements: one that Prometheus asks every 15 s misses none


class LoopLag:
    """Sleeps, and tells how much longer it took than it should have."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._late: deque[float] = deque(maxlen=_LATELY)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._measure(), name="loop lag")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        while True:
            due = time.monotonic() + EVERY_S  # uvloop's own clock stands still while it is blocked
            await asyncio.sleep(EVERY_S)
            self._late.append(max(0.0, time.monotonic() - due))
            self._gauge.set(max(self._late))
