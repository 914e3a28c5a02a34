"""Exact law of the realised risk over random splits, which holds for all rows.

Splits of the same rows are independent given the rows, so the law of their mean follows from that
of one split. Ties make risk smaller: the law is that of the score's own critical scores
(``split_risk``). Thresholds on benchmarks merged keep each benchmark's share in every split, which
makes the spread a little smaller than the law's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from racer_core.calibration.laws import student_quantile
from racer_core.offline.evaluation_result import RISK, Evaluation, Setting
from racer_core.types import FloatArray, RiskTarget

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


def risk_law(evaluation: Evaluation, setting: Setting) -> RiskLaw | None:
    """The law of one scope, or of the mean over benchmarks (interval then by the normal law).

    Every split has its own law, since its ties and its number of answerable rows vary: moments and
    ends of the interval are means over splits. None where a split has no test row that counts.
    """
    parts = evaluation.parts(setting.scope)
    found = [_own(evaluation, replace(setting, scope=part)) for part in parts]
    laws = [law for law in found if law is not None]
    if len(laws) < len(parts):
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


def risk_limit(evaluation: Evaluation, setting: Setting, error_rate: float) -> float | None:
    """Where the mean risk of valid sets over all splits lies above with this chance; None: unknown.

    By the exact law; for graded losses by Student's t over the splits, whose rows are drawn
    independently and whose mean risk is at most alpha.
    """
    if setting.risk_target is RiskTarget.QUALITY:
        risks = np.array(evaluation.cells[setting][RISK[setting.risk_target]])
        if len(risks) < 2:
            return None
        reach = student_quantile(1.0 - error_rate, len(risks) - 1)
        return setting.alpha + reach * float(risks.std(ddof=1)) / math.sqrt(len(risks))
    law = risk_law(evaluation, setting)
    return None if law is None else law.limit(error_rate)


def _own(evaluation: Evaluation, setting: Setting) -> RiskLaw | None:
    laws = evaluation.laws[setting]
    splits = [law for law in laws if law is not None]
    if len(splits) < len(laws):
        return None

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return RiskLaw(
        mean=mean(law.mean for law in splits),
        variance=mean(law.variance for law in splits),
        third=mean(law.third for law in splits),
        interval=(
            mean(law.interval[0] for law in splits),
            mean(law.interval[1] for law in splits),
        ),
        splits=len(splits),
    )
