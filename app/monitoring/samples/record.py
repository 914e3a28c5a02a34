"""Sample records: what is stored of a decision of the shadow sample beside its decision record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.monitoring.decisions.record import DecisionRecord
from app.routing.reasons import Reason
from racer_core.calibration.certificate import base_reason
from racer_core.types import CallRecord

_LATER: Final = frozenset({Reason.LATER_TURN, Reason.MULTI_TURN})


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledExchange:
    """A whole request and the answers of its candidates.

    Attributes:
        request: The body as the client sent it.
        path: The endpoint of candidates to which it goes.
        answers: Candidate -> its answer as rows record it; null where it is none.
        calls: Candidate -> what is known of its call.
    """

    request: Mapping[str, Any]
    path: str
    answers: Mapping[str, str | None]
    calls: Mapping[str, CallRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is kept of one decision of the shadow sample beside its record.

    Attributes:
        decision_id: The decision.
        application: The application of the request; None where none is configured.
        later: The request is a turn after the first of a conversation.
        conversation: Keyed hash that the turns of one conversation share; None for a first turn.
        classes: Candidate -> class of its answer, equal for equal answers; None without an answer.
        verdicts: Candidate -> the checker's verdict on its answer; empty where there is no checker.
        equal: Candidate -> the candidates before it in the pool with an equal answer; empty where
            answers are not compared two by two.
        digests: Candidate -> digest of what it was sent, but for the query.
        whole: Every candidate answered, or refuses this request for good and is wrong: the
            decision can be labelled.
        exchange: The request and its answers; None where requests are not stored.
        is_unreadable: They are stored, and no key of this start decrypts them.
        answer_setup: Digest of the configuration by which answers have their classes; None: the
            decision is no row of the promise `same_answer`.
    """

    decision_id: str
    application: str | None
    later: bool
    conversation: str | None
    classes: Mapping[str, int | None]
    digests: Mapping[str, str]
    whole: bool
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])
    equal: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    exchange: SampledExchange | None = None
    is_unreadable: bool = False
    answer_setup: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledDecision:
    """A decision of the shadow sample with everything that is stored of it.

    Attributes:
        decision: Its record.
        sample: What is kept beside it; None where its candidates could not all be called, or the
            store took no more.
        correct: Candidate -> verdict that counts.
        judgements: Judge model -> candidate -> its verdict.
    """

    decision: DecisionRecord
    sample: Sample | None
    correct: Mapping[str, bool]
    judgements: Mapping[str, Mapping[str, bool]]

    @property
    def is_later(self) -> bool:
        """Whether it is a later turn; without a sample the reasons of the decision say it."""
        if self.sample is not None:
            return self.sample.later
        return is_later_turn(self.decision.reasons)


def is_later_turn(reasons: Collection[str]) -> bool:
    """Whether a certificate with these reasons is that of a turn after the first."""
    return not _LATER.isdisjoint(map(base_reason, reasons))
