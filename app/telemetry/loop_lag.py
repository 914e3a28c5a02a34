"""Event loop lag: how late the event loop runs what is due.

Every request waits that long when something blocks the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Self

from prometheus_client import Gauge

EVERY_S: Final = 0.25
_WINDOW: Final = 60  # measurements, 15 s: a Prometheus that scrapes every 15 s misses none


class LoopLag:
    """Measures in the background how much longer a sleep took, and shows the window's maximum."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._lags_s: deque[float] = deque(maxlen=_WINDOW)

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
            self._lags_s.append(max(0.0, time.monotonic() - due))
            self._gauge.set(max(self._lags_s))
