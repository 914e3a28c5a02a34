"""Alarm of the promise `same_answer`: sampled requests bet against the active calibration.

Every sampled request since the calibration shows without a label whether its answer would have
differed from the reference's. These losses feed an e-process, each before it enters any
calibration. What follows from them is computed anew from the stored samples: all gateways find the
same, and nothing else is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.monitoring.answer_rows import AnswerRows
from app.routing.answer_calibrations import RoundsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWatch:
    """What the requests since a calibration show.

    Attributes:
        sampled: How many there were.
        differing: On how many of them the answer would have differed, or could not be compared.
        evidence: The largest capital of the bets so far; the alarm is raised at 1 / level.
        alarm_at: When the request came that raised the alarm; None: there is none.
    """

    sampled: int = 0
    differing: int = 0
    evidence: float = 1.0
    alarm_at: str | None = None


def level_of(false_alarm: float, ordinal: int) -> float:
    """The level of an application's calibration; all together spend ``false_alarm``.

    Args:
        false_alarm: The probability of any false alarm.
        ordinal: The number of calibrations before it.
    """
    return false_alarm / ((ordinal + 1) * (ordinal + 2))


def watched(plan: RoundsPlan, alpha: float, rows: AnswerRows, level: float | None) -> AnswerWatch:
    """What these requests show of a calibration.

    Args:
        plan: The calibration at its own alpha.
        alpha: That alpha.
        rows: The requests since then, oldest first; one without all answers counts as different.
        level: Probability of a false alarm; None: none is raised.
    """
    calibration = plan.calibration
    if math.isinf(plan.threshold) and plan.threshold > 0.0:
        return AnswerWatch(sampled=len(rows.rows))  # everything is called: nothing can differ
    whole = rows.classes(calibration.policy.pool, 0, None)
    found = iter(calibration.stops(whole, plan.threshold).differs.tolist() if len(whole) else [])
    losses = [row.classes is None or bool(next(found)) for row in rows.rows]
    if level is None:
        return AnswerWatch(sampled=len(losses), differing=sum(losses))
    test = calibration.risk_e_process(alpha, level=level)
    evidence, alarm_at = 1.0, None
    for row, loss in zip(rows.rows, losses, strict=True):
        test.update(float(loss))
        evidence = max(evidence, test.e_value)
        if test.alarmed and alarm_at is None:
            alarm_at = row.created_at
    return AnswerWatch(
        sampled=len(losses), differing=sum(losses), evidence=evidence, alarm_at=alarm_at
    )
