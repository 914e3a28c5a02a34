"""The order of a report, and what it says in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from racer_core.offline.evaluation_result import AVERAGE, Evaluation
from racer_core.offline.protocol import CalibrationScope, Control, Protocol
from racer_core.offline.report import differences, figures, headline, overview, tables
from racer_core.offline.report.differences import Difference
from racer_core.offline.report.figures import Picture
from racer_core.offline.report.view import FULL_POOL, Grid, View, described, repeats, views
from racer_core.offline.votes import EVALUATED, Rule
from racer_core.types import RiskTarget, Score

_CALIBRATED = {
    CalibrationScope.EACH: "each benchmark's own rows",
    CalibrationScope.MERGED: "the rows of all benchmarks together",
}
_UNSMOOTHED = (
    "Without smoothing, scores that tie leave part of alpha unspent, `static` most of all: compare "
    "sizes at the risk that was realised, or with --smoothing."
)

_ROWS = (
    "± is 1.96 standard errors over rows, or clusters of rows: it covers other rows and other "
    "splits, the thresholds included, given the trained router and what validation rows choose. "
    "Below five ranks, alpha (n + 1) < 5, it is too small."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences, tables and figures."""

    title: str
    text: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()


def sections(
    evaluation: Evaluation, command: str, found: tuple[Difference, ...]
) -> Iterator[Section]:
    """The whole report."""
    yield _protocol(evaluation, command)
    yield Section(
        title="Overview",
        text=(f"{overview.LEGEND}.",),
        grids=(
            *overview.overview(evaluation, overview.SHOWN),
            overview.controls(evaluation),
            *overview.same_answer(evaluation),
            *overview.evaluators(evaluation),
        ),
    )
    for target in evaluation.protocol.risk_targets:
        yield from _of_target(evaluation, target)
    yield Section(
        title="Paired differences",
        text=(differences.REMARK + ".",),
        grids=tuple(differences.grids(evaluation, found)),
    )


def _of_target(evaluation: Evaluation, target: RiskTarget) -> Iterator[Section]:
    def of_scopes(*kinds: Callable[[View], Grid]) -> tuple[Grid, ...]:
        return tuple(kind(view) for kind in kinds for view in views(evaluation, target))

    is_graded = target is RiskTarget.QUALITY
    yield Section(
        title=f"Risk, {target}",
        text=(
            "Graded losses leave no exact law. The mean over splits stays below alpha but for the "
            "luck of the splits."
            if is_graded
            else "With distinct critical scores risk follows an exact law. Below its band: ties, "
            "or rows that abstain; above: one cell in forty by luck, more is a fault.",
        ),
        grids=of_scopes(*([] if is_graded else [tables.law_check]), tables.risks),
        pictures=(figures.risk_spread(evaluation, target),),
    )
    yield Section(
        title=f"Size, {target}",
        grids=of_scopes(tables.sizes),
        pictures=(
            figures.size_spread(evaluation, target),
            figures.curves(evaluation, target),
        ),
    )
    if evaluation.answered:
        yield Section(
            title=f"Headline, {target}",
            text=(f"{headline.REMARK}.",),
            grids=tuple(each for each in of_scopes(headline.grid) if each.rows),
        )
        yield Section(
            title=f"Accuracy, {target}",
            grids=of_scopes(tables.accuracies, tables.gains, tables.choices),
            pictures=(
                figures.efficiency(evaluation, target),
                figures.chosen(evaluation, target),
            ),
        )
    if evaluation.protocol.prices is not None:
        yield Section(
            title=f"Money, {target}",
            grids=of_scopes(tables.costs),
            pictures=(figures.frontier(evaluation, target),),
        )


def _protocol(evaluation: Evaluation, command: str) -> Section:
    protocol = evaluation.protocol
    budget = protocol.false_abstain_budget
    return Section(
        title="What was measured",
        text=(
            f"{described(evaluation)}; pool of {len(evaluation.pool)}: "
            f"{', '.join(evaluation.pool)}.",
            f"Made by: {command}",
            f"Thresholds are set on {_CALIBRATED[protocol.calibrated]}; equality of answers "
            f"{protocol.equality}; smoothing {'in both phases' if protocol.smoothing else 'none'}; "
            f"abstention because of p_null {'never' if budget is None else f'budgeted {budget:g}'}."
            " Training rows are never tested; of queries asked twice, "
            f"{repeats(evaluation)}.",
            _ROWS,
            _spread(protocol),
            *(() if protocol.smoothing else (_UNSMOOTHED,)),
            *(f"Not measured: {each}." for each in unmeasured(evaluation)),
        ),
        grids=(overview.rows(evaluation),),
    )


def _spread(protocol: Protocol) -> str:
    """What splits share and what divisions add."""
    if protocol.divisions == 1:
        return (
            "In brackets: the standard deviation over splits, which re-split one pool of rows "
            "around one trained router: the choice of the training rows is not in it."
        )
    return (
        f"In brackets: the standard deviation over splits of {protocol.divisions} divisions into "
        "training rows and others, with a router trained for each division."
    )


def unmeasured(evaluation: Evaluation) -> Iterator[str]:
    """What the rows or the command do not allow, and why."""
    protocol = evaluation.protocol
    if RiskTarget.QUALITY in protocol.risk_targets:
        yield "votes on answers and their accuracy, as a vote counts equal answers and grades none"
    elif not evaluation.answered:
        yield "accuracy, votes and the choice of alpha and vote, as the rows have no answers"
    elif f"{FULL_POOL}{Rule.STACKED}" not in next(iter(evaluation.controls.values())):
        yield (
            "the stacked vote, as too few training rows have both a right and a wrong answer "
            "to fit it on"
        )
    if evaluation.answered:
        yield from _unrated(evaluation)
    if protocol.prices is None:
        yield "money, as no prices were given"
    if Score.STATIC not in protocol.scores:
        yield "the fixed order that never sees a query (`static`), as it was left out"
    if Control.STATIC_BY_GROUP not in protocol.scores:
        yield "a fixed order for each group, as the rows have one group or it was left out"
    for target in protocol.risk_targets:
        for view in views(evaluation, target):
            if view.scope != AVERAGE and (levels := ", ".join(_infeasible(view))):
                yield (
                    f"{target} on {view.scope} at alpha {levels}, as calibration rows are too few: "
                    "the whole pool is called there, and this alpha is not asserted"
                )
    yield "latency and tokens, as the rows hold labels and not calls"


def _unrated(evaluation: Evaluation) -> Iterator[str]:
    """The votes that need confidences which the rows do not record."""
    rated = {key.weight for key in evaluation.evaluators}
    for rule, weight in EVALUATED.items():
        if weight not in rated:
            count = evaluation.unrated.get(weight)
            rows = "the rows record" if count is None else f"{count} rows record"
            yield (
                f"the vote weighted by an evaluator's {rule}, as {rows} no such confidences: "
                f"`racer label --evaluator NAME --confidence {weight}` records them"
            )


def _infeasible(view: View) -> Iterator[str]:
    """Each infeasible alpha, and in how many splits it is."""
    splits = view.evaluation.protocol.splits
    for alpha in view.alphas:
        if count := view.infeasible(alpha):
            yield f"{alpha:g} ({count} of {splits} splits)"
