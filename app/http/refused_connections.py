"""What was refused before it was a request: counted, and summed up in the log now and then.

A line for each would let whoever sends rubbish write the log.
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
    """Refusals of connections, by status.

    Args:
        counter: The metric, with ``status`` as its label.
        every_s: At most one line in this time, and none when nothing was refused.
    """

    def __init__(self, counter: prometheus_client.Counter, *, every_s: float = 60.0) -> None:
        self._counter = {status: counter.labels(status) for status in STATUSES}
        self._every_s = every_s
        self._untold: Counter[int] = Counter()

    def note(self, status: int) -> None:
        """Count one; the first since the last line has the next one written."""
        self._counter[status].inc()
        if not self._untold:
            asyncio.get_running_loop().call_later(self._every_s, self._tell)
        self._untold[status] += 1

    def _tell(self) -> None:
        log.warning("connections were refused", extra={"fields": {"refused": dict(self._untold)}})
        self._untold.clear()
