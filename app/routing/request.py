"""Routing request: the query, its options and its caller, and the interface that answers it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from app.access.api_keys import Caller
from app.routing.applications import Membership
from app.routing.decision import CertifiedDecision, SessionTurn
from app.routing.query import Query
from app.wire.schemas import DecisionOptions
from racer_core.calibration.decision import Levels


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
            drawn_by: What draws it for a canary, as
                :class:`app.routing.active_calibration.Canary` takes it; empty: nothing does.

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


# Risk levels: the set that every alpha would select for one query.


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskLevels:
    """A decision, and the sets that other alphas would select for the same query.

    Attributes:
        routed: The decision at the alpha in force.
        found: The others; None where every alpha calls the whole pool.
        prices: Price of a call by candidate; None without prices.
    """

    routed: CertifiedDecision
    found: Levels | None = None
    prices: tuple[float, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        decisions = self.found.decisions if self.found else ()
        return {
            **self.routed.json,
            "nonconformity": self._by_name(self.found.nonconformity) if self.found else {},
            "levels": [
                {
                    "alpha": each.alpha,
                    "lambda_hat": None if each.trivial else each.lambda_hat,
                    "selected": list(each.selected),
                    "null_in_set": each.null_selected,
                    "abstained": each.abstained,
                    "cost_share": self._cost_share(each.selected),
                }
                for each in decisions
            ],
        }

    def _by_name(self, values: Sequence[float]) -> dict[str, float]:
        return dict(zip(self.routed.certificate.pool, values, strict=True))

    def _cost_share(self, names: Sequence[str]) -> float | None:
        """The price of calling these, as a share of calling all; no price is shown."""
        if self.prices is None:
            return None
        price = self._by_name(self.prices)
        return sum(price[name] for name in names) / sum(self.prices)


def alphas_for(max_alpha: float | None, used: float) -> list[float]:
    """The alphas to show: half a percent apart, with the alpha in force among them."""
    shown = {step / 200 for step in range(1, max(100, int(200 * used)) + 1)} | {used}
    return sorted(alpha for alpha in shown if max_alpha is None or alpha <= max_alpha)
