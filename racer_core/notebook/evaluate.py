"""Measured risk and size of prediction sets on test rows, as a table of plain values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.decision import (
    ScoredBatch,
    score_prints,
    scores_and_neighbours,
)
from racer_core.calibration.laws import student_quantile
from racer_core.calibration.learn_then_test import clopper_pearson_lower, clopper_pearson_upper
from racer_core.calibration.metrics import set_metrics, shortfalls
from racer_core.calibration.shadow import estimate_risk
from racer_core.errors import InputError
from racer_core.notebook.calibrate import checked_labels
from racer_core.offline.standard_errors import standard_error_of_mean
from racer_core.types import BoolArray, FloatArray, IdArray, RiskTarget, Score, enum_member

ALPHAS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3)
_SHOWN = ("group", "score", "alpha", "n", "risk", "risk_high", "size", "abstain")


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of plain values under the same names; ``pandas.DataFrame(list(table))`` takes them.

    Attributes:
        rows: One mapping of column to value for each setting.
    """

    rows: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """A column's values."""
        return [row[column] for row in self.rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.rows[0]) if self.rows else ()

    def where(self, **values: Any) -> ResultTable:
        """The rows with these values, such as ``score="cover"``."""
        items = values.items()
        return ResultTable(tuple(row for row in self.rows if items <= row.items()))

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns; ``pandas.DataFrame(table.to_dict())`` takes them too."""
        return {column: self[column] for column in self.columns}

    def __repr__(self) -> str:
        """The number of rows and the columns."""
        return f"ResultTable({len(self)} rows of {', '.join(self.columns) or 'no columns'})"

    def __str__(self) -> str:
        """The main columns, aligned."""
        names = [name for name in _SHOWN if name in self.columns]
        cells = [names, *([_shown(row[name]) for name in names] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(map(str.rjust, line, widths)) for line in cells)
        return "\n".join(lines)


def evaluate(
    calibration: Calibration,
    scores: ArrayLike | ScoredBatch,
    correct: ArrayLike,
    *,
    alphas: Sequence[float] = ALPHAS,
    score: Score | str | Sequence[Score | str] | None = None,
    groups: Sequence[str | None] | None = None,
    quality: ArrayLike | None = None,
    clusters: Sequence[Hashable] | None = None,
) -> ResultTable:
    """Measure the sets of test rows, which neither trained nor calibrated.

    A calibration with weights bounds the risk of later queries: test rows drawn like these show it.

    Args:
        calibration: The thresholds.
        scores: f of the test rows, shape (N, K), in [0, 1], or the router's output.
        correct: Whether each candidate answers each row right, shape (N, K).
        alphas: Risk levels.
        score: One or several nonconformity scores; None takes the calibration's own.
        groups: The group of each row. Each group is then calibrated and measured on its own.
        quality: Grades of the test rows, shape (N, K), for a calibration of the target ``quality``:
            ``risk`` is then the mean shortfall, with an empirical Bernstein interval.
        clusters: The cluster of each row, such as the document that it asks about; None for a row
            of its own. The intervals then take clusters as independent, and rows within one not.

    Returns:
        A row for each group, score and alpha, with these columns:

        - ``group`` (with ``groups`` only), ``score``, ``alpha``: the setting.
        - ``n``: calibration rows that count for the risk. ``lambda_hat``: the threshold; +inf calls
          the whole pool.
        - ``risk``: the measured rate that alpha bounds on average. ``risk_low``, ``risk_high``: its
          95 % interval over the test rows that count: exact (Clopper-Pearson), or, with
          ``clusters``, cluster-robust (Korn-Graubard).
        - ``risk_band``: the bound on the risk for every alpha at once, with probability 0.95, so
          that alpha may be chosen by looking at the rows; None for graded or weighted rows.
        - ``miss_given_answerable``: the sets without a right candidate among answerable rows.
          ``served_error``: the rows with a set, and none right in it. ``abstain``: the empty sets.
          ``false_abstain``: the empty sets among answerable rows. All are shares.
        - ``size``: candidates called per row. ``size_low``, ``size_high``: its 95 % interval, from
          the standard error over rows or clusters. ``calls_saved``: the share of the pool not
          called.

    Raises:
        InputError: Shapes or values do not fit.
    """
    f, near = scores_and_neighbours(scores)
    labels = checked_labels(correct, f.shape)
    grades = None if quality is None else np.asarray(quality, np.float64)
    if grades is not None and grades.shape != f.shape:
        raise InputError(f"quality has the shape {grades.shape}, the scores {f.shape}")
    if grades is None and calibration.options.risk_target is RiskTarget.QUALITY:
        raise InputError("the calibration bounds a shortfall of quality: give `quality`")
    if groups is not None and len(groups) != len(f):
        raise InputError(f"{len(groups)} groups for {len(f)} rows", param="groups")
    if clusters is not None and len(clusters) != len(f):
        raise InputError(f"{len(clusters)} clusters for {len(f)} rows", param="clusters")
    units = None if clusters is None else numbered(clusters)
    given = score or calibration.options.score
    kinds = (given,) if isinstance(given, str) else given
    names = [None] if groups is None else list(dict.fromkeys(groups))
    rows: list[Mapping[str, Any]] = []
    for name in names:
        part = [i for i in range(len(f)) if groups is None or groups[i] == name]
        batch = (
            f[part],
            None if near is None else near[part],
            labels[part],
            None if grades is None else grades[part],
            None if units is None else units[part],
        )
        own = calibration if groups is None else calibration.group(name)
        place = {} if groups is None else {"group": name}
        for kind in [enum_member(Score, each, "score") for each in kinds]:
            for measured in _measures(own, *batch, kind, alphas):
                rows.append(place | {"score": kind.value} | measured)
    return ResultTable(tuple(rows))


def _measures(
    calibration: Calibration,
    scores: FloatArray,
    neighbours: IdArray | None,
    labels: BoolArray,
    quality: FloatArray | None,
    units: Units | None,
    kind: Score,
    alphas: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """The measures of one score at every alpha."""
    prints = score_prints(scores, neighbours)
    counted = calibration.rules.counted(labels)
    critical = calibration.critical_scores_of(scores, prints, labels, neighbours, score=kind)
    for alpha in alphas:
        lambda_hat = calibration.lambda_hat(alpha, kind)
        sets = calibration.sets(scores, prints, lambda_hat, kind, neighbours)
        losses = critical[counted] > lambda_hat
        if calibration.options.risk_target is RiskTarget.QUALITY:
            assert quality is not None
            losses = shortfalls(sets.selected, quality)
        counted_units = None if units is None else units[counted]
        risk, low, high = risk_interval(losses, counted_units)
        sizes = sets.selected.sum(axis=1).astype(np.float64)
        size_low, size_high = mean_interval(sizes, units, float(labels.shape[1]))
        metrics = set_metrics(sets.selected, sets.null_selected, labels)
        yield {
            "alpha": alpha,
            "n": calibration.n,
            "lambda_hat": lambda_hat,
            "risk": risk,
            "risk_low": low,
            "risk_high": high,
            "risk_band": calibration.risk_band(alpha, kind),
            "miss_given_answerable": metrics.miss_given_answerable,
            "served_error": metrics.served_error,
            "abstain": metrics.abstain,
            "false_abstain": metrics.false_abstain,
            "size": metrics.size,
            "size_low": size_low,
            "size_high": size_high,
            "calls_saved": 1.0 - metrics.size / labels.shape[1],
        }


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# Confidence intervals of means over test rows: exact for rows, cluster-robust for clusters.

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
