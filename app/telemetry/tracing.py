"""Traces: the interface that requests and upstream calls report their spans to.

This module imports no OpenTelemetry. ``app.telemetry.otlp_tracer`` does, and is imported only where
the configuration or the environment names a collector. Elsewhere the tracer is None.

OpenTelemetry's standard variables are read here where they say whether there are traces, and
otherwise by its own packages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Final, Protocol

from prometheus_client import Counter

from app.errors import SettingsError
from app.settings.telemetry import TelemetrySettings
from racer_core.errors import install_hint

# Those of traces before those of all signals.
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
# What stops traces, by the value that does.
_OFF: Final = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"}

log = logging.getLogger(__name__)


class RequestSpan(Protocol):
    """The span of one request, from its body to the last byte of its answer."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hexadecimal digits."""
        ...

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
    """Return the tracer; None where no collector is named, or the environment turns traces off.

    It does by `$OTEL_SDK_DISABLED`, by `$OTEL_TRACES_EXPORTER`, and by another protocol for the
    collector that it names: spans sent by HTTP would be lost one by one. That is a warning, for
    injectors set such variables for all pods alike.

    Args:
        rules: The collector's address, which goes before that of the environment.
        dropped: Counts spans that did not reach the collector.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """
    named_by = _named_by(rules)
    if named_by is None or any(_is(variable, off) for variable, off in _OFF.items()):
        return nullcontext(None)
    variable = _first_set(_PROTOCOLS)
    if rules.otlp_endpoint is None and variable is not None and not _is(variable, _PROTOCOL):
        log.warning(
            "no traces: $%s is %s, and they are sent by %s only. Set it to that, and %s to the "
            "collector's port for it, usually 4318",
            variable,
            os.environ[variable],
            _PROTOCOL,
            named_by,
        )
        return nullcontext(None)
    try:
        from app.telemetry.otlp_tracer import OtlpTracer
    except ImportError as exc:
        raise SettingsError(
            f"{named_by} needs OpenTelemetry, which is not installed: {install_hint('otel')}"
        ) from exc
    return OtlpTracer(rules.otlp_endpoint, dropped)


def _named_by(rules: TelemetrySettings) -> str | None:
    """What names the collector: the setting, a variable, or nothing."""
    if rules.otlp_endpoint is not None:
        return "telemetry.otlp_endpoint"
    variable = _first_set(_ENDPOINTS)
    return variable and f"${variable}"


def _is(variable: str, value: str) -> bool:
    return os.environ.get(variable, "").strip().lower() == value


def _first_set(variables: Sequence[str]) -> str | None:
    return next((each for each in variables if os.environ.get(each)), None)
