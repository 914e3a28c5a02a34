"""What is remembered of decisions, and what is watched for drift."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.settings.base import Frozen


class Watching(Frozen):
    """Decisions are kept for feedback and `racer verify`; prompts and answers are not."""

    decisions: bool = True
    keep_days: Annotated[float, Field(gt=0)] = 30.0
    keep_rows: Annotated[int, Field(gt=0)] = 1_000_000
    feedback: Literal["admin", "all"] = "admin"  # whose verdicts count
    shadow_rate: Annotated[float, Field(ge=0, le=1)] = 0.0  # decisions for which everyone is called
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 0.01  # of all drift alarms, ever


class Telemetry(Frozen):
    """Logs and traces. Metrics are always there."""

    log: Literal["text", "json"] = "json"
    log_prompts: bool = False
    otlp_endpoint: str | None = None  # traces go to an OpenTelemetry collector, over HTTP
