"""Verification of a decision by the calibration that it used.

A set is recomputed from the stored scores; calls under `same_answer` are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.errors import NotFound
from app.monitoring.decisions.record import DecisionRecord
from app.routing.decision import AnswerGuarantee, ChosenBy, MadeCalls
from app.routing.groups import GroupedRows
from app.routing.rounds_plan import RoundsPlan, RoundsTerms, fitted
from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InputError
from racer_core.sequential.serving import CalledRound, CallSequence, StopReason
from racer_core.sequential.verdicts import NO_VERDICT
from racer_core.types import RoutingDecision, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A stored decision beside the recomputed one."""

    decision: DecisionRecord
    lambda_hat: float
    selected: tuple[str, ...]  # in the order of the pool
    null_selected: bool
    n: int
    group: str | None  # whose threshold was used; None: the rows without a group, or all

    @property
    def matches(self) -> bool:
        """The same threshold and the same set; last bits may differ between processors.

        If an override chose the set, only the threshold can be compared.
        """
        stored = self.decision
        same = math.isclose(self.lambda_hat, stored.lambda_hat, rel_tol=1e-9, abs_tol=1e-12)
        same = same and self.null_selected == stored.null_selected
        overridden = stored.chosen_by is ChosenBy.OVERRIDDEN
        return same and (overridden or self.selected == stored.selected)

    def as_json(self) -> dict[str, Any]:
        """The wire form. An infinite threshold is null: JSON has no infinity."""
        finite = math.isfinite(self.lambda_hat)
        return {
            "matches": self.matches,
            "decision": self.decision.as_json(),
            "recomputed": {
                "lambda_hat": self.lambda_hat if finite else None,
                "selected": list(self.selected),
                "null_selected": self.null_selected,
                "n": self.n,
                "group": self.group,
            },
        }


def recompute(
    store: Store, decision: DecisionRecord, active: CalibrationRecord | None = None
) -> Verification | SequenceVerification:
    """Recompute a decision by the calibration that made it; blocks.

    Args:
        store: Where the calibration is.
        decision: The decision.
        active: The active calibration, which need not be read.

    Raises:
        NotFound: A fallback made the decision, or its calibration is not stored.
        StoreError: The store cannot be used.
    """
    calibration_id = calibration_of(decision)
    if decision.sequence is not None:
        return verify_sequence(decision, AnswerCalibrationStore(store).record(calibration_id))
    if active is not None and active.id == calibration_id:
        return verify(decision, active)
    return verify(decision, store.record(calibration_id))


def calibration_of(decision: DecisionRecord) -> str:
    """The calibration that made a decision. Raises NotFound where a fallback made it."""
    if decision.calibration_id is None or decision.chosen_by is ChosenBy.FALLBACK:
        raise NotFound(
            f"decision {decision.decision_id} was made without a threshold: there is none to "
            "recompute"
        )
    return decision.calibration_id


def verify(decision: DecisionRecord, record: CalibrationRecord) -> Verification:
    """Recompute the threshold and the set of a decision; blocks.

    Raises:
        InputError: Another calibration made the decision.
    """
    if decision.calibration_id != record.id:
        raise InputError(f"decision {decision.decision_id} was made by {decision.calibration_id}")
    calibration = record.populations[decision.population].calibration
    if decision.pool != calibration.pool:
        calibration = calibration.restrict(decision.pool)
    rows = GroupedRows(calibration)
    applied = rows.serving(rows.plan(decision.group))
    scores = _pool_scores(record.calibration.pool, decision)
    again = _decide(decision, applied.calibration, scores)
    chosen = set(again.selected)
    if decision.chosen_by is ChosenBy.STRONGEST and not chosen:
        chosen = {max(zip(scores, decision.pool, strict=True), key=lambda pair: pair[0])[1]}
    return Verification(
        decision=decision,
        lambda_hat=again.lambda_hat,
        selected=tuple(name for name in decision.pool if name in chosen),
        null_selected=again.null_selected,
        n=applied.calibration.n,
        group=applied.group,
    )


def _pool_scores(pool: Sequence[str], decision: DecisionRecord) -> list[float]:
    """The scores of the decision's pool; zeros if the router failed."""
    scores = decision.scores or (0.0,) * len(pool)
    return [score for name, score in zip(pool, scores, strict=True) if name in decision.pool]


def _decide(
    decision: DecisionRecord, calibration: Calibration, scores: list[float]
) -> RoutingDecision:
    score = Score(decision.score)
    if decision.chosen_by is ChosenBy.EVERYONE:
        return calibration.whole_pool(scores, alpha=decision.alpha, score=score)
    near = decision.neighbours
    return calibration.decide(
        bytes.fromhex(decision.fingerprint),
        scores,
        neighbours=None if near is None else np.array(near, np.uint32),
        alpha=decision.alpha,
        score=score,
    )


