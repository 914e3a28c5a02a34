"""What the request path tells of itself as it goes, where the operator wants to hear it.

This module knows no OpenTelemetry: ``app.telemetry.metrics.otlp_tracer``, which does, is imported
only where the configuration names a collector. Elsewhere the tracer is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Protocol

from prometheus_client import Counter

from app.errors import SettingsError
from app.settings.telemetry import TelemetrySettings


class RouteSpan(Protocol):
    """One request, from its body to the last byte of its answer."""

    def answered(self, status: int) -> None:
        """This status went out."""
        ...

    def failed(self, error: str) -> None:
        """It ended with an error that nobody expected; its type, never its text."""
        ...

    def said(self, *, prompt: str | None, answer: str | None) -> None:
        """What was asked and answered, where the operator wants prompts to be written."""
        ...


class CallSpan(Protocol):
    """One call to one replica."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What tells the candidate to which trace the call belongs."""
        ...

    def answered(self, model: object, usage: Mapping[str, int]) -> None:
        """The model as the candidate names it, and its tokens by their chat names."""
        ...

    def over(self, outcome: str) -> None:
        """It ended: ``ok``, ``cancelled``, or the kind of its failure."""
        ...


class Tracer(Protocol):
    """Begins spans. Nothing here waits."""

    def route(
        self, path: str, method: str, traceparent: str | None
    ) -> AbstractContextManager[RouteSpan]:
        """A request; what happens inside belongs to it.

        Args:
            path: The route's template.
            method: The HTTP method.
            traceparent: What the client says it belongs to: a parent, and nothing else.
        """
        ...

    def decided(
        self,
        *,
        decision_id: str,
        alpha: float,
        selected: Sequence[str],
        holds: bool,
        reasons: Sequence[str],
    ) -> None:
        """What was decided for the request inside which this is called; the last word counts."""
        ...

    def call(
        self, *, candidate: str, model: object, path: str, base_url: str, attempt: int
    ) -> CallSpan:
        """A call that begins now.

        Args:
            candidate: Its name in the configuration.
            model: What it is asked for.
            path: Below the base URL, such as ``chat/completions``.
            base_url: Where it is; credentials in it are not told.
            attempt: 1 for the first.
        """
        ...

    def aggregate(self, answers: int) -> AbstractContextManager[object]:
        """So many answers are merged inside."""
        ...


def open_tracer(
    rules: TelemetrySettings, dropped: Counter
) -> AbstractAsyncContextManager[Tracer | None]:
    """The tracer that the configuration asks for; None where it names no collector.

    Args:
        rules: Where the collector is, if anywhere.
        dropped: Counts spans that did not reach it.

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
