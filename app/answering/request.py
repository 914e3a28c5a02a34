"""The state of one request, from its parsed body to the calls of its candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from app.access.budgets import Reservation
from app.answering.answer_cache import CacheSlot
from app.answering.cost_meter import CostMeter
from app.answering.rounds import Rounds, RoundsVote
from app.answering.vote import Vote
from app.monitoring.samples.draw import ConversationTurn
from app.routing.decision import CertifiedDecision
from app.routing.reasons import Reason
from app.routing.request import RoutingRequest
from app.wire.format import ApiFormat


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class InferenceRequest(RoutingRequest):
    """A parsed request for an answer, independent of its API format."""

    api_format: ApiFormat
    fields: Mapping[str, Any]  # that candidates are sent
    leader: bool = False  # stream the best candidate without a vote
    session: str | None = None  # id of a session, which keeps its candidates and replicas
    cache_control: str | None = None  # its header; read only where answers are cached
    spend: Callable[[int], None] = lambda _: None  # takes the tokens at the end
    certified: Callable[[str], None] | None = None  # takes a stream's guarantee at its end
    reservation: Reservation | None = None  # of what it may cost; None: it has no budget


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class RequestState:
    """A routed request whose candidates are called."""

    request: InferenceRequest
    decision_id: str
    routed: CertifiedDecision
    vote: Vote
    started: float  # monotonic
    deadline: float  # monotonic
    sampling_rate: float  # of the shadow sample, in force for it
    shadow_rate: float | None  # the same if it was drawn; None: it was not
    turn: ConversationTurn | None = None  # by which it was drawn; None: by its decision id
    meter: CostMeter | None = None  # of its costs; None: candidates have no prices
    replacements: tuple[str, ...] | None = None  # of a set that failed: the surviving pool's set
    slot: CacheSlot | None = None  # where its answer is cached; None: it is not

    @property
    def selected(self) -> tuple[str, ...]:
        """The set that answers."""
        return self.routed.decision.selected

    @property
    def called(self) -> tuple[str, ...]:
        """The candidates to call: the set, or what replaces one that failed."""
        return self.selected if self.replacements is None else self.replacements

    @property
    def rounds(self) -> Rounds | None:
        """The state of its calls in rounds; None: they have none."""
        return self.vote.rounds if isinstance(self.vote, RoundsVote) else None

    @property
    def only(self) -> str | None:
        """The candidate that is called alone and whose answer is returned; None: there are more."""
        if self.rounds is not None:
            return self.rounds.alone
        return self.called[0] if len(self.called) == 1 else None

    def leaving_reference(self) -> Self:
        """The same, but the calls end before a named reference is called alone."""
        assert isinstance(self.vote, RoundsVote)
        return replace(self, vote=replace(self.vote, leaves_reference=True))

    def led_by_the_best(self) -> Self:
        """The same, but only the best candidate of the set is called."""
        state = replace(self, routed=replace(self.routed, is_promised=False))  # whatever the set is
        return state.by(self.selected[0], Reason.LEADER) if self.selected else state

    def by(self, name: str, reason: Reason) -> Self:
        """The same, but this candidate alone is called."""
        if self.selected == (name,):
            return self
        routed = self.routed.calling((name,), reason)
        return replace(self, routed=routed, vote=self.vote.at_once())
