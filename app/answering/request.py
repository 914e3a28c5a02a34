"""One request, from what was asked to what is known while candidates answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from app.answering.vote import Vote
from app.routing.decision import CertifiedDecision
from app.routing.reasons import Reason
from app.routing.service import RoutingRequest
from app.wire.format import ApiFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest(RoutingRequest):
    """One request, translated."""

    api_format: ApiFormat
    fields: Mapping[str, Any]  # what candidates are sent
    leader: bool = False  # stream the best candidate at once
    session: str | None = None  # keeps its set for a time
    spend: Callable[[int], None] = lambda _: None  # told the tokens in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """A request under way."""

    request: InferenceRequest
    decision_id: str
    routed: CertifiedDecision
    vote: Vote
    started: float  # monotonic
    deadline: float  # monotonic
    shadow_rate: float | None  # everyone is called, for a sample that is judged in full
    replacements: tuple[str, ...] | None = None  # of a set that failed: the surviving pool's set

    @property
    def selected(self) -> tuple[str, ...]:
        """The set that answers."""
        return self.routed.decision.selected

    @property
    def called(self) -> tuple[str, ...]:
        """Whom the request calls: the set, and everyone else where a sample is judged in full.

        Where nobody is selected, too: a query that was refused for no reason is a miss.
        """
        if self.replacements is not None:
            return self.replacements
        if self.shadow_rate is None:
            return self.selected
        pool = self.routed.certificate.pool
        return (*self.selected, *(name for name in pool if name not in self.selected))

    def led_by_the_best(self) -> Self:
        """The same, but only the best candidate of the set is called."""
        if len(self.selected) < 2:
            return self
        return replace(self, routed=self.routed.calling(self.selected[:1], Reason.LEADER))
