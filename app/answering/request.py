"""One request, from what was asked to what is known while candidates answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.answering.vote import Vote
from app.routing.decision import CertifiedDecision
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
    instead: tuple[str, ...] | None = None  # whom the surviving pool adds, where the set failed

    @property
    def selected(self) -> tuple[str, ...]:
        """The set that answers."""
        return self.routed.decision.selected

    @property
    def called(self) -> tuple[str, ...]:
        """Whom the request calls: the set, and everyone else where a sample is judged in full.

        Where nobody is selected, too: a query that was refused for no reason is a miss.
        """
        if self.instead is not None:
            return self.instead
        if self.shadow_rate is None:
            return self.selected
        pool = self.routed.certificate.pool
        return (*self.selected, *(name for name in pool if name not in self.selected))
