"""Differences between settings on the same splits, with errors over splits and over rows.

Splits re-split one pool of rows: their spread says how steady a difference is on these rows. The
standard error over rows says how far it would move on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.protocol import Order
from racer_core.offline.report.view import FULL_POOL, Grid, View, described, number, views
from racer_core.offline.row_errors import Influence, standard_error
from racer_core.offline.votes import EVALUATED, Rule
from racer_core.types import FloatArray, RiskTarget, Score

REMARK = (
    "mean ± 2 sd / sqrt(splits) treats splits as independent; they re-split one pool of rows, so "
    "it covers the luck of splitting and not the luck of the rows; ± 1.96 s.e. over rows covers "
    "both, given the trained router and what validation rows choose"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting minus another, split by split."""

    scope: str
    risk_target: RiskTarget | None  # None: of the full pool, which no target changes
    measure: str  # size or accuracy
    what: str
    alpha: float | None
    mean: float
    sd: float  # over splits
    low: float  # 2.5 percentile of the splits
    high: float  # 97.5 percentile
    margin: float  # 2 sd / sqrt(splits)
    se_rows: float  # over rows, or clusters of rows


def differences(evaluation: Evaluation) -> tuple[Difference, ...]:
    """Sizes of ``cover`` minus every other score; accuracy of learned votes minus others."""
    found: list[Difference] = []
    for target in evaluation.protocol.risk_targets:
        for view in views(evaluation, target):
            found += [*_sizes(view), *_votes(view)]
    for view in views(evaluation, evaluation.protocol.risk_targets[0]):
        found += _full_pools(view)
    return tuple(found)


def grids(evaluation: Evaluation, found: tuple[Difference, ...]) -> list[Grid]:
    """The differences of each measure as a table."""
    return [
        Grid(
            title=f"Paired differences in {measure}",
            measured_on=described(evaluation),
            head=(
                *("scope", "risk target", "difference", "alpha", "mean", "sd over splits"),
                *("2.5 %", "97.5 %", "± 2 sd / sqrt(splits)", "± 1.96 s.e. over rows"),
            ),
            rows=tuple(_row(each) for each in found if each.measure == measure),
        )
        for measure in ("size", "accuracy")
        if any(each.measure == measure for each in found)
    ]


def _row(each: Difference) -> tuple[str, ...]:
    values = (each.mean, each.sd, each.low, each.high, each.margin, 1.96 * each.se_rows)
    alpha = "-" if each.alpha is None else f"{each.alpha:g}"
    return each.scope, each.risk_target or "-", each.what, alpha, *map(number, values)


def _sizes(view: View) -> Iterator[Difference]:
    if Score.COVER not in view.scores:
        return
    for other in view.scores:
        for alpha in view.alphas if other != Score.COVER else ():
            runs = view.runs(Score.COVER, alpha, "size") - view.runs(other, alpha, "size")
            influence = _influence(view, Score.COVER, alpha, "size")
            influence = influence - _influence(view, other, alpha, "size")
            yield _difference(view, "size", f"{Score.COVER} - {other}", alpha, runs, influence)


def _votes(view: View) -> Iterator[Difference]:
    for rule, other in _pairs(view):
        for score in view.scores:
            for alpha in view.alphas:
                own = view.runs(score, alpha, f"accuracy_{rule}")
                runs = own - view.runs(score, alpha, f"accuracy_{other}")
                what = f"{rule} - {other}, sets of {score}"
                influence = _influence(view, score, alpha, f"accuracy_{rule}")
                influence = influence - _influence(view, score, alpha, f"accuracy_{other}")
                yield _difference(view, "accuracy", what, alpha, runs, influence)


def _full_pools(view: View) -> Iterator[Difference]:
    for rule, other in _pairs(view):
        runs = view.accuracy(f"{FULL_POOL}{rule}") - view.accuracy(f"{FULL_POOL}{other}")
        ours, theirs = (
            view.evaluation.influence(view.scope, f"{FULL_POOL}{each}", "accuracy")
            for each in (rule, other)
        )
        what = f"{rule} - {other}, full pool"
        yield _difference(view, "accuracy", what, None, runs, ours - theirs)


def _influence(view: View, score: Order, alpha: float, measure: str) -> Influence:
    return view.evaluation.influence(view.scope, view.setting(score, alpha), measure)


def _pairs(view: View) -> list[tuple[Rule, Rule]]:
    """The learned and the evaluated votes, each against the votes that need neither."""
    pairs = [
        *((Rule.STACKED, other) for other in (Rule.MAJORITY, Rule.WEIGHTED)),
        *((rule, other) for rule in EVALUATED for other in (Rule.MAJORITY, Rule.WEIGHTED)),
    ]
    return [(rule, other) for rule, other in pairs if rule in view.rules]


def _difference(
    view: View,
    measure: str,
    what: str,
    alpha: float | None,
    runs: FloatArray,
    influence: Influence,
) -> Difference:
    low, high = np.percentile(runs, [2.5, 97.5])
    return Difference(
        scope=view.scope,
        risk_target=None if alpha is None else view.target,
        measure=measure,
        what=what,
        alpha=alpha,
        mean=float(runs.mean()),
        sd=float(runs.std()),
        low=float(low),
        high=float(high),
        margin=2.0 * float(runs.std()) / math.sqrt(runs.size),
        se_rows=standard_error(influence),
    )
