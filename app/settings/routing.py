"""How queries are routed where a request does not say otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.settings.base import Frozen
from app.settings.candidates import Name
from racer_core.records.conversation import RoutedText
from racer_core.types import RiskTarget, Score

Alpha = Annotated[float, Field(gt=0, lt=1)]


class Encoder(Frozen):
    """Must match the artifact; None takes what the artifact remembers."""

    backend: Literal["cpu", "cuda"] | None = None
    dtype: Literal["float32", "bfloat16"] | None = None


class Routing(Frozen):
    """Defaults for requests that do not say otherwise."""

    alpha: Alpha = 0.1
    score: Score = Score.COVER
    risk_target: RiskTarget = RiskTarget.ANSWERABLE
    on_abstain: Literal["refuse", "strongest", "error"] = "refuse"
    on_infeasible: Literal["trivial", "reject"] = "trivial"
    text: RoutedText = "last_user"  # what the router reads
    group_by: Literal["request", "key", "language"] = "request"  # whose threshold applies
    observe: Name | None = None  # route and log, but always call this candidate
    session_ttl_s: Annotated[float, Field(gt=0)] | None = None  # `x-session-id` keeps its set


class Pool(Frozen):
    """A part of the pool under a name of its own: the model `auto/<name>`."""

    candidates: Annotated[tuple[Name, ...], Field(min_length=1)]
    alpha: Alpha | None = None
