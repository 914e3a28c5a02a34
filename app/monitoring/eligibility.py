"""Eligibility: which decisions are evidence about a calibration, and of what."""

from __future__ import annotations

from app.monitoring.decision_record import DecisionRecord
from app.routing.decision import ChosenBy
from app.store.calibration_record import CalibrationRecord


def fits(decision: DecisionRecord, record: CalibrationRecord) -> bool:
    """Whether its query counts for drift: routed by this calibration, and of the labelled kind."""
    return (
        decision.calibration_id == record.id
        and decision.like_rows
        and (record.calibration.neighbours is None or decision.neighbours is not None)
    )


def has_loss(decision: DecisionRecord, record: CalibrationRecord) -> bool:
    """Whether verdicts on its answers give a loss: the same pool, called as for the rows."""
    return (
        fits(decision, record)
        and decision.answered_like_rows
        and decision.pool == record.calibration.pool
    )


def is_ordinary(decision: DecisionRecord, record: CalibrationRecord) -> bool:
    """Whether the calibration's own threshold chose its set, so that the set has its risk."""
    options = record.calibration.options
    return (
        has_loss(decision, record)
        and decision.chosen_by is ChosenBy.THRESHOLD
        and decision.alpha == options.alpha
        and decision.score == options.score
    )
