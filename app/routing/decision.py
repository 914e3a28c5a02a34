"""A certified decision: the candidates to call, the reason, and the data that it rests on.

A decision is made once and served many times, so it keeps what is derived from it: its wire form,
its headers, its part of the records, and itself with the remarks on a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from app.json_output import dump_json
from app.routing.applications import Membership
from app.routing.reasons import HOLDING, Reason, Remark
from app.routing.rounds_plan import RoundsPlan
from app.routing.scorer import ScoredQuery
from app.settings.applications import Premise, Turns
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.certificate import Certificate
from racer_core.calibration.kept_order import Continuation
from racer_core.records.whole_conversations import TurnMark
from racer_core.sequential.serving import CalledRound
from racer_core.types import RoutingDecision, Score

HOLDS: Final = "holds"
VOID: Final = "void; "  # followed by the reasons: headers of certificates


class ChosenBy(StrEnum):
    """The rule that selected the set."""

    THRESHOLD = "threshold"
    EVERYONE = "everyone"  # no threshold applied, such as after a failure of the router
    STRONGEST = "strongest"  # the threshold selected none, and the best candidate is called
    FALLBACK = "fallback"  # a configured candidate: no calibration is active or covers the request
    ROUNDS = "rounds"  # the promise `same_answer`: all that may be called, in the order of calls
    OVERRIDDEN = "overridden"  # another set is called: that of a conversation's order


class StoredForm(NamedTuple):
    """A :class:`RoutingRecord` as the store keeps it."""

    fields: str  # JSON, without the neighbours
    selected: str  # JSON
    neighbours: bytes | None  # 4 bytes each


@dataclass(frozen=True, kw_only=True)
class RoutingRecord:
    """The part of a decision record that every request has in common that the decision serves.

    Attributes:
        calibration_id: The calibration that decided; None: none was active.
        group: The group of the request, whether it has a threshold of its own or not.
        alpha: Risk level.
        score: The nonconformity score.
        lambda_hat: The threshold; ``inf`` if the whole pool was called.
        pool: The candidates to choose from, in the order of the calibration's pool.
        selected: The set that the certificate is about, in the same order.
        null_selected: The null model is in the set too.
        fingerprint: The keyed hash of the query, hexadecimal.
        scores: f of the calibration's whole pool, in its order; None if the router failed.
        neighbours: Pattern ids of the nearest training rows, for routers that have them.
        projection: The query's embedding on a few components, for drift detection.
        chosen_by: What made the set.
        repeated: The query was seen before, by any key, or is one of the rows: it is no new
            evidence.
        population: The place of the rows that set the threshold.
        remarks: The remarks in the certificate.
    """

    calibration_id: str | None
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
    projection: tuple[float, ...] | None = None
    chosen_by: ChosenBy = ChosenBy.THRESHOLD
    repeated: bool = False
    population: int = 0
    remarks: tuple[str, ...] = ()

    def routing_as_json(self) -> dict[str, Any]:
        """The wire form of these fields. An infinite threshold is null: JSON has no infinity."""
        shown = {name: getattr(self, name) for name in _ROUTING_FIELDS}
        return shown | {"lambda_hat": self.lambda_hat if math.isfinite(self.lambda_hat) else None}

    @cached_property
    def stored(self) -> StoredForm:
        """The stored form, made once."""
        near = self.neighbours
        return StoredForm(
            fields=dump_json(self.routing_as_json() | {"neighbours": None}).decode(),
            selected=dump_json(self.selected).decode(),
            neighbours=None if near is None else np.array(near, dtype="<u4").tobytes(),
        )


_ROUTING_FIELDS: Final = tuple(each.name for each in fields(RoutingRecord))


@dataclass(frozen=True, kw_only=True)
class CertifiedDecision:
    """A decision, its certificate, and the inputs of both."""

    decision: RoutingDecision
    certificate: ServedCertificate
    pool_scores: dict[str, float]  # f of the whole pool, best first; empty when the router failed
    fingerprint: bytes
    scored: ScoredQuery | None  # None when the router failed
    record: CalibrationRecord | None  # None: no calibration is active
    population: int  # of the record: the place of the rows that set the threshold
    group: str | None  # of the request, whether or not it has its own threshold
    member: Membership | None = None  # of its application; None: none is configured
    chosen: tuple[str, ...]  # the selected set, even where others are called instead
    chosen_by: ChosenBy
    repeated: bool = False  # the query was seen before, by this key or another, or is a row
    rounds: RoundsPlan | None = None  # ends the calls; None: the set is called at once
    remarks: tuple[Remark, ...] = ()  # what its sender may know of the query
    is_promised: bool = False  # `same_answer` serves it, at the terms of its application
    conversation: ConversationTerms | None = None  # of a turn decided by rows of conversations

    @property
    def application(self) -> str | None:
        """The application of the request; None: none is configured."""
        return self.member and self.member.name

    @property
    def calibration_id(self) -> str | None:
        """The calibration that decided; None: none was active."""
        return self.certificate.calibration_id if self.record is None else self.record.id

    @property
    def strongest(self) -> str:
        """The candidate with the highest router score."""
        return next(iter(self.pool_scores), self.certificate.pool[0])

    @property
    def calls_in_rounds(self) -> int | None:
        """Calls under `same_answer`, where none is made those of the first round; else None."""
        promised = self.certificate.same_answer
        if promised is not None and promised.made is None and self.rounds is not None:
            return promised.borders[0]
        return None if promised is None else len(self.decision.selected)

    @property
    def is_lasting(self) -> bool:
        """Whether the same query would get the same decision again: nothing failed or was late."""
        return self.scored is not None and Reason.SUB_POOL_PENDING not in self.certificate.reasons

    @cached_property
    def vote_scores(self) -> Mapping[str, float]:
        """The weight of each candidate's vote: r where it was selected, else f."""
        decision = self.decision
        return self.pool_scores | dict(zip(decision.selected, decision.scores, strict=True))

    @cached_property
    def _remarked(self) -> dict[tuple[bool, tuple[Remark, ...]], CertifiedDecision]:
        return {}

    def remarked(self, remarks: tuple[Remark, ...], *, repeated: bool) -> CertifiedDecision:
        """The same with these remarks; the same object for every request that they are on."""
        if (repeated, remarks) == (self.repeated, self.remarks):
            return self
        found = self._remarked.get((repeated, remarks))
        if found is None:
            found = replace(self, remarks=remarks, repeated=repeated)
            self._remarked[repeated, remarks] = found
        return found

    def calling(self, names: Sequence[str], reason: Reason) -> CertifiedDecision:
        """The same, but these candidates are called instead of the selected set."""
        scores = tuple(self.vote_scores.get(name, 0.0) for name in names)
        decision = replace(self.decision, selected=tuple(names), scores=scores)
        certificate = self.certificate.with_reasons(reason)
        return replace(self, decision=decision, certificate=certificate, rounds=None)

    def choosing(self, names: Sequence[str], by: ChosenBy, reason: Reason) -> CertifiedDecision:
        """The same, but this set was selected, by another rule than the threshold."""
        return replace(self.calling(names, reason), chosen=tuple(names), chosen_by=by)

    @cached_property
    def _with_reasons(self) -> dict[tuple[str, ...], CertifiedDecision]:
        return {}

    def with_reasons(self, *reasons: str) -> CertifiedDecision:
        """The same with further reasons in its certificate; the same object for every request."""
        if not reasons:
            return self
        found = self._with_reasons.get(reasons)
        if found is None:
            found = replace(self, certificate=self.certificate.with_reasons(*reasons))
            self._with_reasons[reasons] = found
        return found

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The x-racer headers, but for the guarantee, which may still change."""
        decision = self.decision
        return {
            "x-racer-selected": ",".join(decision.selected),
            "x-racer-alpha": f"{decision.alpha:g}",
            "x-racer-abstained": str(not decision.selected).lower(),
        }

    @cached_property
    def json(self) -> Mapping[str, Any]:
        """The wire form."""
        decision = self.decision
        return {
            "selected": list(decision.selected),
            "scores": dict(zip(decision.selected, decision.scores, strict=True)),
            "pool_scores": self.pool_scores,
            "null_in_set": decision.null_selected,
            "abstained": decision.abstained,
            "abstain_reason": decision.abstain_reason,
            "truncated": decision.truncated,
            **({} if self.member is None else self.member.as_json()),
            "certificate": self.certificate.as_json(self.remarks),
        }

    @cached_property
    def routing_record(self) -> RoutingRecord:
        """Its part of the record of every request that it serves."""
        decision, pool, scored = self.decision, self.certificate.pool, self.scored
        neighbours = None if scored is None else scored.neighbours
        return RoutingRecord(
            calibration_id=self.calibration_id,
            group=self.group,
            alpha=decision.alpha,
            score=decision.score,
            lambda_hat=decision.lambda_hat,
            pool=pool,
            selected=tuple(name for name in pool if name in self.chosen),
            null_selected=decision.null_selected,
            fingerprint=self.fingerprint.hex(),
            scores=None if scored is None else tuple(scored.scores),
            neighbours=None if neighbours is None else tuple(neighbours.tolist()),
            projection=None if scored is None else scored.projection,
            chosen_by=self.chosen_by,
            repeated=self.repeated,
            population=self.population,
            remarks=tuple(self.remarks),
        )


# What the promise `same_answer` says of one request, and the calls that the request made.
#
# Certificates show it, and decision records keep it: with the stored calibration it is enough to
# decide the request again. It contains no text.


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCalls:
    """The calls of one request.

    Attributes:
        rounds: The candidates of each round, and the doubt q after it.
        stopped: Why no further round was called; None: the request ended before.
        classes: Candidate -> number of its answer, the same for equal answers; None: it cannot be
            read. Without candidates that failed.
        failed: The candidates that gave no answer, by a cause outside the request.
        price_share: Price of the calls, as a share of that of the reference; None without prices.
        verdicts: Candidate -> the checker's verdict on its answer; empty without a checker.
    """

    rounds: tuple[CalledRound, ...]
    stopped: str | None
    classes: Mapping[str, int | None]
    failed: tuple[str, ...]
    price_share: float | None
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that were called, in the order of calls."""
        return tuple(name for each in self.rounds for name in each.called)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGuarantee:
    """What the promise says beside alpha, and how a request was answered under it.

    Attributes:
        reference: ``vote``, that of the whole pool, or a candidate.
        equality: The rule by which answers are the same.
        max_rounds: Most rounds of calls.
        order: The candidates in the order of calls.
        borders: How many candidates are called at the end of each round.
        expected_calls: Mean number of calls of the calibration rows at the threshold.
        trivial: No finite threshold is valid, and everything is called.
        evidence: The kind of the checker whose verdicts are evidence; None: there is none.
        made: The calls; None: none was made yet, or others than those of the sequence.
    """

    reference: str
    equality: str
    max_rounds: int
    order: tuple[str, ...]
    borders: tuple[int, ...]
    expected_calls: float
    trivial: bool
    evidence: str | None = None
    made: MadeCalls | None = None

    def guarantee_as_json(self) -> dict[str, Any]:
        """What belongs to the guarantee."""
        return {
            "reference": self.reference,
            "equality": self.equality,
            "max_rounds": self.max_rounds,
            **({} if self.evidence is None else {"evidence": self.evidence}),
        }

    def calls_as_json(self) -> dict[str, Any]:
        """The calls in numbers, as planned and as made."""
        made = self.made
        return {
            "first_round": list(self.order[: self.borders[0]]),
            "expected_calls": round(self.expected_calls, 3),
            "rounds": made and len(made.rounds),
            "calls": made and len(made.names),
            "stopped": made and made.stopped,
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, as decision records keep it."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read :meth:`as_json` back."""
        fields: dict[str, Any] = {**stored}
        if (made := stored["made"]) is not None:
            rounds = (CalledRound(tuple(each["called"]), each["doubt"]) for each in made["rounds"])
            parts = {"rounds": tuple(rounds), "failed": tuple(made["failed"])}
            fields["made"] = MadeCalls(**made | parts)
        fields |= {name: tuple(stored[name]) for name in ("order", "borders")}
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class ServedCertificate(Certificate):
    """The certificate of one decision: the core's, with the gateway's reasons and remarks."""

    HOLDING: ClassVar[frozenset[str]] = HOLDING

    premise: Premise = "alike"  # why rows cover the request
    turns: Turns = "separate"  # whether it bounds the risk of first and later turns together
    same_answer: AnswerGuarantee | None = None  # None: another promise

    def under(self, premise: Premise, turns: Turns) -> ServedCertificate:
        """The same under another premise, or for other turns."""
        is_same = (premise, turns) == (self.premise, self.turns)
        return self if is_same else replace(self, premise=premise, turns=turns)

    @property
    def advice(self) -> str | None:
        """What would give the smaller bound; rows of `same_answer` need no label."""
        advice = super().advice
        if advice is None or self.same_answer is None:
            return advice
        return (
            f"alpha {self.alpha:g} is not that of the calibration: configure it, and calibrate on "
            f"later requests (`racer calibrate --same-answer`), and {self.alpha:g} itself holds"
        )

    @property
    def bound_header(self) -> str:
        """What holds of the risk, such as ``0.1`` or ``0.142;confidence=0.95``; or ``none``."""
        bound = self.bound
        return "none" if bound is None else bound.header

    @property
    def header(self) -> str:
        """``holds``, or ``void`` with the reasons: ``void; conditions_differ:temperature``."""
        return HOLDS if self.holds else f"{VOID}{','.join(self.void_reasons)}"

    def as_json(self, remarks: Sequence[str] = ()) -> dict[str, Any]:
        """The wire form with the remarks on the query."""
        found = super().as_json()
        guarantee = found["guarantee"] | {"premise": self.premise, "turns": self.turns}
        found |= {"guarantee": guarantee, "remarks": list(remarks)}
        if self.same_answer is not None:
            found["guarantee"] |= self.same_answer.guarantee_as_json()
            found["rounds"] = self.same_answer.calls_as_json()
        return found


# Conversations: what a turn of a session takes over from the turns before it.


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class ConversationTerms:
    """What all turns of a certified conversation have in common, as those of its rows have.

    Attributes:
        calibration_id: The calibration.
        pool: The candidates among which sets are chosen.
        alpha: The requested risk level; None: the calibration's.
        score: The requested score; None: the calibration's.
        group: The group.
        conditions: What candidates are sent beside the texts, as ``Conditions.identity``.
    """

    calibration_id: str
    pool: tuple[str, ...]
    alpha: float | None
    score: Score | None
    group: str | None
    conditions: str


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class SessionTurn:
    """A turn of a session.

    Attributes:
        continuation: The order of the turn before, and lengths.
        is_first: The conversation begins with it.
        mark: By which the next turn is known.
        terms: Those of all turns before it; None: it is the first, they had no terms in common, or
            it is not the next turn.
    """

    continuation: Continuation
    is_first: bool
    mark: TurnMark
    terms: ConversationTerms | None = None

    def continues(self, terms: ConversationTerms | None) -> bool:
        """Whether with these terms it is a turn of a whole conversation, as rows are."""
        return self.is_first or self.terms == terms
