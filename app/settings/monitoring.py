"""Settings of monitoring: the decision store, feedback and drift detection (section `watching`)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Frozen


class MonitoringSettings(Frozen):
    """Storage of decisions for feedback and `racer verify`, and drift detection."""

    decisions: bool = True
    """Store every decision, without text (see `store_queries` and `store_requests`)."""
    store_queries: bool = False
    """Store the text that the router read with each decision; false: only its keyed hash."""
    keep_days: Annotated[float, Field(gt=0)] = 30.0
    """Retention of decisions in days; then they are deleted with their feedback."""
    keep_rows: Annotated[int, Field(gt=0)] = 1_000_000
    """Retention of decisions by number: the newest are kept."""
    feedback: Literal["admin", "all"] = "admin"
    """Keys whose feedback counts without review: `admin` or `all`."""
    shadow_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of decisions that are drawn for the shadow sample: all candidates answer them, in the
    background, for judging."""
    shadow_calls_per_day: Annotated[int, Field(gt=0)] | None = None
    """Calls a day that shadow samples may be expected to add; null: any number. More traffic lowers
    the sampling rates beforehand, by powers of two, and never stops the sampling."""
    store_requests: bool = False
    """Store the whole request and all answers of each shadow sample, encrypted with the key in
    `$RACER_SAMPLES_KEY`; false: nothing that contains their text."""
    false_alarm: Annotated[float, Field(gt=0, lt=1)] | None = 0.01
    """Probability of any false drift alarm of an application during one calibration; null: no drift
    detection."""
    expire_after_days: Annotated[float, Field(gt=0)] | None = None
    """Age in days from which a calibration certifies nothing (`stale:age`); null: no age does. Set
    it where few answers are judged, so that alarms see a change late (`detection` of `GET /drift`).
    """

    @model_validator(mode="after")
    def _what_is_stored_needs_decisions(self) -> Self:
        if self.store_requests and not self.decisions:
            raise ValueError(
                "store_requests needs `decisions: true`: requests are stored with decisions"
            )
        if self.store_queries and not self.decisions:
            raise ValueError(
                "store_queries needs `decisions: true`: queries are stored with decisions"
            )
        return self
