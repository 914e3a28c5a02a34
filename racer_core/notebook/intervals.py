"""Confidence intervals of means over test rows: exact for rows, cluster-robust for clusters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.laws import student_quantile
from racer_core.calibration.learn_then_test import clopper_pearson_lower, clopper_pearson_upper
from racer_core.calibration.shadow import estimate_risk
from racer_core.offline.standard_errors import standard_error_of_mean
from racer_core.types import BoolArray, FloatArray

Units = NDArray[np.intp]  # the cluster of each row, shape (n,)
_Z = 1.959964  # 97.5 % of the normal distribution
_FEWEST = 5  # clusters with a loss, and without, from which their error is used alone


def numbered(clusters: Sequence[Hashable]) -> Units:
    """The clusters as numbers from 0; a row whose cluster is None is a cluster of its own."""
    numbers: dict[Hashable, int] = {}
    keys = ((i, None) if each is None else (None, each) for i, each in enumerate(clusters))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


def risk_interval(
    losses: BoolArray | FloatArray, units: Units | None
) -> tuple[float, float, float]:
    """The mean loss with its 95 % interval.

    Without clusters it is exact for losses of 0 and 1 (Clopper-Pearson), else empirical Bernstein.
    With clusters it is Clopper-Pearson at the effective number of rows, p (1 - p) / se^2 with the
    cluster-robust error, times (z / t)^2 for the number of clusters. Where fewer than five
    clusters have a loss, or fewer than five a row without one, that error is unreliable: the
    effective number of rows is then at most the number of clusters.

    Args:
        losses: In [0, 1], shape (n,).
        units: The cluster of each row; None if the rows are independent.

    References:
        Korn & Graubard 1998.
    """
    if not losses.size:
        return math.nan, math.nan, math.nan
    losses = losses.astype(np.float64)
    if units is None:
        found = estimate_risk(losses, np.ones(losses.size), losses.size)
        return found.risk, found.lower, found.upper
    mean, count = float(losses.mean()), len(np.unique(units))
    if count < 2:
        return mean, 0.0, 1.0
    error = standard_error_of_mean(losses, units)
    fewest = min(len(np.unique(units[each])) for each in (losses > 0.0, losses < 1.0))
    rows = float(losses.size if fewest >= _FEWEST else count)
    if error > 0.0:
        rows = min(
            rows, mean * (1.0 - mean) / error**2 * (_Z / student_quantile(0.975, count - 1)) ** 2
        )
    n = max(1, math.floor(rows + 1e-9))
    low = clopper_pearson_lower(math.floor(mean * n + 1e-9), n, 0.025)
    return mean, low, clopper_pearson_upper(math.ceil(mean * n - 1e-9), n, 0.025)


def mean_interval(values: FloatArray, units: Units | None, largest: float) -> tuple[float, float]:
    """The 95 % interval of a mean in [0, largest], by the error over rows or clusters.

    Args:
        values: Shape (n,).
        units: The cluster of each row; None if the rows are independent.
        largest: The largest possible value.
    """
    if not len(values):
        return math.nan, math.nan
    units = np.arange(len(values)) if units is None else units
    count, mean = len(np.unique(units)), float(values.mean())
    if count < 2:
        return 0.0, largest
    margin = student_quantile(0.975, count - 1) * standard_error_of_mean(values, units)
    return max(0.0, mean - margin), min(largest, mean + margin)
