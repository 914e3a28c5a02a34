"""What feedback and the shadow sample say of the risk of one calibration's decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.monitoring.decision_store import DecisionStore, SetCount, SetVerdicts
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.shadow import (
    RIGHT,
    UNKNOWN,
    WRONG,
    FeedbackBounds,
    RiskEstimate,
    estimate_risk,
    feedback_bounds,
)


def feedback_range(
    calibration: Calibration, unjudged: Sequence[SetCount], judged: Sequence[SetVerdicts]
) -> FeedbackBounds:
    """Between which values the realised risk of these decisions lies, whatever is not known."""
    pool, options = calibration.pool, calibration.options
    counts = [each.count for each in unjudged]
    sets = [each.selected for each in unjudged] + [each.selected for each in judged]
    nulls = [each.null_selected for each in unjudged] + [each.null_selected for each in judged]
    known = [[UNKNOWN] * len(pool) for _ in unjudged] + [_verdicts(pool, each) for each in judged]
    repeats = np.array(counts + [1] * len(judged), dtype=np.int64)
    chosen = [[name in selected for name in pool] for selected in sets]
    shape = (len(sets), len(pool))
    return feedback_bounds(
        np.array(known, dtype=np.int8).reshape(shape).repeat(repeats, axis=0),
        np.array(chosen, dtype=bool).reshape(shape).repeat(repeats, axis=0),
        np.array(nulls, dtype=bool).repeat(repeats),
        options.risk_target,
        options.r,
    )


def estimate(losses: Sequence[float]) -> RiskEstimate:
    """The risk that the judged shadow sample shows.

    Sampling never looks at the query, so at whatever rate, judged queries are drawn like all.
    """
    seen = np.array(losses, dtype=np.float64)
    return estimate_risk(seen, np.ones(seen.size), seen.size)


def risk_as_json(
    decision_store: DecisionStore, calibration_id: str, calibration: Calibration
) -> dict[str, Any]:
    """Both estimates with their counts; blocks, and raises :class:`StoreError`."""
    unjudged, judged = decision_store.served(calibration_id)
    bounds = feedback_range(calibration, unjudged, judged)
    shadow = estimate(decision_store.losses(calibration_id))
    counts = decision_store.counts(calibration_id)
    options = calibration.options
    return {
        "risk_target": options.risk_target,
        "alpha": options.alpha,
        "risk_q95": calibration.risk_q95(options.alpha),
        "decisions": {
            "kept": counts.decisions,
            "at_own_alpha_and_pool": bounds.decisions,
            "of_these_with_feedback": len(judged),
        },
        "feedback": {
            "lower": bounds.lower,
            "upper": bounds.upper,
            "identified": bounds.identified,
        },
        "shadow": {
            "sampled": counts.shadow,
            "judged": counts.judged,
            "counted": shadow.sampled,
            "risk": None if math.isnan(shadow.risk) else shadow.risk,
            "lower": shadow.lower,
            "upper": shadow.upper,
        },
    }


def _verdicts(pool: Sequence[str], each: SetVerdicts) -> list[int]:
    said = {True: RIGHT, False: WRONG}
    return [said[each.verdicts[name]] if name in each.verdicts else UNKNOWN for name in pool]
