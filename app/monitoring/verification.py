"""Verification: recomputes a decision from its stored scores and the calibration that it used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.errors import NotFound
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.sequence_verification import SequenceVerification, verify_sequence
from app.routing.decision import ChosenBy
from app.routing.groups import GroupedRows
from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationStore
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InputError
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
