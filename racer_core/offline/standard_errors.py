"""Standard errors over rows: the bootstrap over clusters, and the closed form of a plain mean.

A query, or the cluster that its rows name, is the unit: rows of two clusters are independent. A
resample draws as many clusters as there are, with replacement. Every figure of it is a ratio of two
weighted totals, so that one matrix product resamples all figures, and differences of figures are
paired: both have the same resamples.

A set's figure also depends on its threshold. With more misses among the resampled calibration rows
the threshold would have been larger: the figure moves by its slope, d figure / d risk (measured
with thresholds on both sides), times these misses above their mean. Without this term the error of
a mean size is less than half of what fresh rows show.

The errors cover test and calibration rows. They leave out the training rows, what validation rows
choose (tau, neighbours, temperature, alpha, vote), and thresholds of fewer than five ranks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.types import FloatArray

RESAMPLES: Final = 2000  # the error of a standard error is then 1.6 %
SLOPE_SPLITS: Final = 10  # splits that measure the slope; their mean is exact to a few percent
_BLOCK: Final = 2**18  # drawn clusters counted at a time, which fit the processor's cache
_Ids = NDArray[np.intp]
Draws = dict[tuple[Hashable, str], FloatArray]  # by a setting or a control, and a measure


def bootstrap(sums: FloatArray, rng: np.random.Generator, resamples: int = RESAMPLES) -> FloatArray:
    """The totals of all columns in resamples of the clusters, shape (resamples, m).

    Args:
        sums: The sums over the rows of each cluster, shape (G, m).
        rng: Draws the clusters; equal generators draw equal resamples.
        resamples: Their number.
    """
    count = len(sums)
    step = max(1, _BLOCK // count)
    totals: list[FloatArray] = []
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(count, size=(rows, count))
        drawn += count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        totals.append(times.astype(np.float64) @ sums)
    return np.concatenate(totals)


def standard_error(draws: FloatArray) -> float:
    """The standard deviation over resamples; NaN without any."""
    return float(np.nanstd(draws, ddof=1)) if len(draws) > 1 else math.nan


def standard_error_of_mean(values: FloatArray, units: _Ids) -> float:
    """The cluster-robust standard error of a plain mean, to which the bootstrap converges.

    Args:
        values: One value a row, shape (n,).
        units: The unit of each row, shape (n,), numbered from 0; rows of two units are independent.
    """
    count = len(np.unique(units))
    if count < 2:
        return math.nan
    deviations = np.bincount(units, weights=values - values.mean()) / len(values)
    return math.sqrt(count / (count - 1) * float((deviations**2).sum()))


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """The sums of one scope over its splits, by cluster: values and counts, shape (2, G) each.

    Attributes:
        start: The number of the scope's first cluster.
        stop: The number after its last.
    """

    start: int
    stop: int
    _sums: dict[tuple[Hashable, str], FloatArray] = field(
        default_factory=dict[tuple[Hashable, str], FloatArray]
    )
    # By the figure, the setting of the threshold, and the setting's name of the figure's accuracy.
    _losses: dict[tuple[Hashable, Hashable, str], FloatArray] = field(
        default_factory=dict[tuple[Hashable, Hashable, str], FloatArray]
    )
    _slopes: dict[tuple[Hashable, str], list[float]] = field(
        default_factory=dict[tuple[Hashable, str], list[float]]
    )

    def add(self, key: Hashable, measure: str, clusters: _Ids, values: FloatArray) -> None:
        """A figure of one split: the values of the test rows that count, shape (t,)."""
        self.add_ratio(key, measure, clusters, values, np.ones(len(values)))

    def add_ratio(
        self, key: Hashable, measure: str, clusters: _Ids, parts: FloatArray, wholes: FloatArray
    ) -> None:
        """A figure of one split that is sum(parts) / sum(wholes), with one of each a row."""
        if wholes.any():
            own = self._sums.setdefault((key, measure), self._empty())
            own += self._by_cluster(clusters, parts, wholes)

    def add_losses(
        self,
        key: Hashable,
        clusters: _Ids,
        lost: FloatArray,
        setting: Hashable,
        accuracy: str = "accuracy",
    ) -> None:
        """What the calibration rows that count lose at the threshold of a split; 1 for a miss.

        Args:
            key: The figures that depend on this threshold.
            clusters: The clusters of the rows.
            lost: The losses.
            setting: The setting of the threshold, which has the slopes.
            accuracy: The setting's name of what ``key`` calls its accuracy.
        """
        if len(lost):
            own = self._losses.setdefault((key, setting, accuracy), self._empty())
            own += self._by_cluster(clusters, lost, np.ones(len(lost)))

    def add_slope(self, setting: Hashable, measure: str, slope: float) -> None:
        """The change of a figure with the risk in one split."""
        if math.isfinite(slope):
            self._slopes.setdefault((setting, measure), []).append(slope)

    def wants_slope(self, setting: Hashable, measure: str) -> bool:
        """Whether more splits should measure the slope."""
        return len(self._slopes.get((setting, measure), ())) < SLOPE_SPLITS

    def draws(self, rng: np.random.Generator, splits: int) -> Draws:
        """Every figure in resamples of the clusters, shape (resamples,); none of one cluster.

        Args:
            rng: Draws the resamples.
            splits: The splits that a figure is the mean of.
        """
        columns = np.concatenate([*self._sums.values(), *self._losses.values()])
        columns = columns[:, columns.any(axis=0)]
        if columns.shape[1] < 2:
            return dict.fromkeys(self._sums, np.empty(0))
        values, counts = np.moveaxis(bootstrap(columns.T, rng).reshape(RESAMPLES, -1, 2), 2, 0)
        figures = dict(zip(self._sums, _ratio(values, counts).T, strict=False))
        losses = _ratio(values, counts).T[len(figures) :]
        for (key, setting, accuracy), sums, drawn in zip(
            self._losses, self._losses.values(), losses, strict=True
        ):
            lost, share = float(sums[0].sum()), float(sums[1].sum())
            excess = (drawn - lost / share) * share / splits
            for own, measure in [each for each in figures if each[0] == key]:
                named = accuracy if measure == "accuracy" else measure
                if slopes := self._slopes.get((setting, named)):
                    figures[own, measure] = figures[own, measure] - np.mean(slopes) * excess
        return figures

    def _empty(self) -> FloatArray:
        return np.zeros((2, self.stop - self.start))

    def _by_cluster(self, clusters: _Ids, parts: FloatArray, wholes: FloatArray) -> FloatArray:
        """Both sums of every cluster; every split has the same weight."""
        width, total = self.stop - self.start, float(wholes.sum())
        sums = [
            np.bincount(clusters - self.start, weights=each / total, minlength=width)
            for each in (parts, wholes)
        ]
        return np.array(sums, dtype=np.float64)


def _ratio(parts: FloatArray, wholes: FloatArray) -> FloatArray:
    """NaN in a resample without any row that counts."""
    return np.divide(parts, wholes, out=np.full_like(parts, np.nan), where=wholes > 0.0)
