"""Settings of logs and traces (section `telemetry`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from app.settings.base import Frozen, http_url


def _collector_url(url: str) -> str:
    return http_url(url, cure="set $OTEL_EXPORTER_OTLP_HEADERS instead")


class TelemetrySettings(Frozen):
    """Format of logs, and export of traces; metrics are always on."""

    log: Literal["text", "json"] = "json"
    """Log format: `json` or `text`; unset: `text` on a terminal."""
    log_prompts: bool = False
    """Write prompts and answers to logs and traces."""
    otlp_endpoint: Annotated[str, AfterValidator(_collector_url)] | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP); `/v1/traces` is added. Without it
    `$OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `$OTEL_EXPORTER_OTLP_ENDPOINT` counts."""
