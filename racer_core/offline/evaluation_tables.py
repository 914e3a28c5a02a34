"""Tables of an evaluation in words: the terminal, the Markdown and the page show the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from racer_core.offline.evaluation_result import (
    FULL_POOL,
    RISK,
    SHORTFALL,
    TO_CALIBRATE,
    Evaluation,
    Setting,
)
from racer_core.offline.plan import FACTORS, Outlook, rows_within
from racer_core.offline.protocol import Control
from racer_core.offline.risk_law import risk_law
from racer_core.offline.votes import EVALUATED, Rule
from racer_core.types import FloatArray, RiskTarget, Score

SHOWN: Final = (0.01, 0.05, 0.1, 0.2)  # in the terminal
LEGEND: Final = (
    "±: 1.96 standard errors over rows, or clusters of rows; (): standard deviation over splits; "
    "risk: what alpha bounds; saved: calls saved, of those that the full pool takes; random miss: "
    "what random sets of the same sizes miss, given answerable; an abstention is no right answer"
)
_ANSWERABLE: Final = "answerable"
# The measures of a target; `risk` is the one that alpha bounds.
_RISKS: Final = {
    RiskTarget.QUALITY: {SHORTFALL: "risk"},
    RiskTarget.PAPER: {"risk": "risk", "miss_given_answerable": "miss|answerable"},
    RiskTarget.ANSWERABLE: {"miss_given_answerable": "risk", "risk": "paper risk"},
}
_SPREAD: Final = {"size": "size", "calls_saved": "saved", "cost": "cost"}
_MEANS: Final = {
    "served_error": "served error",
    "false_abstain": "false abstain",
    "abstain": "abstain",
    "random_miss": "random miss",
}
_GRADED_MEANS: Final = {"abstain": "abstain", "random_miss": "random shortfall"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table: words only, so that terminal, Markdown and HTML show the same."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def overview(evaluation: Evaluation, alphas: Sequence[float]) -> list[Grid]:
    """The sets and their votes under each risk target, at some alphas."""
    return [
        grid
        for target in evaluation.protocol.risk_targets
        for grid in of_target(evaluation, target, alphas)
    ]


def beside(evaluation: Evaluation) -> list[Grid]:
    """What sets are compared with: controls, equalities, sequential calls, evaluators."""
    return [
        controls(evaluation),
        *equalities(evaluation),
        *same_answer(evaluation),
        *evaluators(evaluation),
    ]


def forecasts(evaluation: Evaluation, alphas: Sequence[float]) -> list[Grid]:
    """The law of a calibration on all rows that did not train or choose; none of graded rows.

    A split of them calibrates on some and tests on others. The calibration that follows has all.
    """
    targets = [each for each in evaluation.protocol.risk_targets if each is not RiskTarget.QUALITY]
    return [_forecast(evaluation, target, alphas) for target in targets]


def _forecast(evaluation: Evaluation, target: RiskTarget, alphas: Sequence[float]) -> Grid:
    score = evaluation.protocol.scores[0]  # the law is the same for all

    def row(scope: str, alpha: float) -> tuple[str, ...]:
        setting = Setting(scope=scope, risk_target=target, score=score, alpha=alpha)
        law = Outlook.of(round(evaluation.mean(setting, TO_CALIBRATE)), alpha)
        wanted = rows_within(FACTORS[0] * alpha, alpha)
        risk = ("infeasible: all are called", "-")
        if law.is_feasible:
            risk = number(law.mean), f"{law.quantile(0.05):.3f} to {law.quantile(0.95):.3f}"
        return scope, f"{alpha:g}", str(law.n), *risk, "-" if wanted is None else f"{wanted:,}"

    return Grid(
        title=f"realised risk of a calibration on all rows that did not train or choose, {target}",
        head=("scope", "alpha", "rows that count", "mean risk", "5 to 95 %", "rows for 1.5 alpha"),
        rows=tuple(
            row(scope, alpha)
            for scope in evaluation.rows
            for alpha in sorted(set(evaluation.protocol.alphas))
            if alpha in alphas
        ),
    )


def of_target(
    evaluation: Evaluation, target: RiskTarget, alphas: Sequence[float]
) -> Iterator[Grid]:
    """Risk, size, calls and cost of the sets; then the accuracy of their votes."""
    shown = [each for each in settings(evaluation, target) if each.alpha in alphas]
    router, priced = evaluation.router, evaluation.protocol.prices is not None
    spread = _RISKS[target] | {k: v for k, v in _SPREAD.items() if priced or k != "cost"}
    means = _GRADED_MEANS if target is RiskTarget.QUALITY else _MEANS
    yield Grid(
        title=f"risk target: {target}, router: {router}",
        head=("scope", "score", "alpha", *spread.values(), *means.values()),
        rows=tuple(
            (
                *_named(evaluation, each),
                *(_measured(evaluation, each, name) for name in spread),
                *(number(evaluation.mean(each, name)) for name in means),
            )
            for each in shown
        ),
    )
    if evaluation.answered:
        voted = rules(evaluation)
        yield Grid(
            title=f"accuracy by vote, risk target: {target}, router: {router}",
            head=("scope", "score", "alpha", *voted, "random, majority"),
            rows=tuple(
                (
                    *_named(evaluation, each),
                    *(_measured(evaluation, each, f"accuracy_{rule}") for rule in voted),
                    _measured(evaluation, each, "random_majority"),
                )
                for each in shown
            ),
        )


def controls(evaluation: Evaluation) -> Grid:
    """Accuracy, or quality, of what every set must be compared with, on the same test rows."""
    graded = RiskTarget.QUALITY in evaluation.protocol.risk_targets
    titles = {_ANSWERABLE: "best answer of the pool" if graded else "some candidate right"}
    names = list(next(iter(evaluation.controls.values())))
    names.sort(key=lambda name: name == _ANSWERABLE)
    return Grid(
        title=f"controls: {'quality' if graded else 'accuracy'} on the test rows",
        head=("", *evaluation.scopes),
        rows=tuple(
            (
                titles.get(name, name),
                *(
                    spread(runs[name], evaluation.se_control(scope, name))
                    for scope, runs in evaluation.controls.items()
                ),
            )
            for name in names
        ),
    )


def evaluators(evaluation: Evaluation) -> list[Grid]:
    """The quality of each evaluator on validation rows; none where rows have no confidences."""
    if not evaluation.evaluators:
        return []
    return [
        Grid(
            title="evaluators on the validation rows: the largest AUC weighs the votes",
            head=("scope", "confidence", "evaluator", "AUC", "accuracy", "failed", "chosen"),
            rows=tuple(
                (
                    *(key.scope, key.weight.value, key.evaluator),
                    *(
                        spread(runs[name], evaluation.se_rows(key, name))
                        for name in ("auc", "accuracy")
                    ),
                    *(number(float(np.mean(runs[name]))) for name in ("failed", "chosen")),
                )
                for key, runs in evaluation.evaluators.items()
            ),
        )
    ]


def equalities(evaluation: Evaluation) -> list[Grid]:
    """The majority of all candidates by equality; none where rows have no answers."""
    if not evaluation.equalities:
        return []
    return [
        Grid(
            title="the majority of all candidates by --equality, the protocol's first",
            head=("equality", "answers read", "rows with two equal", "accuracy"),
            rows=tuple(
                (
                    *(each.equality.value, number(each.readable), number(each.agreement)),
                    spread([each.accuracy], each.se),
                )
                for each in evaluation.equalities
            ),
        )
    ]


def same_answer(evaluation: Evaluation) -> list[Grid]:
    """Sequential calls beside their rivals; none where rows have no answers."""
    if not evaluation.sequences:
        return []
    priced = evaluation.protocol.prices is not None
    names = ("calls", "rounds", *(("price",) if priced else ()), "differs", "accuracy")
    return [
        Grid(
            title="same answer as the full pool's vote by agreement, on at least 1 - alpha",
            head=("scope", "alpha", "calling", *names),
            rows=tuple(
                (
                    *(key.scope, f"{key.alpha:g}", key.calling.value),
                    *(spread(runs[name]) if name in runs else "-" for name in names),
                )
                for key, runs in evaluation.sequences.items()
            ),
        )
    ]


def rows(evaluation: Evaluation) -> Grid:
    """How many rows each scope has in every split."""
    return Grid(
        title="rows of a split",
        head=("scope", "calibration", "validation", "test"),
        rows=tuple((scope, *map(str, counts)) for scope, counts in evaluation.rows.items()),
    )


def law_grid(evaluation: Evaluation, target: RiskTarget) -> Grid:
    """The realised risk beside its exact law: 5 % of the means lie outside the range by luck."""

    def row(setting: Setting) -> tuple[str, ...]:
        risks = np.array(evaluation.cells[setting][RISK[target]])
        calibrating = evaluation.mean(setting, "calibration_rows")
        law = risk_law(evaluation, setting)
        cells = ("-",) * 4
        if law is not None:
            ranges = (f"{low:.3f} to {high:.3f}" for low, high in (law.interval, law.band))
            cells = number(law.mean), *ranges, law.verdict(risks)
        return (
            *_named(evaluation, setting),
            f"{calibrating:.1f}",
            number(float(risks.mean())),
            *cells,
        )

    return Grid(
        title=f"realised risk against its law, {target}",
        head=(
            *("scope", "score", "alpha", "n", "risk", "exact mean", "95 % of splits"),
            *("95 % of means", "risk lies"),
        ),
        rows=tuple(map(row, settings(evaluation, target))),
    )


def unmeasured(evaluation: Evaluation) -> Iterator[str]:
    """What the rows or the command do not allow, and why."""
    protocol = evaluation.protocol
    if RiskTarget.QUALITY in protocol.risk_targets:
        yield "votes on answers and their accuracy, as a vote counts equal answers and grades none"
    elif not evaluation.answered:
        yield "accuracy, votes and the choice of alpha and vote, as the rows have no answers"
    elif Rule.STACKED not in rules(evaluation):
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
        for scope in evaluation.rows:
            first = [each for each in settings(evaluation, target) if each.scope == scope]
            levels = [
                f"{each.alpha:g} ({count} of {protocol.splits} splits)"
                for each in first
                if each.score == first[0].score and (count := evaluation.infeasible(each))
            ]
            if levels:
                yield (
                    f"{target} on {scope} at alpha {', '.join(levels)}, as calibration rows are "
                    "too few: the whole pool is called there, and this alpha is not asserted"
                )
    yield "latency and tokens, as the rows hold labels and not calls"


def _unrated(evaluation: Evaluation) -> Iterator[str]:
    """The votes that need confidences which the rows do not record."""
    rated = {key.weight for key in evaluation.evaluators}
    for rule, weight in EVALUATED.items():
        if weight not in rated:
            count = evaluation.unrated.get(weight)
            recorded = "the rows record" if count is None else f"{count} rows record"
            yield (
                f"the vote weighted by an evaluator's {rule}, as {recorded} no such confidences: "
                f"`racer label --evaluator NAME --confidence {weight}` records them"
            )


def repeats(evaluation: Evaluation) -> str:
    """How many rows repeat a query, and what kind of rows each benchmark was taken for."""
    verb = "row repeats" if evaluation.copies == 1 else "rows repeat"
    kinds = [
        f"{name}: {kind}{' (guessed)' if name in evaluation.guessed else ''}"
        for name, kind in evaluation.kinds.items()
    ]
    if evaluation.learned:
        kinds.append(f"{evaluation.learned} rows of the artifact's training left out")
    return "; ".join([f"{evaluation.copies} {verb} a query", *kinds])


def described(evaluation: Evaluation) -> str:
    """Encoder, router, splits, number format and seed."""
    protocol = evaluation.protocol
    return (
        f"encoder {evaluation.encoder}, router {evaluation.router} "
        f"({evaluation.n_train} training rows), {protocol.splits} splits"
        + (f" in {protocol.divisions} divisions" if protocol.divisions > 1 else "")
        + (f", {evaluation.dtype}" if evaluation.dtype else "")
        + f", seed {protocol.seed}"
    )


def number(value: float) -> str:
    """Three decimals; a share of no rows is "-"."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def spread(runs: FloatArray | Sequence[float], se_rows: float = math.nan) -> str:
    """The mean, ± 1.96 standard errors over rows, and the standard deviation over splits."""
    mean = float(np.mean(runs))
    if math.isnan(mean):
        return "-"
    return f"{mean:.3f}{plus_minus(se_rows)} ({float(np.std(runs)):.3f})"


