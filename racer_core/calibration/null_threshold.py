"""Abstention threshold tau on p_null, chosen on validation rows under a false-abstention budget."""

from __future__ import annotations

import numpy as np

from racer_core.calibration.augmentation import checked_scores, null_score
from racer_core.types import BoolArray, FloatArray, any_column


def choose_null_threshold(
    scores: FloatArray, labels: BoolArray, false_abstain_budget: float = 0.01
) -> float | None:
    """tau: the smallest p_null at which at most the budgeted share of answerable rows abstain.

    Args:
        scores: f of validation rows, shape (n, K), in [0, 1]; never of calibration rows.
        labels: Whether each candidate answers each of them right, shape (n, K).
        false_abstain_budget: Largest share of answerable rows that abstain.

    Returns:
        tau in [0, 1], in units of p_null = 1 - max f; None when no value keeps the budget.
    """
    p_null = null_score(checked_scores(scores))
    answerable = np.sort(p_null[any_column(labels)])
    if not answerable.size:
        return None
    for tau in np.unique(p_null):
        if np.mean(answerable >= tau) <= false_abstain_budget:
            return float(tau)
    return None
