"""What came of a request, and how it is told: the ``racer`` object and the x-racer headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.certificates import Certificate
from app.evaluator import Ratings
from app.routing import Routed
from app.upstream import Reply
from racer_core.types import Aggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A routed request and what came of it."""

    decision_id: str
    routed: Routed
    certificate: Certificate  # the routed one, with what happened since
    body: dict[str, Any]  # the chat completion that is returned
    replies: tuple[Reply, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # name -> kind
    merged: Aggregate | None = None
    ratings: Ratings = field(default_factory=Ratings)  # by which votes were weighed
    overhead_ms: float = 0.0

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
        return {
            "decision_id": self.decision_id,
            **self.routed.as_json(),
            "certificate": self.certificate.as_json(),
            "served_by": self.merged.winner if self.merged else None,
            "votes": dict(self.merged.votes) if self.merged else {},
            "weights": dict(self.ratings.weights),
            "evaluation": self.ratings.as_json(),
            "usage": [{"candidate": reply.candidate, **reply.usage} for reply in self.replies],
            "usage_incomplete": any(not reply.usage for reply in self.replies)
            or (self.ratings.calls > 0 and not self.ratings.usage),
            "calls": [
                {"candidate": r.candidate, "ms": round(r.seconds * 1e3, 2)} for r in self.replies
            ]
            + [{"candidate": name, "error": kind} for name, kind in self.failures.items()],
            "overhead_ms": round(self.overhead_ms, 2),
        }


def routing_headers(decision_id: str, routed: Routed, guarantee: str) -> dict[str, str]:
    """What is known once the set is chosen."""
    return {
        "x-racer-decision-id": decision_id,
        "x-racer-selected": ",".join(routed.decision.selected),
        "x-racer-alpha": f"{routed.decision.alpha:g}",
        "x-racer-abstained": str(not routed.decision.selected).lower(),
        "x-racer-guarantee": guarantee,
    }
