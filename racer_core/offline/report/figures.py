"""The figures of a report, each with the numbers that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.protocol import Control, Order
from racer_core.offline.report import tables
from racer_core.offline.report.canvas import COLOURS, LAW, Canvas, plain
from racer_core.offline.report.overview import SHOWN
from racer_core.offline.report.risk_law import risk_law
from racer_core.offline.report.view import BEST, BEST_HERE, FULL_POOL, Grid, View, number, views
from racer_core.offline.votes import Rule
from racer_core.types import FloatArray, RiskTarget, Score

_QUANTILES = (0.0, 2.5, 25.0, 50.0, 75.0, 97.5, 100.0)
_Runs = Callable[[View, Order, float], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing, what it shows in words, and its numbers."""

    name: str  # of the file, without suffix
    title: str
    alt: str
    png: bytes
    data: tuple[Grid, ...]


def risk_spread(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """Realised risk of every split against its exact law."""
    shown = list(views(evaluation, target))
    canvas = Canvas.of(1, len(shown))
    for view, panel in zip(shown, canvas.panels, strict=True):
        _draw_laws(panel, view)
        _boxes(panel, view, View.risk)
        panel.set_ylabel("risk")
    canvas.legend()
    return Picture(
        name=f"risk-{target}",
        title=f"Risk over splits, {target}",
        alt="Box plots of the risk of each split by alpha and score; whiskers hold 95 % of the "
        "splits. The line is the mean of the exact law, its shade where 95 % of splits lie.",
        png=canvas.png(),
        data=tuple(_quantiles(view, "risk", View.risk) for view in shown),
    )


def size_spread(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """Mean size of every split."""
    shown = list(views(evaluation, target))
    canvas = Canvas.of(1, len(shown))
    for view, panel in zip(shown, canvas.panels, strict=True):
        _boxes(panel, view, _size)
        panel.set_ylabel("mean size")
    canvas.legend()
    return Picture(
        name=f"size-{target}",
        title=f"Size over splits, {target}",
        alt="Box plots of the mean size of each split by alpha and score; whiskers hold 95 % of "
        "the splits.",
        png=canvas.png(),
        data=tuple(_quantiles(view, "mean size", _size) for view in shown),
    )


def curves(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """Size against alpha; below it the risk, and that of random sets of the same sizes."""
    shown = list(views(evaluation, target))
    canvas = Canvas.of(2, len(shown))
    for view, above, below in zip(
        shown, canvas.panels[: len(shown)], canvas.panels[len(shown) :], strict=True
    ):
        _lines(above, view, _size)
        _lines(below, view, View.risk)
        for score in view.scores:
            missed = [view.runs(score, alpha, "random_miss").mean() for alpha in view.alphas]
            below.plot(
                view.alphas,
                missed,
                color=COLOURS[score],
                linestyle=":",
                label=f"random sets, sizes of {score}",
            )
        below.plot(view.alphas, view.alphas, color=LAW, linewidth=0.8, label="risk = alpha")
        _label(above, view.scope, "alpha", "mean size")
        _label(below, view.scope, "alpha", "risk")
    canvas.legend()
    return Picture(
        name=f"curves-{target}",
        title=f"Size and risk against alpha, {target}",
        alt="Above, mean size against alpha for each score with one standard deviation over "
        "splits. Below, the risk of the same sets and the share that random sets of the same "
        "sizes miss.",
        png=canvas.png(),
        data=tuple(grid(view) for view in shown for grid in (tables.sizes, tables.risks)),
    )


def efficiency(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """Calls saved against accuracy, beside the controls."""
    shown = list(views(evaluation, target))
    rule = Rule.STACKED if Rule.STACKED in shown[0].rules else Rule.MAJORITY
    canvas = Canvas.of(1, len(shown))
    for view, panel in zip(shown, canvas.panels, strict=True):
        for score in view.scores:
            _path(panel, view, score, f"accuracy_{rule}", "-", f"{score}, {rule}")
            _path(panel, view, score, "random_majority", ":", f"random, as large as {score}")
        singles = (BEST, BEST_HERE, "router top-1")
        for name, marker in zip((*singles, f"{FULL_POOL}{rule}"), "s^*D", strict=True):
            saved = 1.0 - view.fixed_size(name)[0] / len(evaluation.pool)
            panel.plot(saved, view.accuracy(name).mean(), marker, color="black", label=name)
        _label(panel, view.scope, "calls saved", "accuracy")
    canvas.legend()
    return Picture(
        name=f"efficiency-{target}",
        title=f"Calls saved against accuracy, {target}",
        alt=f"For each score the path over alpha of calls saved and accuracy of the {rule} vote, "
        "dotted for random sets of the same sizes; single points for the best single candidates, "
        "the router's first choice and the full pool.",
        png=canvas.png(),
        data=tuple(grid(view) for view in shown for grid in (tables.gains, tables.accuracies)),
    )


def chosen(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """How often validation rows chose each alpha and vote: a panel per scope and score."""
    shown = list(views(evaluation, target))
    scores = shown[0].scores
    pairs = [(view, score) for view in shown for score in scores]
    canvas = Canvas.of(len(shown), len(scores))
    for (view, score), panel in zip(pairs, canvas.panels, strict=True):
        counts = tables.choice_counts(view, score)
        heat = np.array([[counts[a, rule.value] for a in view.alphas] for rule in view.rules])
        panel.imshow(heat, aspect="auto", cmap="viridis", vmin=0)
        panel.set_xticks(range(len(view.alphas)), [f"{a:g}" for a in view.alphas], rotation=90)
        panel.set_yticks(range(len(view.rules)), [rule.value for rule in view.rules])
        _label(panel, f"{view.scope}, {score}", "alpha", "")
    return Picture(
        name=f"chosen-{target}",
        title=f"Alpha and vote chosen on validation rows, {target}",
        alt="Heat maps of how many splits chose each alpha and vote; brighter is more often.",
        png=canvas.png(),
        data=tuple(tables.chosen(view, score) for view, score in pairs),
    )


def frontier(evaluation: Evaluation, target: RiskTarget) -> Picture:
    """Alpha against money."""
    shown = list(views(evaluation, target))
    canvas = Canvas.of(1, len(shown))
    for view, panel in zip(shown, canvas.panels, strict=True):
        _lines(panel, view, _cost)
        panel.axhline(sum(evaluation.protocol.prices or ()), color="black", label="full pool")
        _label(panel, view.scope, "alpha", "money a query")
    canvas.legend()
    return Picture(
        name=f"money-{target}",
        title=f"Alpha against money, {target}",
        alt="Mean money a query against alpha for each score, with one standard deviation over "
        "splits, and the price of the full pool.",
        png=canvas.png(),
        data=tuple(tables.costs(view) for view in shown),
    )


def _few(view: View) -> list[float]:
    """A few alphas, so that boxes stay apart."""
    return [alpha for alpha in view.alphas if alpha in SHOWN] or view.alphas[: len(SHOWN)]


def _size(view: View, score: Order, alpha: float) -> FloatArray:
    return view.runs(score, alpha, "size")


def _cost(view: View, score: Order, alpha: float) -> FloatArray:
    return view.runs(score, alpha, "cost")


def _boxes(panel: Any, view: View, runs: _Runs) -> None:
    """A box per alpha and score."""
    alphas = _few(view)
    width = 0.8 / len(view.scores)
    for number_, score in enumerate(view.scores):
        at = [place - 0.4 + width * (number_ + 0.5) for place in range(len(alphas))]
        panel.boxplot(
            [runs(view, score, alpha) for alpha in alphas],
            positions=at,
            widths=0.8 * width,
            whis=(2.5, 97.5),
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": COLOURS[score], "alpha": 0.6},
            medianprops={"color": "black"},
        )
        panel.plot([], [], color=COLOURS[score], linewidth=6, alpha=0.6, label=score.value)
    panel.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    _label(panel, view.scope, "alpha", "")


def _draw_laws(panel: Any, view: View) -> None:
    """The exact law behind each box."""
    width = 0.8 / len(view.scores)
    for place, alpha in enumerate(_few(view)):
        for number_, score in enumerate(view.scores):
            law = risk_law(view, score, alpha)
            if law is None:
                continue
            left = place - 0.4 + width * number_
            across = (left, left + width)
            panel.fill_between(
                across, *law.interval, color=LAW, alpha=0.15, linewidth=0, label="exact law, 95 %"
            )
            panel.plot(
                across, (law.mean, law.mean), color=LAW, linewidth=1.2, label="exact law, mean"
            )


def _lines(panel: Any, view: View, runs: _Runs) -> None:
    """The mean of each score against alpha, with one standard deviation to each side."""
    for score in view.scores:
        values = np.array([runs(view, score, alpha) for alpha in view.alphas])
        mean, sd = values.mean(axis=1), values.std(axis=1)
        style = "--" if score in (Score.STATIC, Control.STATIC_BY_GROUP) else "-"
        panel.plot(view.alphas, mean, style, color=COLOURS[score], label=score.value)
        panel.fill_between(view.alphas, mean - sd, mean + sd, color=COLOURS[score], alpha=0.15)


def _path(panel: Any, view: View, score: Order, measure: str, style: str, label: str) -> None:
    saved = [view.runs(score, alpha, "calls_saved").mean() for alpha in view.alphas]
    accuracy = [view.runs(score, alpha, measure).mean() for alpha in view.alphas]
    panel.plot(saved, accuracy, style, marker=".", color=COLOURS[score], label=label)


def _label(panel: Any, title: str, across: str, up: str) -> None:
    panel.set_title(plain(title))
    panel.set_xlabel(across)
    panel.set_ylabel(up)


def _quantiles(view: View, name: str, runs: _Runs) -> Grid:
    return Grid(
        title=f"Quantiles of {name} over splits, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=("score", "alpha", *(f"{q:g} %" for q in _QUANTILES)),
        rows=tuple(_quantile_rows(view, runs)),
    )


def _quantile_rows(view: View, runs: _Runs) -> Iterator[tuple[str, ...]]:
    for score in view.scores:
        for alpha in _few(view):
            values = np.percentile(runs(view, score, alpha), _QUANTILES)
            yield score.value, f"{alpha:g}", *(number(float(value)) for value in values)
