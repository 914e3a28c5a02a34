"""Prediction sets. Paper, Eq. (4)."""

from __future__ import annotations

from racer_core.types import BoolArray, FloatArray


def prediction_sets(nonconformity: FloatArray, lambda_hat: float) -> BoolArray:
    """C(x) = {m : s(x, m) <= lambda_hat}, shape (n, C), closed and without slack. Eq. (4).

    Closed, because the calibrated risk is right-continuous; +inf scores are inside when
    lambda_hat is +inf, so the infeasible case really is the whole pool.
    """
    return nonconformity <= lambda_hat
