"""Refused connections: a metric, and a periodic summary in the log.

One log line per refusal would let a client fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

import prometheus_client

log = logging.getLogger(__name__)

STATUSES: Final = (400, 408, 414, 431, 503)


class RefusedConnections:
    """Counts connections that are refused before there is a request, by status.

    Args:
        counter: The metric, with ``status`` as its label.
        every_s: Seconds between summaries; none is written while nothing is refused.
    """

    def __init__(self, counter: prometheus_client.Counter, *, every_s: float = 60.0) -> None:
        self._counter = {status: counter.labels(status) for status in STATUSES}
        self._every_s = every_s
        self._unlogged: Counter[int] = Counter()

    def count(self, status: int) -> None:
        """Count a refusal; the first one since the last summary schedules the next."""
        self._counter[status].inc()
        if not self._unlogged:
            asyncio.get_running_loop().call_later(self._every_s, self._log_summary)
        self._unlogged[status] += 1

    def _log_summary(self) -> None:
        log.warning("connections were refused", extra={"fields": {"refused": dict(self._unlogged)}})
        self._unlogged.clear()
