"""What waits for the collector: a bounded number of spans, sent on a thread of their own.

OpenTelemetry's own processor drops without counting, and waits half a minute for a dead collector
when the gateway stops.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import Counter

log = logging.getLogger(__name__)

MOST_SPANS: Final = 4096  # a few megabytes
_BATCH: Final = 512
_SEND_EVERY_S: Final = 1.0
_GOODBYE_S: Final = 2.0  # for the last spans; a dead collector does not keep a process alive


class SpanExportQueue(SpanProcessor):
    """Spans that find no room, or that the collector does not take, are dropped and counted.

    Args:
        exporter: Sends a batch, with a time limit of its own.
        dropped: Counts the others.
    """

    def __init__(self, exporter: SpanExporter, dropped: Counter) -> None:
        self._exporter = exporter
        self._dropped = dropped
        self._waiting: deque[ReadableSpan] = deque()
        self._done = threading.Event()
        self._given_up = False
        self._sender = threading.Thread(target=self._send_on, name="spans", daemon=True)

    def open(self) -> None:
        """Begin to send."""
        self._sender.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing yet."""

    def on_end(self, span: ReadableSpan) -> None:
        """Never wait."""
        if len(self._waiting) < MOST_SPANS:
            self._waiting.append(span)
        else:
            self._dropped.inc()

    def shutdown(self) -> None:
        """Send what waits, if that can be done quickly."""
        self._done.set()
        self._sender.join(_GOODBYE_S)
        self._given_up = True
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nobody is waited for."""
        del timeout_millis
        return not self._waiting

    def _send_on(self) -> None:
        while not self._done.wait(_SEND_EVERY_S):
            self._send()
        self._send()

    def _send(self) -> None:
        while self._waiting and not self._given_up:
            count = min(_BATCH, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            if not self._is_taken(batch):
                self._dropped.inc(count)

    def _is_taken(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # the thread must live: without it every later span is lost, too
            log.exception("spans could not be sent")
            return False
