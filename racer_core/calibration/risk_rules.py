"""Rules of a risk target: the rows that count, abstention, critical scores and prediction sets.

Calibration rows, queries in serving and the rows of an evaluation follow the same rules.
"""

from __future__ import annotations

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
        null_threshold: tau: refuse when p_null >= tau; ``paper`` abstains by the null model.
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

    def undone(self, scores: FloatArray) -> FloatArray:
        """The threshold from which on a query is not refused any more, shape (n,).

        It is p_null where p_null >= tau, and -inf for all other queries, which are never refused.
        So tau relaxes along the nested path: at lambda a query is refused when p_null >= tau and
        p_null > lambda. Every refused row has a finite critical score, and whether alpha is
        feasible depends on the number of rows alone. A refusal is undone where the chance that
        some candidate is right, 1 - p_null, reaches what lambda leaves uncovered; undoing refusals
        only after the whole pool would call more models at the same risk (docs/method.md).

        Args:
            scores: f, shape (n, K).
        """
        if self.null_threshold is None or self.risk_target == RiskTarget.PAPER:
            return np.full(len(scores), -np.inf)
        p_null = null_score(scores)
        return np.where(p_null >= self.null_threshold, p_null, -np.inf)

    def critical_scores(
        self, nonconformity: FloatArray, scores: FloatArray, labels: BoolArray
    ) -> FloatArray:
        """s_i, shape (n,), meaningless for rows that do not count.

        Only for losses of 0 and 1: a graded loss falls at several scores.

        Args:
            nonconformity: s, shape (n, K + 1) with the null model, (n, K) without.
            scores: f, shape (n, K).
            labels: G, shape (n, K).
        """
        critical = critical_scores(nonconformity, self._truth(labels), self.r)
        return np.maximum(critical, self.undone(scores))

    def _truth(self, labels: BoolArray) -> BoolArray:
        """G' of rows; every column is right in a row that does not count."""
        if self.risk_target == RiskTarget.PAPER:
            return augment_truth(labels)
        return labels | ~any_column(labels)[:, None]

    def sets(self, nonconformity: FloatArray, scores: FloatArray, lambda_hat: float) -> Sets:
        """Prediction sets at a threshold; shapes as for :meth:`critical_scores`. Eq. (4).

        At +inf every query gets the whole pool, and none is refused.
        """
        inside = prediction_sets(nonconformity, lambda_hat)
        abstains = self.undone(scores) > lambda_hat
        count = scores.shape[1]
        null = inside[:, count] if inside.shape[1] > count else np.zeros(len(scores), dtype=bool)
        return Sets(
            selected=inside[:, :count] & ~abstains[:, None],
            null_selected=null | abstains,
            null_abstained=abstains,
        )
