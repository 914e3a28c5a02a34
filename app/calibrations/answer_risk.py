"""Answer risk: how often the final answer would be wrong, from the answers in the rows."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from app.calibrations.columns import RowColumns
from app.calibrations.evidence import ALPHAS
from app.settings.aggregation import Aggregation
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS, Method, Weight
from racer_core.calibration.answer_limit import AnswerLimit, passing, smallest_feasible
from racer_core.calibration.augmentation import null_score
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.learn_then_test import GridPoint, clopper_pearson_upper
from racer_core.errors import InputError
from racer_core.offline.votes import Votes
from racer_core.types import BoolArray, RiskTarget

_SLICE: Final = 4_096  # rows whose answers are compared at once: K * K numbers each


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
    if rows.answers is None or not rows.answered.any() or not _needs_no_evaluator(aggregation):
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
            answers=rows.answers.at(part).of_columns(order),
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


# Limit on wrong final answers: tests thresholds of a calibration on half of its rows.

DELTA: Final = 0.05
_TAUS: Final = 20  # values of tau that the first half compares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TestedGrid:
    """Thresholds that the first half of the rows chose, counted on the second half.

    Attributes:
        rows: The second half.
        calibration: Of these rows, with the tau that the first half chose.
        points: Counts on these rows, in the order in which the first half ranks the thresholds.
        first_half: Number of rows that chose.
    """

    rows: RowColumns
    calibration: Calibration
    points: list[GridPoint]
    first_half: int


def limit_answers(
    rows: RowColumns,
    calibration: Calibration,
    aggregation: Aggregation,
    stacked: StackedVote | None,
    limit: float,
) -> tuple[RowColumns, Calibration, dict[str, Any]]:
    """The second half of the rows, their calibration with the limit, and its evidence.

    Where no threshold of the grid keeps the limit, the calibration has none: it is activated like
    any other, and no certificate states a limit. ``smallest`` is then the smallest limit that these
    rows would have passed; None: there is none.

    Raises:
        InputError: The rows cannot test a limit.
    """
    grid = tested_grid(rows, calibration, aggregation, stacked, limit)
    tested = grid.calibration
    lambda_hat = tested.lambda_hat()
    passed = passing(grid.points, lambda_hat, limit, DELTA)
    if passed:
        tested = replace(
            tested,
            answer_limit=AnswerLimit(
                answer_risk_max=limit, delta=DELTA, thresholds=passed, vote=aggregation.rule
            ),
        )
    evidence = {
        "answer_risk_max": limit,
        "delta": DELTA,
        "null_threshold": tested.options.null_threshold,
        "tested": len(grid.points),
        "passed": len(passed),
        "smallest": limit if passed else smallest_feasible(grid.points, lambda_hat, DELTA),
        "first_half": grid.first_half,
    }
    return grid.rows, tested, evidence


def tested_grid(
    rows: RowColumns,
    calibration: Calibration,
    aggregation: Aggregation,
    stacked: StackedVote | None,
    limit: float,
) -> TestedGrid:
    """Divide the rows, choose tau and a grid of thresholds by one half, and count on the other.

    Raises:
        InputError: The rows cannot test a limit.
    """
    _check_rows(rows, calibration, aggregation, stacked)
    # Keyed by the rows, so that the order of the file decides nothing and a repeat is the same.
    seed = hashlib.sha256(b"".join(calibration.fingerprints)).digest()
    order = np.random.default_rng(list(seed)).permutation(len(rows))
    halves = np.sort(order[: len(rows) // 2]), np.sort(order[len(rows) // 2 :])
    (first_rows, first), (tested_rows, tested) = (
        (rows.take(half), calibration.take(half.tolist())) for half in halves
    )

    def judged(part: RowColumns, by: Calibration, threshold: float) -> GridPoint:
        final = final_answers(part, by, aggregation, stacked, threshold)
        assert final is not None
        called, right = final
        return GridPoint(
            lambda_hat=threshold,
            errors=int(np.count_nonzero(called & ~right)),
            answered=int(np.count_nonzero(called)),
            size=0.0,
        )

    def estimate(by: Calibration) -> float:
        threshold = by.lambda_hat()
        if math.isinf(threshold):
            return 1.0
        point = judged(first_rows, by, threshold)
        return clopper_pearson_upper(point.errors, point.answered, DELTA)

    choices = [_with_tau(first, tau) for tau in _taus(first)]
    bounds = [estimate(each) for each in choices]
    chosen = next((i for i, each in enumerate(bounds) if each <= limit), int(np.argmin(bounds)))
    first = choices[chosen]
    tested = _with_tau(tested, first.options.null_threshold)
    alpha = first.options.alpha
    alphas = (*ALPHAS, *(alpha * share for share in (0.7, 0.8, 0.9, 0.95, 1.0)))
    found = {first.lambda_hat(each) for each in alphas}
    grid = [judged(first_rows, first, each) for each in sorted(found) if math.isfinite(each)]
    grid.sort(key=lambda each: (each.errors / max(each.answered, 1), each.lambda_hat))
    points = [judged(tested_rows, tested, each.lambda_hat) for each in grid]
    return TestedGrid(
        rows=tested_rows, calibration=tested, points=points, first_half=len(first_rows)
    )


def _check_rows(
    rows: RowColumns,
    calibration: Calibration,
    aggregation: Aggregation,
    stacked: StackedVote | None,
) -> None:
    if final_answers(rows, calibration, aggregation, stacked, math.inf) is None or not bool(
        rows.answered.all()
    ):
        raise InputError(
            "answer_risk_max needs recorded `answers` in every row, compared as texts, and a vote "
            "without an evaluator",
            param="answer_risk_max",
        )
    if calibration.judged is not None:
        raise InputError(
            "answer_risk_max is tested on people's labels: leave the judge's verdicts out",
            param="answer_risk_max",
        )
    if not calibration.has_order_statistic:
        raise InputError(
            "answer_risk_max needs rows without weights and another risk target than quality",
            param="answer_risk_max",
        )
    if calibration.groups is not None:
        raise InputError(
            "answer_risk_max is tested over all rows, and rows with groups have a threshold for "
            "each: send rows without groups",
            param="answer_risk_max",
        )


def _taus(calibration: Calibration) -> list[float | None]:
    """Values of tau, largest first: the trained one, then quantiles of p_null below it."""
    trained = calibration.options.null_threshold
    if calibration.options.risk_target == RiskTarget.PAPER:
        return [trained]
    levels = np.linspace(0.95, 0.05, _TAUS - 1)
    quantiles: list[float] = np.quantile(null_score(calibration.scores), levels).tolist()
    below = [each for each in dict.fromkeys(quantiles) if trained is None or each < trained]
    return [trained, *below]


def _with_tau(calibration: Calibration, tau: float | None) -> Calibration:
    return replace(calibration, options=replace(calibration.options, null_threshold=tau))
