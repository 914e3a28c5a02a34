"""Traces: the interface that requests and upstream calls report their spans to.

This module imports no OpenTelemetry. ``app.telemetry.otlp_tracer`` does, and is imported only where
the configuration names a collector. Elsewhere the tracer is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Protocol

from prometheus_client import Counter

from app.errors import SettingsError
from app.settings.telemetry import TelemetrySettings


class RequestSpan(Protocol):
    """The span of one request, from its body to the last byte of its answer."""

    def set_status(self, status: int) -> None:
        """Record the HTTP status of the answer."""
        ...

    def set_error(self, error: str) -> None:
        """Record an unexpected error by its type, never by its text."""
        ...

    def set_texts(self, *, prompt: str | None, answer: str | None) -> None:
        """Record prompt and answer, where the operator wants prompts to be written."""
        ...


class CallSpan(Protocol):
    """The span of one call to one replica."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that tell the candidate which trace the call belongs to."""
        ...

    def set_response(self, model: object, usage: Mapping[str, int]) -> None:
        """Record the model as the candidate names it, and its tokens by their chat names."""
        ...

    def end(self, outcome: str) -> None:
        """End the span: ``ok``, ``cancelled``, or the kind of the failure."""
        ...


class Tracer(Protocol):
    """Begins spans. No method waits."""

    def request(
        self, path: str, method: str, traceparent: str | None
    ) -> AbstractContextManager[RequestSpan]:
        """Begin the span of a request; spans that begin inside the context belong to it.

        Args:
            path: The route's template.
            method: The HTTP method.
            traceparent: The client's header. It names the parent span, and nothing else of it
                counts.
        """
        ...

    def record_decision(
        self,
        *,
        decision_id: str,
        alpha: float,
        selected: Sequence[str],
        holds: bool,
        reasons: Sequence[str],
    ) -> None:
        """Record the decision of the current request; a later call replaces it."""
        ...

    def call(
        self, *, candidate: str, model: object, path: str, base_url: str, attempt: int
    ) -> CallSpan:
        """Begin the span of a call.

        Args:
            candidate: Its name in the configuration.
            model: The requested model.
            path: Below the base URL, such as ``chat/completions``.
            base_url: The replica's; credentials in it are not recorded.
            attempt: 1 for the first.
        """
        ...

    def aggregate(self, answers: int) -> AbstractContextManager[object]:
        """Begin the span in which this number of answers is merged."""
        ...


def open_tracer(
    rules: TelemetrySettings, dropped: Counter
) -> AbstractAsyncContextManager[Tracer | None]:
    """Return the configured tracer; None where the configuration names no collector.

    Args:
        rules: The collector's address, if there is one.
        dropped: Counts spans that did not reach the collector.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """
    if rules.otlp_endpoint is None:
        return nullcontext(None)
    try:
        from app.telemetry.otlp_tracer import OtlpTracer
    except ImportError as exc:
        raise SettingsError(
            "telemetry.otlp_endpoint needs OpenTelemetry, which is not installed: "
            "pip install 'racer-gateway[otel]'"
        ) from exc
    return OtlpTracer(rules.otlp_endpoint, dropped)
