"""The frontier of `racer tune`: cost, risk and accuracy at each alpha, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from racer_core.offline.tune import CHOOSING_ROWS
from racer_core.offline.tuning_result import FixedCalls, Trial, Tuning

WIDTH: Final = 60  # characters of the plot
HEIGHT: Final = 14  # lines
_Point = tuple[float, float, str]  # cost, accuracy, sign


def table(tuning: Tuning, unit: str | None) -> Table:
    """A line for each alpha, then for calling all candidates and the best single one.

    Args:
        tuning: The result.
        unit: The currency of the costs; None: they are numbers of calls.
    """
    measure = _measure(tuning)
    shown = Table(
        title=f"{tuning.rows} validation rows; plateau: within one standard error of the best "
        f"{measure}, {tuning.slack:.3f}"
        + (
            "; a vote counts where it beats the majority by two paired standard errors"
            if tuning.chosen.rule
            else ""
        ),
        caption=_best_rated_note(tuning),
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    cost = "cost" if unit is None else f"cost ({unit})"
    columns = ("alpha", "missed", "score", "vote", measure, "behind, 95 %")
    for name in (*columns, "size", cost, "of all", ""):
        shown.add_column(name, no_wrap=True)
    everyone = tuning.everyone
    for point in tuning.points:
        share = "" if everyone is None else f"{point.cost / everyone.cost:.0%}"
        shown.add_row(
            *(f"{point.alpha:g}", f"{point.missed:.3f}", point.score, vote_name(point)),
            *(f"{point.accuracy:.3f}", _behind(point)),
            *(f"{point.size:.2f}", f"{point.cost:.4g}", share, _mark(tuning, point)),
        )
    for name, fixed in _fixed(tuning):
        size = len(fixed.candidates)
        share = "" if everyone is None else f"{fixed.cost / everyone.cost:.0%}"
        shown.add_row(
            *("", "", "", name, f"{fixed.accuracy:.3f}", "", f"{size}", f"{fixed.cost:.4g}"),
            *(share, ""),
        )
    return shown


def plot(tuning: Tuning, unit: str | None) -> str:
    """Accuracy over cost as text: a sign for each point of the table."""
    frontier = tuning.frontier
    points: list[_Point] = [
        (each.cost, each.accuracy, "+" if each in frontier else ".")
        for each in tuning.points
        if each is not tuning.chosen
    ]
    points += [(fixed.cost, fixed.accuracy, name[0].upper()) for name, fixed in _fixed(tuning)]
    points.append((tuning.chosen.cost, tuning.chosen.accuracy, "#"))  # above the others
    measure = _measure(tuning)
    least, most = _range([cost for cost, _, _ in points])
    low, high = _range([accuracy for _, accuracy, _ in points])
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for cost, accuracy, sign in points:
        column = round((cost - least) / (most - least) * (WIDTH - 1))
        line = round((high - accuracy) / (high - low) * (HEIGHT - 1))
        cells[line][column] = sign
    labels = {0: f"{high:.3f}", HEIGHT - 1: f"{low:.3f}"}
    lines = [f"{labels.get(number, ''):>7} |{''.join(row)}" for number, row in enumerate(cells)]
    ends = f"{least:.4g}", f"{most:.4g}"
    axis = f"{ends[0]}{ends[1]:>{WIDTH - len(ends[0])}}"
    costs = "calls a query" if unit is None else f"{unit} a query"
    return "\n".join(
        [
            f"{measure} over {costs}: # chosen, + frontier, . another is as cheap and better, "
            "A all candidates, B best single one",
            *(line.rstrip() for line in lines),
            f"{'':>7} +{'-' * WIDTH}",
            f"{'':>9}{axis}",
        ]
    )


def sentence(tuning: Tuning) -> str:
    """What was chosen, and how far it may be behind the best setting."""
    chosen, measure = tuning.chosen, _measure(tuning)
    levels = ", ".join(f"{alpha:g}" for alpha in tuning.plateau)
    found = f"chosen: alpha {chosen.alpha:g}, {measure} {chosen.accuracy:.3f}"
    if chosen.behind_se or chosen.behind:
        low, high = chosen.behind_interval
        found += (
            f", {chosen.behind:.3f} behind the best setting (95 % interval of the paired "
            f"difference: {low:.3f} to {high:.3f})"
        )
    else:
        found += ", which no setting exceeds on these rows"
    if tuning.keeps_alpha:
        found += (
            f"; alpha is the configured one: below {CHOOSING_ROWS} rows differences between levels "
            "are noise"
        )
    return f"{found}. Plateau: alpha {levels}"


def vote_name(trial: Trial) -> str:
    """The vote of a setting, in words."""
    if trial.rule is None:
        return "-"
    return trial.rule + (f" by {trial.weight}, T {trial.temperature:g}" if trial.weight else "")


def _fixed(tuning: Tuning) -> Iterator[tuple[str, FixedCalls]]:
    if tuning.everyone is not None:
        yield "all candidates", tuning.everyone
    if tuning.best_single is not None:
        yield f"best single: {tuning.best_single.candidates[0]}", tuning.best_single


def _mark(tuning: Tuning, point: Trial) -> str:
    marks = {
        "chosen": point is tuning.chosen,
        "plateau": point.alpha in tuning.plateau,
        "frontier": point in tuning.frontier,
    }
    return ", ".join(name for name, is_so in marks.items() if is_so)


def _measure(tuning: Tuning) -> str:
    return "quality" if tuning.chosen.rule is None else "accuracy"


def _behind(point: Trial) -> str:
    """The distance from the best setting with its interval; of the best itself none."""
    if point.behind == point.behind_se == 0.0:
        return "-"
    return f"{point.behind:.3f} ± {(point.behind_interval[1] - point.behind):.3f}"


def _range(values: list[float]) -> tuple[float, float]:
    """The ends of an axis, which are not the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _best_rated_note(tuning: Tuning) -> str | None:
    """The best vote with ratings if the chosen vote uses none: the ratings were paid for."""
    rated = [trial for trial in tuning.trials if trial.evaluated]
    if tuning.chosen.evaluated or not rated:
        return None
    best = min(rated, key=lambda trial: (-trial.accuracy, trial.cost))
    return (
        f"the chosen vote uses no evaluator; the best that does: {vote_name(best)}, accuracy "
        f"{best.accuracy:.3f} at alpha {best.alpha:g}, cost {best.cost:.4g}"
    )
