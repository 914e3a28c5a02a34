"""Answer risk: how often the final answer would be wrong, from the answers in the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from app.calibrations.columns import RowColumns
from app.settings.aggregation import Aggregation
from racer_core.aggregation.answers import Equality, is_textual
from racer_core.aggregation.batch import agreement
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS, Method, Weight
from racer_core.calibration.calibration import Calibration
from racer_core.offline.votes import Votes
from racer_core.types import BoolArray

_SLICE: Final = 4_096  # rows whose answers are compared at once: K * K numbers each


def textual(equality: Equality) -> Equality | None:
    """The equality, if it compares texts alone; None if it needs a model or a library."""
    return equality if is_textual(equality) else None


def answer_risk(
    rows: RowColumns,
    calibration: Calibration,
    aggregation: Aggregation,
    stacked: StackedVote | None,
) -> dict[str, Any] | None:
    """P(final answer wrong | answered) at the served threshold, with its upper bound.

    A final answer is right if its candidate was labelled right.

    Returns:
        None if it cannot be computed: no row has answers, abstentions exceed alpha, answers are not
        compared as texts, the weights of votes come from an evaluator, or rows are weighted or
        graded.
    """
    final = final_answers(rows, calibration, aggregation, stacked, calibration.lambda_hat())
    if final is None:
        return None
    limit = calibration.answer_limit
    risk = calibration.answer_risk(*final, rows.answered)
    if risk is None:
        return None
    if limit is not None:  # the threshold was tested
        risk = replace(risk, upper=limit.answer_risk_max, delta=limit.delta)
    return {
        "rows": int(rows.answered.sum()),
        "answered": risk.answered,
        "errors": risk.errors,
        "rate": risk.rate if risk.answered else None,
        "upper": risk.upper,
        "delta": risk.delta,
    }


def final_answers(
    rows: RowColumns,
    calibration: Calibration,
    aggregation: Aggregation,
    stacked: StackedVote | None,
    threshold: float,
) -> tuple[BoolArray, BoolArray] | None:
    """Whether a candidate of each row is called at a threshold, and whether the vote is right.

    Rows without answers are never right. None if the recorded answers do not decide the vote.
    """
    if rows.classes is None or not rows.answered.any() or not _needs_no_evaluator(aggregation):
        return None
    order = [rows.pool.index(name) for name in calibration.pool]
    called, right = (np.zeros(len(rows), dtype=bool) for _ in range(2))
    for start in range(0, len(rows), _SLICE):
        part = np.arange(start, min(start + _SLICE, len(rows)))
        judged = calibration.take(part.tolist())
        selected = _selected(judged, threshold)
        votes = Votes(
            pool=calibration.pool,
            labels=judged.labels,
            scores=judged.scores,
            same=agreement(rows.classes[part][:, order]),
            stacked=stacked,
        )
        called[part] = selected.any(axis=1)
        right[part] = votes.right(aggregation.method, selected, aggregation.temperature)
    return called, right & rows.answered


def _needs_no_evaluator(aggregation: Aggregation) -> bool:
    """Whether answers and router scores are all that the vote needs."""
    evaluated = aggregation.method is Method.WEIGHTED and aggregation.weight is not Weight.ROUTER
    other_options = aggregation.method is Method.LOG_ODDS and aggregation.options != OPTIONS
    return not evaluated and not other_options


def _selected(calibration: Calibration, threshold: float) -> BoolArray:
    return calibration.sets(
        calibration.scores,
        calibration.fingerprints,
        threshold,
        calibration.options.score,
        calibration.neighbours,
    ).selected
