"""The paper's headline: sets with a vote, against the tuned full pool and the best candidate.

Alpha and vote are those that each split's validation rows choose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.protocol import Order
from racer_core.offline.report.view import BEST, FULL_POOL, Grid, View, number, views
from racer_core.offline.row_errors import standard_error
from racer_core.types import FloatArray, RiskTarget

TUNED = f"{FULL_POOL}tuned"
REMARK = (
    "Alpha and vote chosen on each split's validation rows. Gains are paired, in points of "
    "accuracy; ± is 1.96 standard errors over rows, given the router and the choices"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One score with the alpha and the vote that validation rows choose."""

    scope: str
    risk_target: RiskTarget
    score: Order
    accuracy: float
    se_accuracy: float  # over rows, as all that follow
    size: float
    se_size: float
    calls_saved: float  # of those that the full pool takes
    over_full_pool: float  # accuracy gained over the full pool with its tuned vote
    se_over_full_pool: float
    over_best_single: float  # over the best candidate over all benchmarks, in hindsight
    se_over_best_single: float


def headlines(evaluation: Evaluation) -> tuple[Headline, ...]:
    """Every scope, target and score for which the validation rows could choose in every split."""
    if not evaluation.answered:
        return ()
    return tuple(
        found
        for target in evaluation.protocol.risk_targets
        for view in views(evaluation, target)
        for score in view.scores
        if (found := _headline(view, score)) is not None
    )


def _headline(view: View, score: Order) -> Headline | None:
    evaluation = view.evaluation
    accuracy, size = (_chosen(view, score, name) for name in ("accuracy", "size"))
    if accuracy is None or size is None or TUNED not in evaluation.controls[view.scope]:
        return None
    of_accuracy, of_size = (
        evaluation.chosen_influence(view.scope, view.target, score, name)
        for name in ("accuracy", "size")
    )

    def over(control: str) -> tuple[float, float]:
        influence = of_accuracy - evaluation.influence(view.scope, control, "accuracy")
        gain = float((accuracy - view.accuracy(control)).mean())
        return gain, standard_error(influence)

    (full, se_full), (best, se_best) = over(TUNED), over(BEST)
    return Headline(
        scope=view.scope,
        risk_target=view.target,
        score=score,
        accuracy=float(accuracy.mean()),
        se_accuracy=standard_error(of_accuracy),
        size=float(size.mean()),
        se_size=standard_error(of_size),
        calls_saved=1.0 - float(size.mean()) / len(evaluation.pool),
        over_full_pool=full,
        se_over_full_pool=se_full,
        over_best_single=best,
        se_over_best_single=se_best,
    )


def _chosen(view: View, score: Order, name: str) -> FloatArray | None:
    """What the chosen settings did in every split; None if some split could not choose."""
    parts = [
        [
            getattr(each, name)
            for each in view.evaluation.choices
            if (each.scope, each.risk_target, each.score) == (part.scope, view.target, score)
        ]
        for part in view.parts
    ]
    if any(len(part) != view.evaluation.protocol.splits for part in parts):
        return None
    return np.mean(np.array(parts), axis=0)


def grid(view: View) -> Grid:
    """The headline of one scope and target."""
    own = [
        each
        for each in headlines(view.evaluation)
        if (each.scope, each.risk_target) == (view.scope, view.target)
    ]
    return Grid(
        title=f"Sets against the full pool and the best candidate, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=(
            *("", "accuracy", "size", "calls saved"),
            *("points over full pool, tuned", f"points over {BEST}"),
        ),
        rows=tuple(_row(each) for each in own),
    )


def _row(each: Headline) -> tuple[str, ...]:
    return (
        each.score.value,
        interval(each.accuracy, each.se_accuracy),
        interval(each.size, each.se_size),
        number(each.calls_saved),
        _points(each.over_full_pool, each.se_over_full_pool),
        _points(each.over_best_single, each.se_over_best_single),
    )


def _points(gain: float, error: float) -> str:
    return f"{100.0 * gain:+.2f} ±{196.0 * error:.2f}"


def interval(mean: float, error: float) -> str:
    """A mean and half of its 95 % interval."""
    return number(mean) if math.isnan(error) else f"{mean:.3f} ±{1.96 * error:.3f}"
