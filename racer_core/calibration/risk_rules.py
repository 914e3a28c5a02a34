"""Rules of a risk target: the rows that count, abstention, critical scores and prediction sets.

Calibration rows, queries in serving and the rows of an evaluation follow the same rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from racer_core.calibration.augmentation import augment_truth, null_score
from racer_core.calibration.decision import Sets
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.threshold import critical_scores
from racer_core.types import BoolArray, FloatArray, RiskTarget, any_column


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskRules:
    """The rules of one risk target.

    Attributes:
        risk_target: The risk that alpha bounds.
        null_threshold: tau: abstain when p_null >= tau; ``paper`` abstains by the null model.
        r: Right candidates wanted in the set.
    """

    risk_target: RiskTarget
    null_threshold: float | None = None
    r: int = 1

    def counted(self, labels: BoolArray) -> BoolArray:
        """Whether rows with these labels (n, K) count for the risk, shape (n,)."""
        if self.risk_target == RiskTarget.ANSWERABLE:
            return any_column(labels)
        return np.ones(len(labels), dtype=bool)

    def abstains(self, scores: FloatArray) -> BoolArray:
        """Whether queries with these router scores (n, K) abstain because p_null >= tau, (n,)."""
        if self.null_threshold is None or self.risk_target == RiskTarget.PAPER:
            return np.zeros(len(scores), dtype=bool)
        return null_score(scores) >= self.null_threshold

    def critical_scores(
        self, nonconformity: FloatArray, scores: FloatArray, labels: BoolArray
    ) -> FloatArray:
        """s_i, shape (n,); +inf for rows that abstain, meaningless for rows that do not count.

        Only for losses of 0 and 1: a graded loss falls at several scores.

        Args:
            nonconformity: s, shape (n, K + 1) with the null model, (n, K) without.
            scores: f, shape (n, K).
            labels: G, shape (n, K).
        """
        critical = critical_scores(nonconformity, self._truth(labels), self.r)
        critical[self.abstains(scores)] = np.inf
        return critical

    def _truth(self, labels: BoolArray) -> BoolArray:
        """G' of rows; every column is right in a row that does not count."""
        if self.risk_target == RiskTarget.PAPER:
            return augment_truth(labels)
        return labels | ~any_column(labels)[:, None]

    def sets(self, nonconformity: FloatArray, scores: FloatArray, lambda_hat: float) -> Sets:
        """Prediction sets at a threshold; shapes as for :meth:`critical_scores`. Eq. (4).

        At +inf no query abstains: rows that abstain have the critical score +inf, so only the whole
        pool covers them, and an infeasible alpha must give the whole pool.
        """
        inside = prediction_sets(nonconformity, lambda_hat)
        abstains = self.abstains(scores) & math.isfinite(lambda_hat)
        count = scores.shape[1]
        null = inside[:, count] if inside.shape[1] > count else np.zeros(len(scores), dtype=bool)
        return Sets(
            selected=inside[:, :count] & ~abstains[:, None],
            null_selected=null | abstains,
            null_abstained=abstains,
        )
