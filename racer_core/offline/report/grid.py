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


def spread(runs: FloatArray | Sequence[float]) -> str:
    """Mean and standard deviation over splits."""
    mean = float(np.mean(runs))
    return number(mean) if math.isnan(mean) else f"{mean:.3f} ±{float(np.std(runs)):.3f}"
