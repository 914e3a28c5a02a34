"""Logistic calibration (Platt scaling): raw router scores to probabilities of being right."""

from __future__ import annotations

import numpy as np

from racer_core.types import BoolArray, FloatArray

_STEPS = 50
_FLAT = 1e-9  # standard deviation below which raw scores carry no information


def sigmoid(logits: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), stable at both ends."""
    return np.exp(-np.logaddexp(0.0, -logits))


def fit_logistic(raw: FloatArray, right: BoolArray) -> tuple[float, float]:
    """Fit chance = sigmoid(slope * raw + offset) by maximum likelihood, with slope >= 0.

    The targets are Platt's: (N+ + 1)/(N+ + 2) and 1/(N- + 2) instead of 1 and 0. They keep the fit
    finite if a threshold separates the rows, and if all rows are of one class; the map is then
    that smoothed rate for every query.

    Args:
        raw: Raw scores of one candidate, shape (n,), finite; larger means more likely right.
        right: Whether it was right, shape (n,).

    Returns:
        slope and offset. The slope is 0 if larger scores do not mean more likely right: a negative
        slope would reverse the router's order on the evidence of a few rows.

    References:
        Platt 1999, "Probabilistic outputs for support vector machines".
    """
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    targets = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
    rate = float(targets.mean()) if len(raw) else 0.5
    constant = 0.0, float(np.log(rate / (1 - rate)))
    spread = float(raw.std()) if len(raw) else 0.0
    if spread < _FLAT:
        return constant
    mean = float(raw.mean())
    slope, offset = _newton((raw - mean) / spread, targets, start=constant)
    if slope <= 0:
        return constant
    return slope / spread, offset - slope * mean / spread


def _newton(raw: FloatArray, targets: FloatArray, start: tuple[float, float]) -> FloatArray:
    """Newton's method on the cross entropy, with steps halved until they lower it."""
    columns = np.column_stack([raw, np.ones_like(raw)])
    weights: FloatArray = np.array(start, dtype=np.float64)
    for _ in range(_STEPS):
        chances = sigmoid(columns @ weights)
        gradient = columns.T @ (chances - targets)
        hessian = (columns * (chances * (1 - chances))[:, None]).T @ columns
        step = np.asarray(np.linalg.solve(hessian + 1e-9 * np.eye(2), gradient), np.float64)
        before = _cross_entropy(columns @ weights, targets)
        while np.abs(step).max() > 1e-10:
            if _cross_entropy(columns @ (weights - step), targets) < before:
                break
            step = step / 2
        else:
            return weights
        weights = weights - step
    return weights


def _cross_entropy(logits: FloatArray, targets: FloatArray) -> float:
    return float(np.sum(np.logaddexp(0.0, logits) - targets * logits))
