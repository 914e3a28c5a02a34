"""Panels to draw on, as PNG. matplotlib is loaded when the first figure is drawn.

Figures are objects of their own, never pyplot's: no state is shared and no window is opened.
matplotlib comes as `Any`, since it is an optional extra.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from racer_core.errors import InputError, install_hint
from racer_core.offline.protocol import Control, Order
from racer_core.types import Score

_DPI = 110
_PANEL = (4.2, 3.2)  # inches
_LEAST_WIDTH, _LABEL = 6.4, (3.2, 0.22)  # of a figure, and of a label in its legend
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS: Final[Mapping[Order, str]] = {
    Score.GAP: "#0072b2",
    Score.PROB: "#e69f00",
    Score.COVER: "#009e73",
    Score.COVER_COST: "#cc79a7",
    Score.STATIC: "#555555",
    Control.STATIC_BY_GROUP: "#56b4e9",
}
LAW = "#d55e00"


def check_matplotlib() -> None:
    """Refuse before an hour of work rather than after it. Raises InputError."""
    matplotlib_module("figure")


def matplotlib_module(module: str) -> Any:
    """A module of matplotlib, loaded at the first call. Raises InputError without matplotlib."""
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError as exc:
        raise InputError(
            f"figures need matplotlib: {install_hint('report')}", param="report"
        ) from exc


@dataclass(frozen=True, slots=True)
class Canvas:
    """A figure of equal panels."""

    figure: Any
    panels: list[Any]  # matplotlib axes, row by row

    @classmethod
    def of(cls, rows: int, columns: int) -> Canvas:
        """An empty figure; constrained layout keeps its texts apart."""
        size = (max(_PANEL[0] * columns, _LEAST_WIDTH), _PANEL[1] * rows)
        figure = matplotlib_module("figure").Figure(figsize=size, dpi=_DPI, layout="constrained")
        matplotlib_module("backends.backend_agg").FigureCanvasAgg(figure)
        return cls(figure, list(figure.subplots(rows, columns, squeeze=False).ravel()))

    def legend(self) -> None:
        """One legend below all panels, each label once."""
        labelled: dict[str, Any] = {}
        for panel in self.panels:
            handles, labels = panel.get_legend_handles_labels()
            labelled |= dict(zip(labels, handles, strict=True))
        width, height = self.figure.get_size_inches()
        columns = min(len(labelled), int(width / _LABEL[0]))
        self.figure.set_size_inches(width, height + _LABEL[1] * (len(labelled) // columns + 1))
        place = {"loc": "outside lower center", "ncols": columns, "frameon": False}
        self.figure.legend(labelled.values(), labelled.keys(), **place)

    def png(self) -> bytes:
        """The drawing."""
        file = BytesIO()
        with warnings.catch_warnings():
            # A benchmark may be named in a script that the font lacks; tables name it in full.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            self.figure.savefig(file, format="png")
        return file.getvalue()


def plain(text: str) -> str:
    """A name as it is: matplotlib would typeset what stands between two dollars."""
    return text.replace("$", r"\$")
