"""Export of a replica's metrics through Ray: a scrape of a node finds all of its replicas.

``GET /metrics`` reaches one replica, another one at each scrape, so its counters seem to jump.
Ray's own endpoint on every node has ``ray_racer_*`` of each replica under the tag ``replica``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Metric
from ray.util.metrics import Gauge

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0  # Ray collects every 10 s
REPLICA: Final = "replica"


class MetricsExport:
    """Copies metrics into those of Ray, which forgets a gauge that is not set for 20 s.

    All become gauges, for Ray's counters and histograms take increments only. Prometheus computes
    `rate()` and `histogram_quantile()` from the names, and a restart lowers a counter as usual.

    Args:
        replica: Name of the replica.
        collect: Collects the metrics of this process, on the event loop.
        prefix: What the names of the samples begin with.
    """

    def __init__(
        self, replica: str, collect: Callable[[], Iterable[Metric]], prefix: str = "racer_"
    ) -> None:
        self._replica = replica
        self._collect = collect
        self._prefix = prefix
        self._gauges: dict[str, Gauge] = {}

    async def run(self) -> None:
        """Copy again and again, on a thread."""
        while True:
            try:
                await asyncio.to_thread(self.copy, list(self._collect()))
            except Exception:
                log.exception("metrics cannot be exported now")
            await asyncio.sleep(EVERY_S)

    def copy(self, metrics: Iterable[Metric]) -> None:
        """Copy every sample once, but for NaN and the times at which counters were made."""
        for family in metrics:
            for name, labels, value, *_ in family.samples:
                is_wanted = name.startswith(self._prefix) and not name.endswith("_created")
                if is_wanted and not math.isnan(value):
                    gauge = self._gauge(name, family.documentation, tuple(labels))
                    gauge.set(value, {REPLICA: self._replica, **labels})

    def _gauge(self, name: str, documentation: str, labels: tuple[str, ...]) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, documentation, (REPLICA, *labels))
        return self._gauges[name]