# Verification of decisions under `same_answer`: replays their calls by the stored calibration.

_OUT_OF_TURN = (
    StopReason.SLOW,
    StopReason.DEADLINE,
    StopReason.NO_ANSWER,
    StopReason.UNCHECKED,
    StopReason.BROKEN_OFF,  # the last round may have been out of turn
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceVerification:
    """A stored decision beside the recomputed one.

    Attributes:
        decision: The decision.
        plan: The rules of its calls, computed anew.
        replayed: Its calls by these rules, with the stored answers; None: it made none.
    """

    decision: DecisionRecord
    plan: RoundsPlan
    replayed: CallSequence | None

    @property
    def differing(self) -> tuple[str, ...]:
        """What differs; the last bits of numbers may, between processors."""
        stored, policy = _promised(self.decision), self.plan.calibration.policy
        is_same = {
            "order": policy.order == stored.order,
            "borders": policy.borders == stored.borders,
            "lambda_hat": _are_close(self.plan.threshold, self.decision.lambda_hat),
        }
        if stored.made is not None and self.replayed is not None:
            is_whole = stored.made.stopped is not None  # else it ended within a round
            is_same |= {
                "rounds": _are_same(self.replayed.called, stored.made.rounds, is_whole=is_whole),
                "stopped": not is_whole or self.replayed.stopped == stored.made.stopped,
                "winner": self.winner == self.decision.served_by,
            }
        return tuple(name for name, is_so in is_same.items() if not is_so)

    @property
    def matches(self) -> bool:
        """The same order, borders, threshold, rounds, end and answer."""
        return not self.differing

    @property
    def winner(self) -> str | None:
        """The candidate whose answer is returned; None: none is."""
        if self.replayed is None or self.decision.served_by is None:
            return None
        return self.replayed.elected(self.decision.answered)

    def as_json(self) -> dict[str, Any]:
        """The wire form. An infinite threshold is null: JSON has no infinity."""
        policy, threshold, replayed = (
            self.plan.calibration.policy,
            self.plan.threshold,
            self.replayed,
        )
        called = [] if replayed is None else replayed.called
        names = {name for each in called for name in each.called}
        return {
            "matches": self.matches,
            "differing": list(self.differing),
            "decision": self.decision.as_json(),
            "recomputed": {
                "lambda_hat": threshold if math.isfinite(threshold) else None,
                "selected": [name for name in self.decision.pool if name in names],
                "null_selected": False,
                "n": self.plan.calibration.n,
                "group": self.decision.application or None,
                "order": policy.order,
                "borders": policy.borders,
                "rounds": [asdict(each) for each in called],
                "stopped": replayed and replayed.stopped,
                "winner": self.winner,
            },
        }


def verify_sequence(
    decision: DecisionRecord, record: AnswerCalibrationRecord
) -> SequenceVerification:
    """Recompute order, rounds and threshold of a decision, and replay its calls; blocks."""
    stored = _promised(decision)
    terms = RoundsTerms(stored.reference, stored.max_rounds)
    plan = RoundsPlan.of(fitted(record, decision.pool, terms), decision.alpha, record.prices)
    replayed = None
    if stored.made is not None:
        replayed = plan.sequence(decision.decision_id)
        _replay(replayed, stored.made)
    return SequenceVerification(decision=decision, plan=plan, replayed=replayed)


def _replay(sequence: CallSequence, made: MadeCalls) -> None:
    """Make the calls once more, up to one without a result."""
    is_judged = True
    for each in made.rounds:
        # A round that follows one without a judgement was called out of turn.
        if not is_judged and made.stopped in _OUT_OF_TURN:
            called = sequence.call_rest(StopReason(made.stopped))
        elif sequence.outstanding:  # no round begins before: the record was changed
            return
        else:
            called = sequence.next_round()
        for name in called:
            if name in made.failed:
                sequence.fail(name)
            elif name in made.classes:
                number = made.classes[name]
                form = None if number is None else str(number)
                sequence.add(name, form, made.verdicts.get(name, NO_VERDICT))
            elif made.stopped is None:
                return
        is_judged = each.doubt is not None
    if made.stopped == StopReason.BROKEN_OFF:
        sequence.settle(StopReason.BROKEN_OFF)
    elif not sequence.outstanding:
        sequence.next_round()
    else:  # it ended before all had answered
        sequence.settle()


def _promised(decision: DecisionRecord) -> AnswerGuarantee:
    assert decision.sequence is not None
    return decision.sequence


def _are_same(
    again: Sequence[CalledRound], stored: Sequence[CalledRound], *, is_whole: bool
) -> bool:
    """Whether the rounds are the same; of a request that ended early, those up to its end."""
    if is_whole and len(again) != len(stored):
        return False
    return all(
        one.called == other.called and _are_close(one.doubt, other.doubt)
        for one, other in zip(again, stored, strict=False)
    )


def _are_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
