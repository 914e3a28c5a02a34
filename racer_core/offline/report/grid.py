"""A table of a report: words only, so that terminal, Markdown and HTML show the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from racer_core.types import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells, and what they were measured on."""

    title: str
    measured_on: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float) -> str:
    """Three decimals; a share of no rows is "-"."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def spread(runs: FloatArray | Sequence[float], se_rows: float = math.nan) -> str:
    """The mean, ± 1.96 standard errors over rows, and the standard deviation over splits."""
    mean = float(np.mean(runs))
    over_rows = "" if math.isnan(se_rows) else f" ±{1.96 * se_rows:.3f}"
    return "-" if math.isnan(mean) else f"{mean:.3f}{over_rows} ({float(np.std(runs)):.3f})"
