"""What is remembered of one decision: enough to decide it again, and never an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from app.json_output import dumped
from app.routing.decision import ChosenBy
from app.routing.reasons import Reason

# Queries that were never said to be like the rows of first turns: nothing is concluded from them.
_UNLIKE_ROWS: Final = frozenset(
    {
        Reason.MULTI_TURN,
        Reason.LATER_TURN,
        Reason.UNLABELLED_KIND,
        Reason.QUERY_TOO_LONG,
        Reason.ROUTER_FAILED,
    }
)
# A score is of the query alone; whether an answer is right is of how it was asked for, too.
_ANSWERED_UNLIKE_ROWS: Final = _UNLIKE_ROWS | {Reason.CONDITIONS_DIFFER}


class RequestEnd(StrEnum):
    """How the request ended."""

    ANSWERED = "answered"  # with an answer, a refusal, or the decision that was all it asked for
    CANCELLED = "cancelled"  # its client left before
    FAILED = "failed"  # with an error: nobody answered to the end, or nobody was to be asked


def are_like_rows(reasons: Collection[str]) -> bool:
    """Whether the query is of the kind that was labelled."""
    return not _UNLIKE_ROWS & set(reasons)


def are_answered_like_rows(reasons: Collection[str]) -> bool:
    """Whether its answers, too, are asked for as the rows' were: what they lose says something."""
    return not _ANSWERED_UNLIKE_ROWS & set(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One routed query.

    Attributes:
        decision_id: What the answer carries in ``x-racer-decision-id``.
        created_at: UTC, ISO 8601, as ``app.store.now`` gives it.
        calibration_id: The record that decided.
        key: The name of the caller's key.
        group: The group that the request was found to be of, whether it has a threshold or not.
        alpha: Risk level.
        score: The nonconformity score.
        lambda_hat: The threshold; ``inf`` when everyone was called.
        pool: The candidates among which was chosen, in the order of the record's pool.
        selected: The set that the certificate is about, in the same order.
        null_selected: The null model is in the set too.
        fingerprint: The keyed hash of the query, hexadecimal.
        scores: f of the record's whole pool, in its order; None when the router failed.
        neighbours: Pattern ids of the nearest training rows, for routers that have them.
        chosen_by: What made the set.
        holds: Whether the certificate held in the end.
        reasons: Every reason in it.
        served_by: Whose text was returned; None when nobody's was.
        answered: The candidates that answered.
        shadow_rate: The rate at which the decision was drawn to have everyone called; None when it
            was not drawn.
        outcome: How the request ended. Decisions are kept however that was, or what is concluded
            from them would be about patient clients and easy queries.
        repeated: The query came before, or is one of the rows: it says nothing new.
        query: What the router read, where the operator has it kept.
    """

    decision_id: str
    created_at: str
    calibration_id: str
    key: str
    group: str | None
    alpha: float
    score: str
    lambda_hat: float
    pool: tuple[str, ...]
    selected: tuple[str, ...]
    null_selected: bool
    fingerprint: str
    scores: tuple[float, ...] | None
    neighbours: tuple[int, ...] | None
    chosen_by: ChosenBy = ChosenBy.THRESHOLD
    holds: bool
    reasons: tuple[str, ...] = ()
    served_by: str | None = None
    answered: tuple[str, ...] = ()
    shadow_rate: float | None = None
    outcome: RequestEnd = RequestEnd.ANSWERED
    repeated: bool = False
    query: str | None = None

    @property
    def like_rows(self) -> bool:
        """The query is of the kind that was labelled, and the router scored it."""
        return self.scores is not None and are_like_rows(self.reasons)

    @property
    def answered_like_rows(self) -> bool:
        """Verdicts on its answers are about the risk that the rows bound."""
        return self.scores is not None and are_answered_like_rows(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """The wire form. An infinite threshold is null: JSON has no infinity."""
        shown = {name: getattr(self, name) for name in _FIELDS}
        return shown | {"lambda_hat": self.lambda_hat if math.isfinite(self.lambda_hat) else None}

    def document(self) -> str:
        """Everything but the neighbours, which have a column of their own."""
        return dumped(self.as_json() | {"neighbours": None}).decode()

    @classmethod
    def from_document(cls, document: str, neighbours: tuple[int, ...] | None) -> DecisionRecord:
        """Read ``document`` back."""
        said: dict[str, Any] = json.loads(document)
        for name in ("pool", "selected", "scores", "reasons", "answered"):
            said[name] = None if said[name] is None else tuple(said[name])
        said["lambda_hat"] = math.inf if said["lambda_hat"] is None else said["lambda_hat"]
        said["chosen_by"] = ChosenBy(said["chosen_by"])
        said["outcome"] = RequestEnd(said.get("outcome", RequestEnd.ANSWERED))
        said["neighbours"] = neighbours
        return cls(**said)


_FIELDS: Final = tuple(each.name for each in fields(DecisionRecord))