def plus_minus(error: float, digits: int = 3) -> str:
    """Half of a 95 % interval; nothing where the error is unknown."""
    return "" if math.isnan(error) else f" ±{1.96 * error:.{digits}f}"


def _measured(evaluation: Evaluation, setting: Setting, measure: str) -> str:
    return spread(evaluation.cells[setting][measure], evaluation.se_rows(setting, measure))


def _named(evaluation: Evaluation, setting: Setting) -> tuple[str, str, str]:
    """Scope, score, and alpha with the share of splits that have too few rows for it."""
    share = evaluation.infeasible_share(setting)
    mark = "" if share == 0.0 else " infeasible" if share == 1.0 else f" infeasible in {share:.0%}"
    return setting.scope, setting.score.value, f"{setting.alpha:g}{mark}"


def settings(evaluation: Evaluation, target: RiskTarget) -> Iterator[Setting]:
    """In the order of scopes, scores and alphas."""
    protocol = evaluation.protocol
    for scope in evaluation.scopes:
        for score in dict.fromkeys(protocol.scores):
            for alpha in sorted(set(protocol.alphas)):
                yield Setting(scope=scope, risk_target=target, score=score, alpha=alpha)


def rules(evaluation: Evaluation) -> tuple[Rule, ...]:
    """The votes that could be measured; none without recorded answers."""
    known = next(iter(evaluation.controls.values()))
    return tuple(rule for rule in Rule if f"{FULL_POOL}{rule}" in known)
