"""The outcome of a request, with its wire forms: the ``racer`` object and the x-racer headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from app.answering.cost_meter import RequestCost
from app.answering.fan_out import FanOutResult
from app.answering.request import RequestState
from app.judging.evaluator import UNRATED, Ratings
from app.monitoring.decisions.record import RequestEnd
from app.monitoring.samples.draw import ConversationTurn
from app.routing.decision import CertifiedDecision, ServedCertificate
from app.routing.premises import failure_reasons
from app.routing.reasons import Reason
from app.upstream.reply import Reply
from racer_core.types import Aggregate

CACHE_HEADER: Final = "x-racer-cache"


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class EarlierAnswer:
    """A cached answer that is returned once more, and the request that it answered first."""

    decision_id: str
    age_s: float  # since that answer

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return {"decision_id": self.decision_id, "age_s": round(self.age_s, 3)}


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Outcome:
    """A routed request with its answers and its result."""

    decision_id: str
    routed: CertifiedDecision
    certificate: ServedCertificate  # of the decision, with the failures since
    body: dict[str, Any] = field(default_factory=dict[str, Any])  # what is returned
    answers: tuple[Reply, ...] = ()
    forms: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])  # of the vote
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # name -> kind
    cancelled: tuple[str, ...] = ()  # called, then not waited for: the vote was decided
    skipped: tuple[str, ...] = ()  # not called: the vote was decided before
    merged: Aggregate | None = None
    ratings: Ratings = UNRATED  # the weights of the votes
    overhead_ms: float = 0.0
    sampling_rate: float | None = None  # in force for the request; None: no candidate answers it
    shadow_rate: float | None = None  # of the shadow sample to which the request belongs
    turn: ConversationTurn | None = None  # by which the sample drew it
    cost: RequestCost | None = None  # None: candidates have no prices, or none could be called
    explain: bool = False
    ended: RequestEnd = RequestEnd.ANSWERED
    is_cacheable: bool = False  # its answer is no cached one, but may be cached
    repeats: EarlierAnswer | None = None

    @classmethod
    def of(
        cls,
        state: RequestState,
        results: FanOutResult,
        *,
        answer: Mapping[str, Any] | None = None,
        ratings: Ratings = UNRATED,
        merged: Aggregate | None = None,
        overhead_ms: float = 0.0,
        ended: RequestEnd = RequestEnd.ANSWERED,
    ) -> Self:
        """The outcome of a request whose candidates were called.

        Args:
            state: The request.
            results: What its candidates answered.
            answer: The body that is returned, before it is stamped; None returns none.
            ratings: The evaluator's.
            merged: The result of the vote.
            overhead_ms: The gateway's own time.
            ended: How the request ended.
        """
        api_format, options = state.request.api_format, state.request.options
        answers = tuple(
            results.replies[name]
            for name in dict.fromkeys((*state.selected, *results.replies))  # best first
            if name in results.replies
        )
        routed = state.routed
        if state.rounds is not None:
            routed = state.rounds.ended(routed)
        body: dict[str, Any] = {}
        if answer is not None:
            body = api_format.stamped(
                answer,
                decision_id=state.decision_id,
                model=answer["model"] if merged is None else merged.winner,
                usage=None if options.usage == "winner" else used(answers, ratings),
            )
        return cls(
            decision_id=state.decision_id,
            routed=routed,
            certificate=routed.certificate.with_reasons(*answer_reasons(state, results)),
            body=body,
            answers=answers,
            forms=results.forms,
            failures={name: exc.kind for name, exc in results.failures.items()},
            cancelled=tuple(results.cancelled),
            skipped=tuple(results.skipped),
            merged=merged,
            ratings=ratings,
            overhead_ms=overhead_ms,
            sampling_rate=state.sampling_rate,
            shadow_rate=state.shadow_rate,
            turn=state.turn,
            cost=None if state.meter is None else state.meter.cost(routed, ratings),
            explain=options.explain,
            ended=ended,
            is_cacheable=state.slot is not None,
        )

    @property
    def headers(self) -> dict[str, str]:
        """The x-racer headers."""
        headers = routing_headers(self.decision_id, self.routed, self.certificate)
        if self.merged:
            headers["x-racer-served-by"] = self.merged.winner
        if self.cost is not None:
            headers["x-racer-cost"] = self.cost.header
        headers["x-racer-overhead-ms"] = f"{self.overhead_ms:.2f}"
        if self.repeats is not None:
            headers[CACHE_HEADER] = "hit"
        elif self.is_cacheable:
            headers[CACHE_HEADER] = "miss"
        return headers

    def as_json(self) -> dict[str, Any]:
        """The ``racer`` object."""
        routed, certificate = self.routed, self.certificate
        racer = {"decision_id": self.decision_id, **routed.json}
        if certificate is not routed.certificate:
            racer["certificate"] = certificate.as_json(routed.remarks)
        racer |= {
            "served_by": self.merged.winner if self.merged else None,
            "votes": dict(self.merged.votes) if self.merged else {},
            "weights": dict(self.ratings.weights),
            "evaluation": self.ratings.as_json(),
            "usage": [{"candidate": each.candidate, **each.usage} for each in self.answers],
            "usage_incomplete": self._lacks_counts,
            "calls": self._calls(),
            "overhead_ms": round(self.overhead_ms, 2),
        }
        if self.explain:
            racer["answers"] = {
                each.candidate: each.as_json() for each in self.answers if each.body
            }
            racer["forms"] = {
                each.candidate: self.forms.get(each.candidate) for each in self.answers
            }
        if self.cost is not None:
            racer["cost"] = self.cost.as_json()
        if self.shadow_rate is not None:
            racer["shadow_rate"] = self.shadow_rate
        if self.repeats is not None:
            racer["repeats"] = self.repeats.as_json()
        return racer

    @property
    def _lacks_counts(self) -> bool:
        """Whether some call used tokens without a count, as cancelled calls do."""
        uncounted = not all([each.usage for each in self.answers]) or bool(self.cancelled)
        return uncounted or (self.ratings.calls > 0 and not self.ratings.usage)

    def _calls(self) -> list[dict[str, Any]]:
        answered: list[dict[str, Any]] = [
            {"candidate": each.candidate, "ms": round(each.seconds * 1e3, 2)}
            | ({"attempts": each.attempts} if each.attempts > 1 else {})
            for each in self.answers
        ]
        failed = [{"candidate": name, "error": kind} for name, kind in self.failures.items()]
        cancelled = [{"candidate": name, "cancelled": "vote_decided"} for name in self.cancelled]
        skipped = [{"candidate": name, "skipped": "vote_decided"} for name in self.skipped]
        return [*answered, *failed, *cancelled, *skipped]


def used(answers: Sequence[Reply], ratings: Ratings) -> dict[str, int]:
    """Tokens of all calls together."""
    return summed([*(answer.usage for answer in answers), ratings.usage])


def summed(usages: list[Mapping[str, int]]) -> dict[str, int]:
    """The sum of token counts; all counts of chat are present."""
    total = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for usage in filter(None, usages):
        for name in total:
            total[name] += usage.get(name, 0)
    return total


def routing_headers(
    decision_id: str, routed: CertifiedDecision, certificate: ServedCertificate
) -> dict[str, str]:
    """The headers that are known once the set is chosen."""
    return {
        "x-racer-decision-id": decision_id,
        **routed.headers,
        "x-racer-bound": certificate.bound_header,
        "x-racer-guarantee": certificate.header,
    }


def stream_headers(state: RequestState) -> dict[str, str]:
    """The headers of a stream that begins.

    A certificate that holds may become void until the last event, so the header calls it
    ``pending``. A void one stays void.
    """
    certificate = state.routed.certificate
    headers = routing_headers(state.decision_id, state.routed, certificate)
    if certificate.holds:
        headers["x-racer-guarantee"] = "pending"
    return headers if state.slot is None else headers | {CACHE_HEADER: "miss"}


def answer_reasons(state: RequestState, results: FanOutResult) -> tuple[str, ...]:
    """What the answers of the set do to its certificate."""
    if state.rounds is not None:
        return state.rounds.reasons(results)
    if failed := [name for name in results.failures if name in state.selected]:
        return failure_reasons(failed, is_outvoted=state.vote.settled(results))
    return (Reason.SET_UNANSWERED,) if results.is_unanswered_by(state.selected) else ()
