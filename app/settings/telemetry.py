"""Settings of logs and traces (section `telemetry`)."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator

from app.settings.base import Frozen, http_url


def _collector_url(url: str) -> str:
    plain = http_url(url)
    if "@" in urlsplit(plain).netloc:
        raise ValueError("must hold no credentials: set $OTEL_EXPORTER_OTLP_HEADERS instead")
    return plain


class TelemetrySettings(Frozen):
    """Format of logs, and export of traces; metrics are always on."""

    log: Literal["text", "json"] = "json"
    """Log format: `json` or `text`."""
    log_prompts: bool = False
    """Write prompts and answers to logs and traces."""
    otlp_endpoint: Annotated[str, AfterValidator(_collector_url)] | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP); `/v1/traces` is added. Without it
    `$OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `$OTEL_EXPORTER_OTLP_ENDPOINT` counts."""
