"""What fits on a screen: the main measures at a few alphas, and the controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from racer_core.offline.evaluation_result import AVERAGE, SHORTFALL, Evaluation
from racer_core.offline.protocol import Order
from racer_core.offline.report.view import ANSWERABLE, Grid, View, described, number, spread, views
from racer_core.types import RiskTarget

SHOWN = (0.01, 0.05, 0.1, 0.2)
LEGEND = (
    "±: 1.96 standard errors over rows, or clusters of rows; (): standard deviation over splits; "
    "risk: what alpha bounds; saved: calls saved, of those that the full pool takes; random miss: "
    "what random sets of the same sizes miss, given answerable; an abstention is no right answer"
)
# The measures of a target; `risk` is the one that alpha bounds.
_SPREAD: Mapping[RiskTarget, Mapping[str, str]] = {
    RiskTarget.QUALITY: {SHORTFALL: "risk"},
    RiskTarget.PAPER: {"risk": "risk", "miss_given_answerable": "miss|answerable"},
    RiskTarget.ANSWERABLE: {"miss_given_answerable": "risk", "risk": "paper risk"},
}
_PLAIN = {
    "served_error": "served error",
    "false_abstain": "false abstain",
    "abstain": "abstain",
    "calls_saved": "saved",
    "random_miss": "random miss",
}


_GRADED = {name: _PLAIN[name] for name in ("abstain", "calls_saved")} | {
    "random_miss": "random shortfall"
}


def overview(evaluation: Evaluation, alphas: Sequence[float]) -> list[Grid]:
    """The sets and their votes under each risk target."""
    return [
        grid
        for target in evaluation.protocol.risk_targets
        for grid in (
            _sets(evaluation, target, alphas),
            *((_votes(evaluation, target, alphas),) if evaluation.answered else ()),
        )
    ]


def _sets(evaluation: Evaluation, target: RiskTarget, alphas: Sequence[float]) -> Grid:
    measures = {**_SPREAD[target], "size": "size"}
    plain = _GRADED if target is RiskTarget.QUALITY else _PLAIN
    return Grid(
        title=f"risk target: {target}",
        measured_on=described(evaluation),
        head=("scope", "score", "alpha", *measures.values(), *plain.values()),
        rows=tuple(
            (
                *(view.scope, score.value, f"{alpha:g}"),
                *(str(view.figure(score, alpha, name)) for name in measures),
                *(number(float(view.runs(score, alpha, name).mean())) for name in plain),
            )
            for view, score, alpha in _shown(evaluation, target, alphas)
        ),
    )


def _votes(evaluation: Evaluation, target: RiskTarget, alphas: Sequence[float]) -> Grid:
    rules = next(views(evaluation, target)).rules
    measures = (*(f"accuracy_{rule}" for rule in rules), "random_majority")
    return Grid(
        title=f"accuracy by vote, risk target: {target}",
        measured_on=described(evaluation),
        head=("scope", "score", "alpha", *rules, "random, majority"),
        rows=tuple(
            (
                *(view.scope, score.value, f"{alpha:g}"),
                *(str(view.figure(score, alpha, name)) for name in measures),
            )
            for view, score, alpha in _shown(evaluation, target, alphas)
        ),
    )


def _shown(
    evaluation: Evaluation, target: RiskTarget, alphas: Sequence[float]
) -> Iterator[tuple[View, Order, float]]:
    for view in views(evaluation, target):
        for score in view.scores:
            for alpha in view.alphas:
                if alpha in alphas:
                    yield view, score, alpha


def controls(evaluation: Evaluation) -> Grid:
    """Accuracy, or quality, of what every set must be compared with, on the same test rows."""
    target = evaluation.protocol.risk_targets[0]
    shown = list(views(evaluation, target))
    names = (*shown[0].fixed, ANSWERABLE)
    graded = target is RiskTarget.QUALITY
    titles = {ANSWERABLE: "best answer of the pool" if graded else "some candidate right"}
    return Grid(
        title=f"controls: {'quality' if graded else 'accuracy'} on the test rows",
        measured_on=described(evaluation),
        head=("", *(view.scope for view in shown)),
        rows=tuple(
            (titles.get(name, name), *(str(view.control(name)) for view in shown)) for name in names
        ),
    )


def evaluators(evaluation: Evaluation) -> list[Grid]:
    """The quality of each evaluator on validation rows; none where rows have no confidences."""
    if not evaluation.evaluators:
        return []
    return [
        Grid(
            title="evaluators on the validation rows: the largest AUC weighs the votes",
            measured_on=described(evaluation),
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


def same_answer(evaluation: Evaluation) -> list[Grid]:
    """Sequential calls beside their rivals; none where rows have no answers."""
    if not evaluation.sequences:
        return []
    priced = evaluation.protocol.prices is not None
    names = ("calls", "rounds", *(("price",) if priced else ()), "differs", "accuracy")
    return [
        Grid(
            title="same answer as the full pool's vote by agreement, on at least 1 - alpha",
            measured_on=described(evaluation),
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
        measured_on=described(evaluation),
        head=("scope", "calibration", "validation", "test"),
        rows=tuple(
            (scope, *map(str, evaluation.rows[scope]))
            for scope in evaluation.scopes
            if scope != AVERAGE
        ),
    )
