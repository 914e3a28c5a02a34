"""Figures of evaluated sets, on matplotlib axes that the caller gives or gets."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from racer_core.errors import InputError, install_hint
from racer_core.notebook.evaluate import ResultTable
from racer_core.offline.report import COLOURS
from racer_core.types import Score


def plot_risk(table: ResultTable, ax: Any = None) -> Any:
    """Draw the measured risk against alpha, with 95 % intervals, beside the bound.

    A dotted line in the colour of each setting is its ``risk_band``, where it has one.

    Args:
        table: From :func:`evaluate`.
        ax: matplotlib axes; None makes a figure.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed.
    """
    ax = _axes(ax)
    for label, colour, rows in _lines(table):
        low, risk, high = (rows[name] for name in ("risk_low", "risk", "risk_high"))
        below = [each - least for each, least in zip(risk, low, strict=True)]
        above = [most - each for each, most in zip(risk, high, strict=True)]
        bars = ax.errorbar(
            rows["alpha"], risk, yerr=[below, above], marker="o", label=label, color=colour
        )
        band = [math.nan if each is None else each for each in rows["risk_band"]]
        if not all(map(math.isnan, band)):
            drawn = bars.lines[0].get_color()
            ax.plot(rows["alpha"], band, color=drawn, linestyle=":", label=f"{label}, risk band")
    top = max(table["alpha"])
    ax.plot([0.0, top], [0.0, top], color="black", linestyle="--", label="alpha")
    ax.set_xlabel("alpha")
    ax.set_ylabel("measured risk, 95 % interval")
    ax.legend()
    return ax


def plot_size(table: ResultTable, ax: Any = None) -> Any:
    """Draw the candidates called per row against alpha.

    Args:
        table: From :func:`evaluate`.
        ax: matplotlib axes; None makes a figure.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed.
    """
    ax = _axes(ax)
    for label, colour, rows in _lines(table):
        ax.plot(rows["alpha"], rows["size"], marker="o", label=label, color=colour)
    ax.set_xlabel("alpha")
    ax.set_ylabel("candidates called per query")
    ax.legend()
    return ax


def _axes(ax: Any) -> Any:
    """The axes, or new ones that a notebook shows. Raises InputError without matplotlib."""
    if ax is not None:
        return ax
    try:
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise InputError(f"figures need matplotlib: {install_hint('figures')}") from exc
    return pyplot.subplots(layout="constrained")[1]


def _lines(table: ResultTable) -> list[tuple[str, str | None, ResultTable]]:
    """Label, colour and rows of each line: one per score, or one per group and score."""
    grouped = "group" in table.columns
    settings = dict.fromkeys((row.get("group"), row["score"]) for row in table)
    return [
        (
            _plain(f"{group}, {score}" if grouped else score),
            None if grouped else COLOURS[Score(score)],
            table.where(score=score, **({"group": group} if grouped else {})),
        )
        for group, score in settings
    ]


def _plain(text: str) -> str:
    """A name as it is: matplotlib would typeset what stands between two dollars."""
    return text.replace("$", r"\$")
