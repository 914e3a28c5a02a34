"""Answer risk: how often the final answer would be wrong, from the answers in the rows."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from app.calibrations.columns import RowColumns
from app.settings.aggregation import Aggregation
from racer_core.aggregation.answers import Equality, is_textual
from racer_core.aggregation.batch import agreement
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS, Method, Weight
from racer_core.calibration.answer_risk import AnswerRisk
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
    """P(final answer wrong | answered) under the configured vote, with its upper bound.

    No row is judged at a threshold that it helped to set: each half of the rows that have answers
    is routed at the threshold of the other half. A final answer is right if its candidate was
    labelled right.

    Returns:
        None if it cannot be computed: no row has answers, half of the rows are too few for alpha,
        answers are not compared as texts, the weights of votes come from an evaluator, or rows have
        weights, so that they are no sample of the served queries.
    """
    if (
        rows.weights is not None
        or rows.classes is None
        or not rows.answered.any()
        or not _needs_no_evaluator(aggregation)
    ):
        return None
    order = [rows.pool.index(name) for name in calibration.pool]
    answered = np.flatnonzero(rows.answered)
    np.random.default_rng(0).shuffle(answered)  # files are sorted by task
    halves = answered[::2], answered[1::2]
    thresholds = [_threshold(calibration.take(half.tolist())) for half in halves]
    if math.isinf(max(thresholds)) and math.isfinite(_threshold(calibration)):
        return None
    errors = count = 0
    for own, threshold in zip(halves, reversed(thresholds), strict=True):
        for start in range(0, own.size, _SLICE):
            part = own[start : start + _SLICE]
            judged = calibration.take(part.tolist())
            selected = _selected(judged, threshold)
            votes = Votes(
                pool=calibration.pool,
                labels=judged.labels,
                scores=judged.scores,
                same=agreement(rows.classes[part][:, order]),
                stacked=stacked,
            )
            right = votes.right(aggregation.method, selected, aggregation.temperature)
            called = selected.any(axis=1)
            count += int(called.sum())
            errors += int((called & ~right).sum())
    risk = AnswerRisk(errors=errors, answered=count)
    return {
        "rows": int(answered.size),
        "answered": count,
        "errors": errors,
        "rate": risk.rate if count else None,
        "upper": risk.upper,
        "delta": risk.delta,
    }


def _needs_no_evaluator(aggregation: Aggregation) -> bool:
    """Whether answers and router scores are all that the vote needs."""
    evaluated = aggregation.method is Method.WEIGHTED and aggregation.weight is not Weight.ROUTER
    other_options = aggregation.method is Method.LOG_ODDS and aggregation.options != OPTIONS
    return not evaluated and not other_options


def _threshold(calibration: Calibration) -> float:
    return calibration.lambda_hat(calibration.options.alpha, calibration.options.score)


def _selected(calibration: Calibration, threshold: float) -> BoolArray:
    return calibration.sets(
        calibration.scores,
        calibration.fingerprints,
        threshold,
        calibration.options.score,
        calibration.neighbours,
    ).selected
