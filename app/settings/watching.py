"""What is remembered of decisions, and what is watched for drift."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from app.settings.base import Frozen, http_url


class Watching(Frozen):
    """Decisions are kept for feedback and `racer verify`; answers never are."""

    decisions: bool = True
    store_queries: bool = False  # the text that the router read, and not its keyed hash alone
    keep_days: Annotated[float, Field(gt=0)] = 30.0
    keep_rows: Annotated[int, Field(gt=0)] = 1_000_000
    feedback: Literal["admin", "all"] = "admin"  # whose verdicts count
    shadow_rate: Annotated[float, Field(ge=0, le=1)] = 0.0  # decisions for which everyone is called
    # Of all drift alarms of one calibration, ever; null watches nothing.
    false_alarm: Annotated[float, Field(gt=0, lt=1)] | None = 0.01

    @model_validator(mode="after")
    def _what_is_kept_of_decisions_has_decisions(self) -> Self:
        if self.shadow_rate > 0.0 and not self.decisions:
            raise ValueError("shadow_rate needs `decisions: true`: nobody could judge them")
        if self.store_queries and not self.decisions:
            raise ValueError("store_queries needs `decisions: true`: queries are kept with them")
        return self


def _collector_url(url: str) -> str:
    plain = http_url(url)
    if "@" in urlsplit(plain).netloc:
        raise ValueError("must hold no credentials: set $OTEL_EXPORTER_OTLP_HEADERS instead")
    return plain


class Telemetry(Frozen):
    """Logs and traces. Metrics are always there."""

    log: Literal["text", "json"] = "json"
    log_prompts: bool = False
    # Traces go to an OpenTelemetry collector, over HTTP; /v1/traces is added.
    otlp_endpoint: Annotated[str, AfterValidator(_collector_url)] | None = None
