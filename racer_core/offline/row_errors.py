"""Standard errors over rows: the delta method with cluster-robust sums.

A report's figure is the mean over splits of a mean over test rows of sets whose threshold comes
from calibration rows. The spread over splits is that of re-splitting one pool of rows; other rows
would move the figure as well. To first order the figure is a sum over rows: what a row showed as
test row, less what it did to the thresholds as calibration row,

    u_g = mean over splits of sum over rows i of cluster g of
          [i tests] (x_i - mean x) / n_test - slope [i calibrates] (miss_i - mean miss) / n_cal

with x_i what the row shows (its set's size, whether the answer is right), miss_i whether the
threshold misses it, both over the rows that count, and slope = d figure / d risk, from thresholds
on both sides. Given the splits, rows of different clusters are
independent, so the variance is G / (G - 1) times the sum of u_g^2 over G clusters (the
linearised delete-one-cluster jackknife).

It covers: rows, or clusters of rows, as a sample of a population, with the splits and the
thresholds, given the routers of the divisions. It leaves out: the training rows, what validation
rows choose (tau, neighbours, temperature, alpha, vote), and thresholds of fewer than five ranks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from racer_core.types import FloatArray

Influence = FloatArray  # u_g of every cluster, shape (G,); they sum to 0
SLOPE_SPLITS: Final = 10  # splits that measure the slope; their mean is exact to a few percent
_Ids = NDArray[np.intp]
_Key = tuple[Hashable, str]  # a setting or a control, and a measure


def standard_error(influence: Influence) -> float:
    """The standard error of a figure; NaN where fewer than two clusters take part."""
    count = int(np.count_nonzero(influence))
    total = float((influence**2).sum())
    if count < 2:
        return 0.0 if len(influence) > 1 else math.nan
    return math.sqrt(count / (count - 1) * total)


def standard_error_of_mean(values: FloatArray, units: _Ids) -> float:
    """The cluster-robust standard error of a plain mean.

    Args:
        values: One value a row, shape (n,).
        units: The unit of each row, shape (n,), numbered from 0; rows of two units are independent.
    """
    return standard_error(np.bincount(units, weights=values - values.mean()) / len(values))


@dataclass(frozen=True, slots=True)
class RowSums:
    """The sums of one scope over its splits, by cluster.

    Attributes:
        start: The number of the scope's first cluster.
        stop: The number after its last.
    """

    start: int
    stop: int
    _sums: dict[_Key, FloatArray] = field(default_factory=dict[_Key, FloatArray])
    _slopes: dict[_Key, list[float]] = field(default_factory=dict[_Key, list[float]])
    _losses: dict[Hashable, FloatArray] = field(default_factory=dict[Hashable, FloatArray])

    def add(self, key: Hashable, measure: str, clusters: _Ids, values: FloatArray) -> None:
        """A figure of one split: the values of the test rows that count, shape (t,)."""
        if len(values):
            centred = (values - values.mean()) / len(values)
            self._add(self._sums, (key, measure), clusters, centred)

    def add_ratio(
        self, key: Hashable, measure: str, clusters: _Ids, parts: FloatArray, wholes: FloatArray
    ) -> None:
        """A figure of one split that is sum(parts) / sum(wholes), with one of each a row."""
        if total := float(wholes.sum()):
            centred = (parts - parts.sum() / total * wholes) / total
            self._add(self._sums, (key, measure), clusters, centred)

    def add_losses(self, key: Hashable, clusters: _Ids, lost: FloatArray) -> None:
        """What the calibration rows that count lose at the threshold of a split; 1 for a miss."""
        if len(lost):
            centred = (lost - lost.mean()) / len(lost)
            self._add(self._losses, key, clusters, centred)

    def add_slope(self, key: Hashable, measure: str, slope: float) -> None:
        """The change of a figure with the risk in one split."""
        if math.isfinite(slope):
            self._slopes.setdefault((key, measure), []).append(slope)

    def wants_slope(self, key: Hashable, measure: str) -> bool:
        """Whether more splits should measure the slope."""
        return len(self._slopes.get((key, measure), ())) < SLOPE_SPLITS

    def influence(self, key: Hashable, measure: str, splits: int) -> Influence:
        """u_g of a figure that is the mean over ``splits``."""
        return self._sums[key, measure] / splits - self.threshold_part(key, key, measure, splits)

    def threshold_part(
        self, misses: Hashable, key: Hashable, measure: str, splits: int
    ) -> Influence:
        """Slope (l_g - rho c_g): the misses of some splits, with the slope of a setting."""
        slopes = self._slopes.get((key, measure))
        if not slopes or misses not in self._losses:
            return np.zeros(self.stop - self.start)
        return float(np.mean(slopes)) * self._losses[misses] / splits

    def _add(
        self, sums: dict[Any, FloatArray], key: Hashable, clusters: _Ids, values: FloatArray
    ) -> None:
        own = sums.setdefault(key, np.zeros(self.stop - self.start))
        own += np.bincount(clusters - self.start, weights=values, minlength=len(own))
