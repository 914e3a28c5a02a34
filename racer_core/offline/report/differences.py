"""Differences between settings on the same splits.

Splits re-split one pool of rows: a difference over them says how steady it is on these rows, and
its standard error is not that of fresh rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.report.grid import Grid, number
from racer_core.offline.report.view import FULL_POOL, View, described, views
from racer_core.offline.votes import EVALUATED, Rule
from racer_core.types import FloatArray, RiskTarget, Score

REMARK = (
    "mean ± 2 sd / sqrt(splits) treats splits as independent; they re-split one pool of rows, so "
    "it covers the luck of splitting and not the luck of the rows"
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
                *("2.5 %", "97.5 %", "± 2 sd / sqrt(splits)"),
            ),
            rows=tuple(_row(each) for each in found if each.measure == measure),
        )
        for measure in ("size", "accuracy")
        if any(each.measure == measure for each in found)
    ]


def _row(each: Difference) -> tuple[str, ...]:
    values = (each.mean, each.sd, each.low, each.high, each.margin)
    alpha = "-" if each.alpha is None else f"{each.alpha:g}"
    return each.scope, each.risk_target or "-", each.what, alpha, *map(number, values)


def _sizes(view: View) -> Iterator[Difference]:
    if Score.COVER not in view.scores:
        return
    for other in view.scores:
        for alpha in view.alphas if other != Score.COVER else ():
            runs = view.runs(Score.COVER, alpha, "size") - view.runs(other, alpha, "size")
            yield _difference(view, "size", f"{Score.COVER} - {other}", alpha, runs)


def _votes(view: View) -> Iterator[Difference]:
    for rule, other in _pairs(view):
        for score in view.scores:
            for alpha in view.alphas:
                own = view.runs(score, alpha, f"accuracy_{rule}")
                runs = own - view.runs(score, alpha, f"accuracy_{other}")
                what = f"{rule} - {other}, sets of {score}"
                yield _difference(view, "accuracy", what, alpha, runs)


def _full_pools(view: View) -> Iterator[Difference]:
    for rule, other in _pairs(view):
        runs = view.accuracy(f"{FULL_POOL}{rule}") - view.accuracy(f"{FULL_POOL}{other}")
        yield _difference(view, "accuracy", f"{rule} - {other}, full pool", None, runs)


def _pairs(view: View) -> list[tuple[Rule, Rule]]:
    """The learned and the evaluated votes, each against the votes that need neither."""
    pairs = [
        *((Rule.STACKED, other) for other in (Rule.MAJORITY, Rule.WEIGHTED)),
        *((rule, other) for rule in EVALUATED for other in (Rule.MAJORITY, Rule.WEIGHTED)),
    ]
    return [(rule, other) for rule, other in pairs if rule in view.rules]


def _difference(
    view: View, measure: str, what: str, alpha: float | None, runs: FloatArray
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
    )
