"""Report of `racer evaluate`: one Markdown file and one HTML page with the same tables.

The page needs no other file; it adds two line charts for each target.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from racer_core.errors import InputError
from racer_core.offline import evaluation_tables as tables
from racer_core.offline.evaluation_result import (
    BEST,
    FULL_POOL,
    RISK,
    Chosen,
    Evaluation,
    Setting,
)
from racer_core.offline.protocol import CalibrationScope, Control, Order
from racer_core.offline.standard_errors import RESAMPLES, standard_error
from racer_core.offline.votes import EVALUATED, Rule
from racer_core.types import RiskTarget, Score

_ERRORS: Final = (
    f"± is 1.96 standard errors over rows, by {RESAMPLES:,} bootstrap resamples of the clusters of "
    "rows (a query is a cluster, unless rows name one). It includes the draw of test and "
    "calibration rows; it does not include the draw of the training rows, nor what validation rows "
    "choose. Below five ranks, alpha (n + 1) < 5, it is too small. Where all rows are alike, it is "
    "what n of them leave open: 3/n of the measure's range. It is 0 where no threshold was set."
)
_LAW: Final = (
    "With distinct critical scores risk follows an exact law, given the number of calibration "
    "rows. Below the range of its means: ties, or rows that abstain; above: one cell in forty by "
    "luck, more is a fault."
)
_CALIBRATED: Final = {
    CalibrationScope.EACH: "each benchmark's own rows",
    CalibrationScope.MERGED: "the rows of all benchmarks together",
}
_TUNED: Final = f"{FULL_POOL}tuned"
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#~&!])")
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
.wide { overflow-x: auto; margin: 0 0 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; }
th, td { padding: 0.15rem 0.6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 44rem; font-size: 12px; text-anchor: middle; fill: currentColor; }
.name { text-anchor: start; }
.axis, polyline { fill: none; stroke-width: 1.5; }
.axis { stroke: currentColor; }
"""
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS: Final[dict[Order, str]] = {
    Score.GAP: "#0072b2",
    Score.PROB: "#e69f00",
    Score.COVER: "#009e73",
    Score.COVER_COST: "#cc79a7",
    Score.STATIC: "#777777",
    Control.STATIC_BY_GROUP: "#56b4e9",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences, tables, and charts as SVG, which Markdown leaves out."""

    title: str
    text: tuple[str, ...] = ()
    grids: tuple[tables.Grid, ...] = ()
    charts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One score with the alpha and the vote that validation rows choose; errors over rows."""

    scope: str
    risk_target: RiskTarget
    score: Order
    accuracy: float
    se_accuracy: float
    size: float
    se_size: float
    calls_saved: float  # of those that the full pool takes
    over_full_pool: float  # accuracy gained over the full pool with its tuned vote
    se_over_full_pool: float
    over_best_single: float  # over the best candidate over all benchmarks, in hindsight
    se_over_best_single: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting minus another at the same alpha, on the same splits and the same resamples."""

    scope: str
    risk_target: RiskTarget | None  # None: of the full pool, which no target changes
    measure: str  # size or accuracy
    what: str
    alpha: float | None
    mean: float
    sd: float  # over splits
    se_rows: float


def check_report(folder: Path) -> None:
    """Refuse a report that could not be written, before anything is measured. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _cannot(folder, exc) from exc


def write_report(evaluation: Evaluation, folder: Path, command: str) -> None:
    """Write results.json, results.md and index.html.

    Args:
        evaluation: What was measured.
        folder: Made if it is not there; files of an earlier report are replaced.
        command: What measured it, to be run again.

    Raises:
        InputError: The folder cannot be written.
    """
    check_report(folder)
    parts = list(sections(evaluation, command))
    results = {
        "command": command,
        **evaluation.as_json(),
        "differences": [asdict(each) for each in differences(evaluation)],
        "headlines": [asdict(each) for each in headlines(evaluation)],
    }
    files = {
        "results.json": json.dumps(results, ensure_ascii=False) + "\n",
        "results.md": markdown(parts),
        "index.html": html(parts),
    }
    try:
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")
    except OSError as exc:
        raise _cannot(folder, exc) from exc


def sections(evaluation: Evaluation, command: str) -> Iterator[Section]:
    """The whole report."""
    targets = evaluation.protocol.risk_targets
    if found := headlines(evaluation):
        yield Section(
            title="Headline",
            text=(
                "Alpha and vote are those that each split's validation rows choose. Gains are "
                f"paired, in points of accuracy. {_ERRORS}",
            ),
            grids=(_headline_grid(found),),
        )
    yield _protocol(evaluation, command)
    for target in targets:
        yield Section(
            title=f"Risk, size, calls, cost and accuracy, {target}",
            text=(f"{tables.LEGEND}.",),
            grids=tuple(tables.of_target(evaluation, target, evaluation.protocol.alphas)),
            charts=tuple(_charts(evaluation, target)),
        )
        if target is not RiskTarget.QUALITY:
            yield Section(
                title=f"Law of the risk, {target}",
                text=(_LAW,),
                grids=(tables.law_grid(evaluation, target),),
            )
    if forecasts := tables.forecasts(evaluation, evaluation.protocol.alphas):
        yield Section(
            title="Risk to expect of the calibration",
            text=(
                "A split calibrates on some of the rows. The calibration that follows has all that "
                "did not train or choose, and its realised risk has this law, whatever the router.",
            ),
            grids=tuple(forecasts),
        )
    yield Section(title="Controls", grids=tuple(tables.beside(evaluation)))
    gaps = differences(evaluation)
    if gaps:
        yield Section(
            title="Paired differences",
            text=("Of two settings at the same alpha, on the same splits. " + _ERRORS,),
            grids=tuple(_difference_grids(gaps)),
        )


def headlines(evaluation: Evaluation) -> tuple[Headline, ...]:
    """Every scope, target and score for which the validation rows could choose in every split."""
    if not evaluation.answered:
        return ()
    return tuple(
        found
        for target in evaluation.protocol.risk_targets
        for scope in evaluation.scopes
        for score in dict.fromkeys(evaluation.protocol.scores)
        if (found := _headline(evaluation, scope, Chosen(target, score))) is not None
    )


def _headline(evaluation: Evaluation, scope: str, key: Chosen) -> Headline | None:
    """None if some split could not choose."""
    parts = [
        [
            (each.accuracy, each.size)
            for each in evaluation.choices
            if (each.scope, each.risk_target, each.score) == (part, key.risk_target, key.score)
        ]
        for part in evaluation.parts(scope)
    ]
    if any(len(part) != evaluation.protocol.splits for part in parts):
        return None
    accuracy, size = (float(each) for each in np.mean(parts, axis=(0, 1)))
    drawn = evaluation.draws(scope, key, "accuracy")

    def over(control: str) -> tuple[float, float]:
        gain = accuracy - float(np.mean(evaluation.controls[scope][control]))
        lead = drawn - evaluation.draws(scope, control, "accuracy")
        return gain, evaluation.error(scope, "accuracy", lead)

    (full, se_full), (best, se_best) = over(_TUNED), over(BEST)
    return Headline(
        scope=scope,
        risk_target=key.risk_target,
        score=key.score,
        accuracy=accuracy,
        se_accuracy=evaluation.error(scope, "accuracy", drawn),
        size=size,
        se_size=evaluation.error(scope, "size", evaluation.draws(scope, key, "size")),
        calls_saved=1.0 - size / len(evaluation.pool),
        over_full_pool=full,
        se_over_full_pool=se_full,
        over_best_single=best,
        se_over_best_single=se_best,
    )


def _headline_grid(found: Iterable[Headline]) -> tables.Grid:
    def points(gain: float, error: float) -> str:
        return f"{100.0 * gain:+.2f}{tables.plus_minus(100.0 * error, 2)}"

    return tables.Grid(
        title="sets against the full pool and the best candidate",
        head=(
            *("scope", "risk target", "score", "accuracy", "size", "calls saved"),
            *("points over full pool, tuned", f"points over {BEST}"),
        ),
        rows=tuple(
            (
                *(each.scope, each.risk_target.value, each.score.value),
                tables.number(each.accuracy) + tables.plus_minus(each.se_accuracy),
                tables.number(each.size) + tables.plus_minus(each.se_size),
                tables.number(each.calls_saved),
                points(each.over_full_pool, each.se_over_full_pool),
                points(each.over_best_single, each.se_over_best_single),
            )
            for each in found
        ),
    )


def differences(evaluation: Evaluation) -> tuple[Difference, ...]:
    """Sizes of ``cover`` minus every other score; accuracy of learned votes minus others."""
    found: list[Difference] = []
    rules = tables.rules(evaluation)
    pairs = [
        (rule, other)
        for rule in (Rule.STACKED, *EVALUATED)
        for other in (Rule.MAJORITY, Rule.WEIGHTED)
        if rule in rules
    ]
    for target in evaluation.protocol.risk_targets:
        for one in tables.settings(evaluation, target):
            cover = replace(one, score=Score.COVER)
            if one.score != Score.COVER and cover in evaluation.cells:
                found.append(_difference(evaluation, (cover, "size"), (one, "size")))
            found += [
                _difference(evaluation, (one, f"accuracy_{rule}"), (one, f"accuracy_{other}"))
                for rule, other in pairs
            ]
    for scope, runs in evaluation.controls.items():
        for rule, other in pairs:
            ours, theirs = f"{FULL_POOL}{rule}", f"{FULL_POOL}{other}"
            gaps = np.subtract(runs[ours], runs[theirs])
            drawn = evaluation.draws(scope, ours, "accuracy")
            found.append(
                Difference(
                    scope=scope,
                    risk_target=None,
                    measure="accuracy",
                    what=f"{rule} - {other}, full pool",
                    alpha=None,
                    mean=float(gaps.mean()),
                    sd=float(gaps.std()),
                    se_rows=standard_error(drawn - evaluation.draws(scope, theirs, "accuracy")),
                )
            )
    return tuple(found)


def _difference(
    evaluation: Evaluation, ours: tuple[Setting, str], theirs: tuple[Setting, str]
) -> Difference:
    """A measure of one setting minus that of another."""
    (one, measure), (other, base) = ours, theirs
    gaps = np.subtract(evaluation.cells[one][measure], evaluation.cells[other][base])
    drawn = [evaluation.draws(each.scope, each, name) for each, name in (ours, theirs)]
    kind, _, _ = measure.partition("_")
    names = [each.removeprefix("accuracy_") for each in (measure, base)]
    return Difference(
        scope=one.scope,
        risk_target=one.risk_target,
        measure=kind,
        what=f"{one.score} - {other.score}"
        if one != other
        else f"{names[0]} - {names[1]}, sets of {one.score}",
        alpha=one.alpha,
        mean=float(gaps.mean()),
        sd=float(gaps.std()),
        se_rows=evaluation.error(one.scope, kind, drawn[0] - drawn[1]),
    )


def _difference_grids(found: Sequence[Difference]) -> Iterator[tables.Grid]:
    for measure in ("size", "accuracy"):
        own = tuple(
            (
                *(each.scope, each.risk_target or "-", each.what),
                *("-" if each.alpha is None else f"{each.alpha:g}", tables.number(each.mean)),
                *(tables.number(1.96 * each.se_rows), tables.number(each.sd)),
            )
            for each in found
            if each.measure == measure
        )
        if own:
            head = ("scope", "risk target", "difference", "alpha", "mean", "±", "sd over splits")
            yield tables.Grid(title=f"paired differences in {measure}", head=head, rows=own)


def _protocol(evaluation: Evaluation, command: str) -> Section:
    protocol = evaluation.protocol
    budget = protocol.false_abstain_budget
    over = (
        "which re-split one pool of rows around one trained router"
        if protocol.divisions == 1
        else f"of {protocol.divisions} divisions into training rows and others, with a router "
        "trained for each division"
    )
    return Section(
        title="What was measured",
        text=(
            f"{tables.described(evaluation)}; pool of {len(evaluation.pool)}: "
            f"{', '.join(evaluation.pool)}.",
            f"Made by: {command}",
            f"Thresholds are set on {_CALIBRATED[protocol.calibrated]}; equality of answers "
            f"{protocol.equality}; "
            f"abstention because of p_null {'never' if budget is None else f'budgeted {budget:g}'}."
            " Training rows are never tested; of queries asked twice, "
            f"{tables.repeats(evaluation)}.",
            _ERRORS,
            f"In brackets: the standard deviation over splits, {over}.",
            *(f"Not measured: {each}." for each in tables.unmeasured(evaluation)),
        ),
        grids=(tables.rows(evaluation),),
    )


def markdown(parts: Iterable[Section]) -> str:
    """The whole text, without the charts."""
    lines = ["# Evaluation", ""]
    for part in parts:
        lines += [f"## {_plain(part.title)}", ""]
        for sentence in part.text:
            lines += [_plain(sentence), ""]
        for grid in part.grids:
            ruler = "|" + " --- |" * len(grid.head)
            lines += [f"**{_plain(grid.title)}**", "", _line(grid.head), ruler]
            lines += [*map(_line, grid.rows), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Words that mean nothing to Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def html(parts: Iterable[Section]) -> str:
    """The whole page; no network and no script is used."""
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Evaluation</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        "<h1>Evaluation</h1>",
    ]
    for part in parts:
        lines.append(f"<h2>{escape(part.title)}</h2>")
        lines += [f"<p>{escape(sentence)}</p>" for sentence in part.text]
        lines += part.charts
        for grid in part.grids:
            head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in grid.head)
            lines.append(f'<div class="wide"><table><caption>{escape(grid.title)}</caption>')
            lines.append(f"<thead><tr>{head}</tr></thead><tbody>")
            for first, *cells in grid.rows:
                data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                lines.append(f'<tr><th scope="row">{escape(first)}</th>{data}</tr>')
            lines.append("</tbody></table></div>")
    return "\n".join([*lines, "</body>\n</html>\n"])


