"""Realised risk of one calibrated threshold: its exact law, and confidence bounds under ties.

Let S be the critical score of a query, T the threshold, the row with exactly ``misses`` rows after
it in ascending order, and R = P(S > T | T) the realised risk; B ~ Beta(misses + 1, n - misses).

    R  ~  the largest risk P(S > t) of any threshold t that is at most B.

Proof. Write S as a function of a uniform U, such that S decreases in U. T is then the score of the
(misses + 1)-th smallest of n uniforms, which is B, and S > T exactly if U < R with R <= B.

With distinct scores every risk is possible, so R = B (Vovk 2012). With ties R is B rounded down,
often far: where most rows tie at T, nearly every calibration has that T. P(S > T) is then unknown,
but ``missed`` rows are above T, and that tells R: it lies between the ``missed``-th and the next
smallest of n uniforms. Bounds that hold for every possible number of missed rows together
(Bonferroni over ``spaced_counts``) are valid for the number that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from racer_core.calibration.laws import (
    beta_binomial_interval,
    beta_quantile,
    binomial_cdf,
    simultaneous_risk_bound,
    spaced_counts,
)
from racer_core.types import FloatArray

TIE_LEVEL = 0.001  # probability that a bound from the number of missed rows fails
BAND_DELTA = 0.05  # probability that the band over all thresholds fails anywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RealisedRisk:
    """What n rows tell about the risk of a finite threshold.

    Attributes:
        n: Rows that count.
        misses: Rows that may be missed: the threshold's rank.
        missed: Rows with a score above the threshold, at most ``misses``.
        tied: Rows with the threshold's score; 0 if the threshold is above the rank's. At least 2 if
            the threshold is -inf: the score of queries that are never missed is one atom.
        unlabelled: Rows that count as missed because they have no label. Upper bounds hold as they
            are, for the risk that counts such queries as misses is no smaller.
    """

    n: int
    misses: int
    missed: int
    tied: int
    unlabelled: int = 0

    @classmethod
    def of(cls, ascending: FloatArray, misses: int) -> RealisedRisk:
        """The threshold that leaves ``misses`` >= 0 of the ascending critical scores above it."""
        threshold = float(ascending[ascending.size - 1 - misses])
        first = int(np.searchsorted(ascending, threshold, side="left"))
        end = int(np.searchsorted(ascending, threshold, side="right"))
        tied = max(end - first, 2) if np.isneginf(threshold) else end - first
        return cls(n=ascending.size, misses=misses, missed=ascending.size - end, tied=tied)

    @property
    def is_distinct(self) -> bool:
        """Whether no other row has the threshold's score: the law is then a Beta law."""
        return self.tied == 1

    def upper(self, tail: float = 0.05) -> float:
        """A risk that at most a share ``tail`` of calibrations exceeds, ties or not.

        Exact for distinct scores. Where rows tie, the share is at most ``tail + TIE_LEVEL``.
        """
        law = beta_quantile(1.0 - tail, self.misses + 1, self.n - self.misses)
        return law if self.is_distinct else min(law, self._tied_upper())

    def declared(self, levels: int) -> float:
        """A bound that also holds for a threshold chosen among those of a few declared levels.

        With probability 1 - ``BAND_DELTA`` the bounds of all of them hold together (Bonferroni),
        ties or not. Levels and score were declared before the rows were seen.

        Args:
            levels: How many there are.
        """
        return self.upper(BAND_DELTA / levels - TIE_LEVEL)

    def band(self) -> float:
        """A bound that also holds for a threshold chosen by looking at the rows; ties or not.

        With probability 1 - ``BAND_DELTA`` the bounds of all thresholds of the score hold together.
        """
        return simultaneous_risk_bound(self.n, self.missed, BAND_DELTA)

    def lower(self, tail: float = 0.05) -> float:
        """A risk that at most a share ``tail`` of calibrations falls below.

        Exact if scores that differ in the rows differ in all queries. Where rows tie, the share is
        at most ``TIE_LEVEL``. 0 where labels are missing: perhaps none of these is a miss.
        """
        if self.unlabelled:
            return 0.0
        if self.is_distinct:
            return beta_quantile(tail, self.misses + 1, self.n - self.misses)
        counts = spaced_counts(self.misses)
        count = max(each for each in counts if each <= self.missed)
        level = TIE_LEVEL / 2.0 / len(counts)
        return beta_quantile(level, count, self.n + 1 - count) if count else 0.0

    def misses_among(self, trials: int, level: float = 0.95) -> tuple[int, int]:
        """An interval for the number of misses among ``trials`` further queries that count.

        Of mass >= ``level`` for distinct scores; with ties, of mass >= ``level - TIE_LEVEL``.
        """
        low, high = beta_binomial_interval(trials, self.misses + 1, self.n - self.misses, level)
        if self.is_distinct:
            return 0 if self.unlabelled else low, high
        tail = (1.0 - level) / 2.0
        fewest = np.searchsorted(binomial_cdf(trials, self.lower()), tail)
        most = np.searchsorted(binomial_cdf(trials, self._tied_upper()), 1.0 - tail)
        return int(fewest), min(int(most), high)

    def _tied_upper(self) -> float:
        """The bound from the number of missed rows alone."""
        counts = spaced_counts(self.misses)
        count = min(each for each in counts if each >= self.missed)
        level = 1.0 - TIE_LEVEL / 2.0 / len(counts)
        return beta_quantile(level, count + 1, self.n - count)
