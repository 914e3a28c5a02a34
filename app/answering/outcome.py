"""What came of a request, and how it is told: the ``racer`` object and the x-racer headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.answering.evaluator import Ratings
from app.monitoring.decision_record import DecisionRecord, RequestEnd
from app.routing.certificate import Certificate
from app.routing.decision import CertifiedDecision
from app.store import now
from app.upstream.reply import Reply
from racer_core.types import Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A routed request and what came of it."""

    decision_id: str
    routed: CertifiedDecision
    certificate: Certificate  # the routed one, with what happened since
    body: dict[str, Any] = field(default_factory=dict[str, Any])  # what is returned
    answers: tuple[Reply, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # name -> kind
    cancelled: tuple[str, ...] = ()  # asked, but not waited for: the vote was decided
    unasked: tuple[str, ...] = ()  # the vote was decided before their turn
    merged: Aggregate | None = None
    ratings: Ratings = field(default_factory=Ratings)  # by which votes were weighed
    overhead_ms: float = 0.0
    shadow_rate: float | None = None  # everyone was called, at this rate, to be judged
    explain: bool = False
    ended: RequestEnd = RequestEnd.ANSWERED

    @property
    def headers(self) -> dict[str, str]:
        """The x-racer headers."""
        served = {"x-racer-served-by": self.merged.winner} if self.merged else {}
        return (
            routing_headers(self.decision_id, self.routed, self.certificate.header)
            | served
            | {"x-racer-overhead-ms": f"{self.overhead_ms:.2f}"}
        )

    def as_json(self) -> dict[str, Any]:
        """The ``racer`` object."""
        everything = self.explain or self.shadow_rate is not None
        return (
            {
                "decision_id": self.decision_id,
                **self.routed.as_json(),
                "certificate": self.certificate.as_json(),
                "served_by": self.merged.winner if self.merged else None,
                "votes": dict(self.merged.votes) if self.merged else {},
                "weights": dict(self.ratings.weights),
                "evaluation": self.ratings.as_json(),
                "usage": [{"candidate": each.candidate, **each.usage} for each in self.answers],
                "usage_incomplete": self._lacks_counts,
                "calls": self._calls(),
                "overhead_ms": round(self.overhead_ms, 2),
            }
            | (
                {"answers": {each.candidate: each.shown() for each in self.answers}}
                if everything
                else {}
            )
            | ({"shadow_rate": self.shadow_rate} if self.shadow_rate is not None else {})
        )

    def note(self, key: str, query: str | None) -> DecisionRecord:
        """What is remembered of it, under the name of the caller's key; the query if it is kept."""
        routed, decision = self.routed, self.routed.decision
        scored = routed.scored
        near = None if scored is None else scored.neighbours
        pool = self.certificate.pool
        return DecisionRecord(
            decision_id=self.decision_id,
            created_at=now(),
            calibration_id=self.certificate.calibration_id,
            key=key,
            group=routed.group,
            alpha=decision.alpha,
            score=decision.score,
            lambda_hat=decision.lambda_hat,
            pool=pool,
            selected=tuple(name for name in pool if name in routed.chosen),
            null_selected=decision.null_selected,
            fingerprint=routed.fingerprint.hex(),
            scores=None if scored is None else tuple(scored.scores),
            neighbours=None if near is None else tuple(near.tolist()),
            chosen_by=routed.chosen_by,
            holds=self.certificate.holds,
            reasons=self.certificate.reasons,
            served_by=self.merged.winner if self.merged else None,
            answered=tuple(answer.candidate for answer in self.answers),
            shadow_rate=self.shadow_rate,
            outcome=self.ended,
            repeated=routed.repeated,
            query=query,
        )

    @property
    def _lacks_counts(self) -> bool:
        """Tokens were used that nobody counted for us; a cancelled call has written some, too."""
        uncounted = any(not each.usage for each in self.answers) or bool(self.cancelled)
        return uncounted or (self.ratings.calls > 0 and not self.ratings.usage)

    def _calls(self) -> list[dict[str, Any]]:
        answered: list[dict[str, Any]] = [
            {"candidate": each.candidate, "ms": round(each.seconds * 1e3, 2)}
            | ({"attempts": each.attempts} if each.attempts > 1 else {})
            for each in self.answers
        ]
        failed = [{"candidate": name, "error": kind} for name, kind in self.failures.items()]
        cancelled = [{"candidate": name, "cancelled": "vote_decided"} for name in self.cancelled]
        unasked = [{"candidate": name, "skipped": "vote_decided"} for name in self.unasked]
        return [*answered, *failed, *cancelled, *unasked]


def used(answers: Sequence[Reply], ratings: Ratings) -> dict[str, int]:
    """Tokens of all calls together."""
    return summed([*(answer.usage for answer in answers), ratings.usage])


def summed(usages: list[Mapping[str, int]]) -> dict[str, int]:
    """Counts added up; those of chat are always there."""
    total = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for usage in usages:
        for name in total:
            total[name] += usage.get(name, 0)
    return total


def routing_headers(decision_id: str, routed: CertifiedDecision, guarantee: str) -> dict[str, str]:
    """What is known once the set is chosen."""
    return {
        "x-racer-decision-id": decision_id,
        "x-racer-selected": ",".join(routed.decision.selected),
        "x-racer-alpha": f"{routed.decision.alpha:g}",
        "x-racer-abstained": str(not routed.decision.selected).lower(),
        "x-racer-guarantee": guarantee,
    }
