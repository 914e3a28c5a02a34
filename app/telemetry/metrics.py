"""Prometheus metrics of the gateway, and the measurement of the event loop's lag.

Each application has a registry of its own, so that tests do not share one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import cache
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Every metric of the gateway; label values come from the configuration, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "racer_requests",
            "Answered requests; `certified` and `reason` of routed ones",
            ("route", "status", "application", "certified", "reason"),
            registry=self.registry,
        )
        # Looked up once per request or call: a look-up by labels takes a lock and 2 us.
        self.requests_of = cache(self.requests.labels)
        self.in_flight = Gauge(
            "racer_requests_in_flight",
            "Requests in the gateway, waiting ones included; GET requests do not count",
            registry=self.registry,
        )
        self.connection_refusals = Counter(
            "racer_connection_refusals",
            "Connections refused before there was a request, by the status of the answer",
            ("status",),
            registry=self.registry,
        )
        self.overhead_seconds = Histogram(
            "racer_overhead_seconds",
            "Time of a decision or an answer, without the time spent waiting for candidates",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.client_disconnects = Counter(
            "racer_cancelled_requests",
            "Requests whose client left before the end of the answer",
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "racer_event_loop_lag_seconds",
            "The longest delay of the event loop within the last 15 seconds",
            registry=self.registry,
        )
        self.tasks = Gauge(
            "racer_tasks", "Unfinished tasks of the event loop", registry=self.registry
        )
        self.spans_dropped = Counter(
            "racer_spans_dropped", "Spans that did not reach the collector", registry=self.registry
        )
        self.set_size = Histogram(
            "racer_set_size",
            "Candidates selected per routed query; under the promise same_answer those called",
            buckets=(0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32),
            registry=self.registry,
        )
        self.abstained = Counter(
            "racer_abstained",
            "Routed queries for which no candidate was called",
            registry=self.registry,
        )
        self.void = Counter(
            "racer_void_certificates",
            "Decisions whose guarantee was void when the set was chosen",
            registry=self.registry,
        )
        self.calls = Counter(
            "racer_candidate_calls",
            "Calls to candidates",
            ("candidate", "outcome"),
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            "racer_candidate_seconds",
            "Time a candidate took",
            ("candidate",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.calls_of = cache(self.calls.labels)
        self.call_seconds_of = cache(self.call_seconds.labels)
        self.candidate_up = Gauge(
            "racer_candidate_up",
            "1 while at least one replica of the candidate gets calls",
            ("candidate",),
            registry=self.registry,
        )
        self.replicas = Gauge(
            "racer_candidate_replicas",
            "Replicas by the state of their circuit breaker",
            ("candidate", "state"),
            registry=self.registry,
        )
        self.buffered_bytes = Gauge(
            "racer_buffered_bytes",
            "Bytes of answers and of large payloads in memory",
            registry=self.registry,
        )
        self.ejections = Counter(
            "racer_candidate_ejections",
            "Ejections: times that a replica was taken out of service after failures",
            ("candidate",),
            registry=self.registry,
        )
        self.retries = Counter(
            "racer_candidate_retries",
            "Calls that were repeated after a failure",
            ("candidate",),
            registry=self.registry,
        )
        self.overstatements = Counter(
            "racer_candidate_overstatements",
            "Token counts of candidates that are larger than their call can have used",
            ("candidate",),
            registry=self.registry,
        )
        self.cost = Counter(
            "racer_cost",
            "What requests cost by the configured prices, in their currency",
            ("application", "pool", "candidate"),
            registry=self.registry,
        )
        self.cost_of = cache(self.cost.labels)
        self.alternative_cost = Counter(
            "racer_alternative_cost",
            "Estimates of what routed requests would have cost by other calls",
            ("application", "pool", "alternative"),
            registry=self.registry,
        )
        self.alternative_cost_of = cache(self.alternative_cost.labels)
        self.shadow_cost = Counter(
            "racer_shadow_cost",
            "What the calls cost that complete the shadow sample",
            ("application", "candidate"),
            registry=self.registry,
        )
        self.shadow_cost_of = cache(self.shadow_cost.labels)
        self.router_seconds = Histogram(
            "racer_router_seconds",
            "Time that encoder and router took for a batch",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "racer_router_batch_size",
            "Queries scored together",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "racer_router_queue", "Queries waiting for the router", registry=self.registry
        )
        self.calibration_rows = Gauge(
            "racer_calibration_rows",
            "Rows that count in the active calibration",
            registry=self.registry,
        )
        self.calibration_timestamp = Gauge(
            "racer_calibration_timestamp_seconds",
            "Unix time at which the active calibration was made; 0 while there is none",
            registry=self.registry,
        )
        self.canary_share = Gauge(
            "racer_canary_share",
            "Share of the requests that a canary calibration decides; 0 while there is none",
            registry=self.registry,
        )
        self.router_up = Gauge(
            "racer_router_up",
            "0 while the router does not respond: it is not asked, and whole pools are called",
            registry=self.registry,
        )
        self.router_up.set(1)
        self.missing = Gauge(
            "racer_missing",
            "1 while the gateway serves without this part: requests get the fallback",
            ("part",),
            registry=self.registry,
        )
        self.holds = Gauge(
            "racer_certificates_hold",
            "1 while certificates of the application's usual requests hold, as GET /readyz says",
            ("application",),
            registry=self.registry,
        )
        self.calibration_shift = Gauge(
            "racer_calibration_shift",
            "Relative change of the mean set with the active calibration, where it raised an alert",
            registry=self.registry,
        )

        self.evidence = Counter(
            "racer_evidence",
            "Checks of answers under the promise same_answer: with a verdict, or why without",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in ("verdict", "no_verdict", "timeout", "failed", "lost"):
            self.evidence.labels(outcome)  # a rate needs the zero before the first
        self.same_answer_calls = Counter(
            "racer_same_answer_calls",
            "Candidates of requests under the promise same_answer that were called, or spared",
            ("kind",),
            registry=self.registry,
        )
        self.answer_cache_requests = Counter(
            "racer_answer_cache_requests",
            "Requests of applications with an answer cache: answered from it, or not",
            ("application", "outcome"),
            registry=self.registry,
        )
        self.answer_cache_bytes = Gauge(
            "racer_answer_cache_bytes",
            "Bytes that the cached answers count for",
            ("application",),
            registry=self.registry,
        )
        self.answer_cache_evictions = Counter(
            "racer_answer_cache_evictions",
            "Cached answers that were removed before their time to make room",
            ("application",),
            registry=self.registry,
        )

    def count_decision(self, set_size: int, *, holds: bool) -> None:
        """Count a decision: the size of its set, and whether its guarantee holds."""
        self.set_size.observe(set_size)
        if not set_size:
            self.abstained.inc()
        if not holds:
            self.void.inc()

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


EVERY_S: Final = 0.25
_WINDOW: Final = 60  # measurements, 15 s: a Prometheus that scrapes every 15 s misses none


class LoopLag:
    """Measures in the background how late the event loop runs what is due; shows the maximum.

    Every request waits that long when something blocks the loop.
    """

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
