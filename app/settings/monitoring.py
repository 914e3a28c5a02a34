"""Settings of monitoring: the decision store, feedback and drift detection (section `watching`)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Frozen


class MonitoringSettings(Frozen):
    """Decisions are kept for feedback and `racer verify`; answers never are."""

    decisions: bool = True
    """Remember every decision, never an answer."""
    store_queries: bool = False
    """Keep with a decision what the router read of its query; false: its keyed hash alone."""
    keep_days: Annotated[float, Field(gt=0)] = 30.0
    """Days that decisions are kept; then they are deleted with their feedback."""
    keep_rows: Annotated[int, Field(gt=0)] = 1_000_000
    """Decisions that are kept, the newest."""
    feedback: Literal["admin", "all"] = "admin"
    """Whose verdicts count at once: `admin` or `all`."""
    shadow_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of decisions for which everyone is called, to be judged."""
    false_alarm: Annotated[float, Field(gt=0, lt=1)] | None = 0.01
    """Probability of all drift alarms of one calibration, ever; null watches nothing."""

    @model_validator(mode="after")
    def _what_is_kept_of_decisions_has_decisions(self) -> Self:
        if self.shadow_rate > 0.0 and not self.decisions:
            raise ValueError("shadow_rate needs `decisions: true`: nobody could judge them")
        if self.store_queries and not self.decisions:
            raise ValueError("store_queries needs `decisions: true`: queries are kept with them")
        return self
