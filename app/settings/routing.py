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
    """`cpu` or `cuda`; must be the artifact's, null takes it."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """`float32` or `bfloat16`; must be the artifact's, null takes it."""


class Routing(Frozen):
    """Defaults for requests that do not say otherwise."""

    alpha: Alpha = 0.1
    """Risk level of requests that name none, and of calibrations."""
    score: Score = Score.COVER
    """Nonconformity score: `gap`, `prob`, `cover`, `cover_cost` (needs prices), `static`."""
    risk_target: RiskTarget = RiskTarget.ANSWERABLE
    """What alpha bounds: `answerable` or `paper`."""
    on_abstain: Literal["refuse", "strongest", "error"] = "refuse"
    """When nobody is likely to know: `refuse`, `strongest` (void) or `error` (422)."""
    on_infeasible: Literal["trivial", "reject"] = "trivial"
    """When rows are too few for alpha: `trivial` calls everyone, `reject` is an error."""
    text: RoutedText = "last_user"
    """What the router reads: the last user turn, or the whole `conversation`."""
    group_by: Literal["request", "key", "language"] = "request"
    """Whose threshold applies: `request`, `key` or `language`."""
    observe: Name | None = None
    """Route and remember, but call this candidate always."""
    session_ttl_s: Annotated[float, Field(gt=0)] | None = None
    """How long `x-session-id` keeps its set; null: sessions are off."""


class Pool(Frozen):
    """A part of the pool under a name of its own: the model `auto/<name>`."""

    candidates: Annotated[tuple[Name, ...], Field(min_length=1)]
    """A part of the pool, asked for as `auto/<name>`."""
    alpha: Alpha | None = None
    """Its risk level; null: `routing.alpha`."""
