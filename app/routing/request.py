"""Routing request: the query, its options and its caller, and the interface that answers it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.access.api_keys import Caller
from app.routing.applications import Membership
from app.routing.conversations import SessionTurn
from app.routing.decision import CertifiedDecision
from app.routing.query import Query
from app.routing.risk_levels import RiskLevels
from app.wire.schemas import DecisionOptions


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class RoutingRequest:
    """A request for a decision, independent of its API format."""

    query: Query
    options: DecisionOptions
    caller: Caller
    pool: str | None = None  # a named part of the pool
    application: Membership | None = None  # None: none is configured
    least_alpha: float | None = None  # that of its budget, if it states none; None: any
    turn: SessionTurn | None = None  # of the conversation of its session; None: it has none


class Routing(Protocol):
    """Decides which candidates a request calls: by a threshold, or by the fallback."""

    async def route(
        self, request: RoutingRequest, deadline: float, drawn_by: str = ""
    ) -> CertifiedDecision:
        """The decision.

        Args:
            request: The query, its options and its caller.
            deadline: A ``time.monotonic()``.
            drawn_by: What draws it for a canary, as :class:`app.routing.canary.Canary` takes it;
                empty: nothing does.

        Raises:
            InputError: Alpha outside (0, 1), or no candidate can serve this request.
            Forbidden: The key may not request this alpha or candidate.
            NotFound: A candidate that is not in the pool.
        """
        ...

    async def levels(self, request: RoutingRequest, deadline: float) -> RiskLevels:
        """The decision, and the decision at every other alpha. Raises as :meth:`route`."""
        ...

    async def without(
        self, routed: CertifiedDecision, request: RoutingRequest, failed: Collection[str]
    ) -> tuple[str, ...]:
        """The candidates to call after others failed; empty when no candidate survives."""
        ...
