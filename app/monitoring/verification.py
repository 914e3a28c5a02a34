"""Decides again what was decided: from the stored scores and the calibration that was used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.monitoring.decision_record import DecisionRecord
from app.routing.decision import ChosenBy
from app.routing.groups import GroupedRows
from app.routing.reasons import Reason
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InputError
from racer_core.types import RoutingDecision, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the calibration says today, beside what was said then."""

    note: DecisionRecord
    lambda_hat: float
    selected: tuple[str, ...]  # in the order of the pool
    null_selected: bool
    n: int
    group: str | None  # whose own threshold it was; None: pooled

    @property
    def matches(self) -> bool:
        """The same threshold and the same set; last bits may differ between processors.

        Where something other chose the set, only the threshold can be compared.
        """
        same = math.isclose(self.lambda_hat, self.note.lambda_hat, rel_tol=1e-9, abs_tol=1e-12)
        same = same and self.null_selected == self.note.null_selected
        overridden = self.note.chosen_by is ChosenBy.OVERRIDDEN
        return same and (overridden or self.selected == self.note.selected)

    def as_json(self) -> dict[str, Any]:
        """The wire form. An infinite threshold is null: JSON has no infinity."""
        finite = math.isfinite(self.lambda_hat)
        return {
            "matches": self.matches,
            "decision": self.note.as_json(),
            "recomputed": {
                "lambda_hat": self.lambda_hat if finite else None,
                "selected": list(self.selected),
                "null_selected": self.null_selected,
                "n": self.n,
                "group": self.group,
            },
        }


def verify(note: DecisionRecord, record: CalibrationRecord) -> Verification:
    """Recompute the threshold and the set of a decision; blocks.

    Raises:
        InputError: The decision was made by another record.
    """
    if note.calibration_id != record.id:
        raise InputError(f"decision {note.decision_id} was made by {note.calibration_id}")
    calibration = record.rows(later=Reason.LATER_TURN in note.reasons)
    if note.pool != calibration.pool:
        calibration = calibration.restrict(note.pool)
    rows = GroupedRows(calibration)
    applied = rows.serving(rows.plan(note.group))
    scores = _own(record.calibration.pool, note)
    decision = _decide(note, applied.calibration, scores)
    chosen = set(decision.selected)
    if note.chosen_by is ChosenBy.STRONGEST and not chosen:
        chosen = {max(zip(scores, note.pool, strict=True), key=lambda pair: pair[0])[1]}
    return Verification(
        note=note,
        lambda_hat=decision.lambda_hat,
        selected=tuple(name for name in note.pool if name in chosen),
        null_selected=decision.null_selected,
        n=applied.calibration.n,
        group=applied.group,
    )


def _own(pool: Sequence[str], note: DecisionRecord) -> list[float]:
    """The scores of the decision's pool; zeros where the router gave none."""
    scores = note.scores or (0.0,) * len(pool)
    return [score for name, score in zip(pool, scores, strict=True) if name in note.pool]


def _decide(note: DecisionRecord, calibration: Calibration, scores: list[float]) -> RoutingDecision:
    score = Score(note.score)
    if note.chosen_by is ChosenBy.EVERYONE:
        return calibration.whole_pool(scores, alpha=note.alpha, score=score)
    return calibration.decide(
        bytes.fromhex(note.fingerprint),
        scores,
        neighbours=None if note.neighbours is None else np.array(note.neighbours, np.uint32),
        alpha=note.alpha,
        score=score,
    )