def _charts(evaluation: Evaluation, target: RiskTarget) -> Iterator[str]:
    """Mean size and risk against alpha: of all rows, or the mean over benchmarks."""
    scope = evaluation.scopes[-1]
    for name, measure in (("mean size", "size"), ("risk", RISK[target])):
        lines: dict[Order, list[tuple[float, float]]] = {}
        for each in tables.settings(evaluation, target):
            value = evaluation.mean(each, measure)
            if each.scope == scope and not math.isnan(value):
                lines.setdefault(each.score, []).append((each.alpha, value))
        if lines:
            yield _chart(f"{name} against alpha, {scope}", lines)


def _chart(title: str, lines: Mapping[Order, list[tuple[float, float]]]) -> str:
    """A line for each score, from the origin to the largest alpha and value."""
    width, height, left, top = 480, 240, 50, 20
    right = max(x for points in lines.values() for x, _ in points)
    highest = max(y for points in lines.values() for _, y in points) or 1.0

    def at(x: float, y: float) -> tuple[str, str]:
        return f"{left + width * x / right:.1f}", f"{top + height * (1.0 - y / highest):.1f}"

    drawn = [f'<path d="M{left} {top}V{top + height}H{left + width}" class="axis"/>']
    for share in (0.0, 0.5, 1.0):
        x, y = at(share * right, share * highest)
        drawn.append(f'<text x="{x}" y="{top + height + 16}">{share * right:.3g}</text>')
        drawn.append(f'<text x="{left - 26}" y="{y}">{share * highest:.3g}</text>')
    for place, (score, points) in enumerate(lines.items()):
        dots = " ".join(",".join(at(x, y)) for x, y in points)
        drawn.append(f'<polyline points="{dots}" stroke="{COLOURS[score]}"/>')
        drawn.append(
            f'<text x="{left + width + 12}" y="{top + 18 * place + 12}" class="name" '
            f'fill="{COLOURS[score]}">{escape(score)}</text>'
        )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {left + width + 130} {top + height + 24}" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg></figure>'
    )


def _cannot(folder: Path, exc: OSError) -> InputError:
    return InputError(f"{folder}: the report cannot be written there ({exc.strerror})")
