"""Metrics of prediction sets: the paper's risk and size (App. B), and four further error rates.

Arguments: ``selected`` (n, K) the sets without the null model, ``null_selected`` (n,),
``labels`` (n, K) G. Shares are of all rows unless a condition is named; a share of no rows
is NaN, which prints as "-".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from racer_core.types import BoolArray, FloatArray, any_column


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetrics:
    """Risk, size and abstention of the sets for n queries."""

    risk: float  # P(C misses G'): the paper's
    miss_given_answerable: float  # P(C misses G | G not empty)
    served_error: float  # P(answered and no right candidate called)
    false_abstain: float  # P(abstained | G not empty)
    abstain: float
    size: float  # mean candidates called, the null model not counted


def set_metrics(selected: BoolArray, null_selected: BoolArray, labels: BoolArray) -> SetMetrics:
    """Measure sets against the truth; each line is the definition."""
    answerable = any_column(labels)
    hit = any_column(selected & labels)
    abstained = ~any_column(selected)
    return SetMetrics(
        risk=_share(np.where(answerable, ~hit, ~null_selected)),
        miss_given_answerable=_share(~hit[answerable]),
        served_error=_share(~abstained & ~hit),
        false_abstain=_share(abstained[answerable]),
        abstain=_share(abstained),
        size=float(selected.sum(axis=1).mean()) if len(selected) else math.nan,
    )


def shortfalls(selected: BoolArray, quality: FloatArray) -> FloatArray:
    """The best quality in the pool less the best in each set (n, K), shape (n,).

    An empty set has the quality 0.
    """
    return quality.max(axis=1) - np.where(selected, quality, 0.0).max(axis=1)


def _share(flags: BoolArray) -> float:
    return float(flags.mean()) if flags.size else math.nan
