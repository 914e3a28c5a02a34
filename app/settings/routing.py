"""Settings of routing: alpha, scores, abstention, groups (section `routing`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from app.settings.base import Alpha, Frozen
from app.settings.budgets import Budget
from app.settings.candidates import Name
from racer_core.types import RiskTarget, Score

WHOLE_POOL = "whole_pool"  # of `routing.fallback` and `routing.on_uncovered`: all candidates
SET = "set"  # of `routing.on_uncovered`: the set that the threshold selects


class EncoderSettings(Frozen):
    """Expected backend and format of the encoder, and the process that it runs in."""

    backend: Literal["cpu", "cuda"] | None = None
    """`cpu` or `cuda`; must match the artifact. Null: the artifact's."""
    dtype: Literal["float32", "bfloat16", "int8"] | None = None
    """`float32`, `bfloat16` or `int8`; must match the artifact. Null: the artifact's."""
    socket: Path | None = None
    """Unix socket of `racer encoder`, which computes scores for all gateways of this machine; null:
    each gateway has an encoder of its own."""


class Routing(Frozen):
    """Defaults of requests and of calibrations."""

    alpha: Alpha = 0.1
    """Risk level that is served; `applications.NAME.alpha` and `pools.NAME.alpha` come first. With
    the bound alpha where it stood here before the rows of the calibration were uploaded, else with
    the one that certificates name."""
    levels: Annotated[tuple[Alpha, ...], Field(max_length=8)] = (0.01, 0.02, 0.05, 0.1, 0.2)
    """Risk levels to which `alpha` may change without new rows: what stands here when rows are
    uploaded is declared before they are seen, and costs less than any other level."""
    score: Score = Score.COVER
    """Nonconformity score: `gap`, `prob`, `cover`, `cover_cost` (needs prices), `static`."""
    risk_target: RiskTarget = RiskTarget.ANSWERABLE
    """Which risk alpha bounds: `answerable`, `paper` or `quality`."""
    on_abstain: Literal["refuse", "strongest", "error"] | None = None
    """When no candidate is likely right: `refuse`, `strongest` (void) or `error` (422); null:
    `refuse`, and `strongest` for requests with tools."""
    on_infeasible: Literal["trivial", "reject"] = "trivial"
    """With too few rows for alpha: `trivial` calls all candidates, `reject` is an error."""
    text: Literal["last_user", "conversation"] = "last_user"
    """What the router reads: `last_user`, the last user turn, or the whole `conversation`."""
    group_by: Literal["request", "key", "language"] = "request"
    """What determines the group, hence the threshold: `request`, `key` or `language`."""
    fallback: Name | None = None
    """What answers `auto` until a calibration is active: a candidate, or `whole_pool`; null: the
    first candidate. Certificates are void."""
    on_uncovered: Name = SET
    """What answers requests that no calibration row covers, so that certificates are void: `set`,
    what the threshold selects (the fallback where there is none); `whole_pool`; or a candidate."""
    observe: Name | None = None
    """Observe mode: route and record decisions, but always call this candidate."""
    session_ttl_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a session (`x-session-id`) keeps its candidates; null: sessions are off."""


class Pool(Frozen):
    """A subset of the pool: the model `auto/<name>`."""

    candidates: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Candidates of the model `auto/<name>`."""
    alpha: Alpha | None = None
    """Risk level of this model; null: that of the application, else `routing.alpha`."""
    budget: Budget | None = None
    """As the section `budget`, for requests to this model."""
