"""Panels to draw on with matplotlib, as PNG.

Figures are objects of their own, never pyplot's: no state is shared and no window is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_DPI = 110
_PANEL = (4.2, 3.2)  # inches
_LEAST_WIDTH, _LABEL = 6.4, (3.2, 0.22)  # of a figure, and of a label in its legend
LAW = "#d55e00"


@dataclass(frozen=True, slots=True)
class Canvas:
    """A figure of equal panels."""

    figure: Any
    panels: list[Any]  # matplotlib axes, row by row

    @classmethod
    def of(cls, rows: int, columns: int) -> Canvas:
        """An empty figure; constrained layout keeps its texts apart."""
        size = (max(_PANEL[0] * columns, _LEAST_WIDTH), _PANEL[1] * rows)
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
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
        self.figure.savefig(file, format="png")
        return file.getvalue()
