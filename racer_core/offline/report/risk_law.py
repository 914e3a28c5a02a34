"""Exact law of the realised risk over random splits, which holds for all rows.

With distinct critical scores the misses of one split are beta-binomial, and splits of the same
rows are independent given the rows, so that the law of their mean is known too. Ties and
abstention make risk smaller. Thresholds on benchmarks merged keep each benchmark's share in every
split, which makes the spread a little smaller than the law's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from racer_core.calibration.laws import beta_binomial_interval
from racer_core.calibration.threshold import allowed_misses
from racer_core.offline.report.view import View
from racer_core.types import FloatArray

_NORMAL = 1.96  # 95 % of a normal law


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskLaw:
    """The law of the realised risk at one alpha."""

    mean: float
    variance: float  # of one split
    third: float  # third central moment of one split
    interval: tuple[float, float]  # 95 % of splits
    splits: int

    @property
    def band(self) -> tuple[float, float]:
        """Where the mean over all splits lies with 95 %."""
        reach = _NORMAL * math.sqrt(self.variance / self.splits)
        return max(0.0, self.mean - reach), self.mean + reach

    def limit(self, error_rate: float) -> float:
        """Where the mean over all splits lies above with this chance, by Cornish and Fisher."""
        z = NormalDist().inv_cdf(1.0 - error_rate)
        variance = self.variance / self.splits
        if variance == 0.0:
            return self.mean
        skew = self.third / self.splits**2 / variance**1.5
        return self.mean + math.sqrt(variance) * (z + (z * z - 1.0) * max(skew, 0.0) / 6.0)

    def verdict(self, risks: FloatArray) -> str:
        """Where the mean of the realised risks lies."""
        low, high = self.band
        mean = float(np.mean(risks))
        if math.isnan(mean):
            return "-"
        return "below" if mean < low else "above" if mean > high else "inside"


def risk_law(view: View, alpha: float) -> RiskLaw | None:
    """The law of one scope, or of the mean over benchmarks (interval then by the normal law).

    ``answerable`` counts answerable rows alone, and how many of them a split has varies: mean and
    variance are those of every split's own law, the interval that of the mean numbers. None where
    no test row counts.
    """
    laws = [law for part in view.parts if (law := _own(part, alpha)) is not None]
    if len(laws) < len(view.parts):
        return None
    if len(laws) == 1:
        return laws[0]
    mean = sum(law.mean for law in laws) / len(laws)
    variance = sum(law.variance for law in laws) / len(laws) ** 2
    third = sum(law.third for law in laws) / len(laws) ** 3
    reach = _NORMAL * math.sqrt(variance)
    return RiskLaw(
        mean=mean,
        variance=variance,
        third=third,
        interval=(max(0.0, mean - reach), mean + reach),
        splits=laws[0].splits,
    )


def _own(view: View, alpha: float) -> RiskLaw | None:
    score = view.scores[0]  # all scores have the same rows
    rows = view.runs(score, alpha, "calibration_rows")
    test_rows = view.runs(score, alpha, "test_rows")
    if not test_rows.all():
        return None
    moments = [
        risk_moments(int(n), int(trials), alpha) for n, trials in zip(rows, test_rows, strict=True)
    ]
    means, variances, thirds = np.array(moments).T
    n, trials = round(float(rows.mean())), round(float(test_rows.mean()))
    missed = allowed_misses(n, alpha) + 1
    low, high = beta_binomial_interval(trials, missed, n + 1 - missed) if missed else (0, 0)
    return RiskLaw(
        mean=float(means.mean()),
        variance=float(variances.mean()),
        third=float(thirds.mean()),
        interval=(low / trials, high / trials),
        splits=len(rows),
    )


def risk_moments(n: int, trials: int, alpha: float) -> tuple[float, float, float]:
    """Mean, variance and third central moment of the beta-binomial risk of one split.

    All are 0 if the whole pool is called.
    """
    a = allowed_misses(n, alpha) + 1
    b = n + 1 - a
    if not a:
        return 0.0, 0.0, 0.0
    total = a + b
    variance = a * b * (total + trials) / (trials * total**2 * (total + 1))
    skew = (total + 2 * trials) * (b - a) / (total + 2)
    skew *= math.sqrt((1 + total) / (trials * a * b * (trials + total)))
    return a / total, variance, skew * variance**1.5
