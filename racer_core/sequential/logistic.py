"""A logistic stopping score: the chance of a difference from what the votes look like so far.

It knows no candidate, only how votes stand (:class:`racer_core.sequential.stacked.Votes`), so any
smaller pool has its score without fitting anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from racer_core.types import BoolArray, FloatArray

_RIDGE = 5.0
_STEPS = 30
_DONE = 1e-8
_FAR = 30.0  # log odds beyond which a chance is certain


@dataclass(frozen=True, slots=True, kw_only=True)
class LogisticScore:
    """Chance = sigmoid(intercept + weights (features - mean) / scale).

    Attributes:
        mean: Of each feature on the rows that fitted the score, shape (F,).
        scale: Their standard deviation, shape (F,).
        weights: Of the intercept and the features, shape (1 + F,).
    """

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, features: FloatArray, differs: BoolArray) -> Self:
        """Maximise the likelihood with a ridge, by Newton's method; deterministic.

        Args:
            features: Of prefixes of fitting rows, shape (m, F).
            differs: Whether the answer after each prefix differs from the reference's, (m,).
        """
        mean: FloatArray = features.mean(axis=0)
        scale: FloatArray = features.std(axis=0) + 1e-9
        weights: FloatArray = np.zeros(len(mean) + 1)
        design = cls(mean=mean, scale=scale, weights=weights)._design(features)
        ridge: FloatArray = np.diag([1e-6, *[_RIDGE] * len(mean)])
        for _ in range(_STEPS):
            chance = _sigmoid(design @ weights)
            gradient = design.T @ (chance - differs) + ridge @ weights
            curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design + ridge
            step: FloatArray = np.linalg.solve(curvature, gradient).astype(np.float64)
            weights = weights - step
            if float(np.abs(step).max()) < _DONE:
                break
        return cls(mean=mean, scale=scale, weights=weights)

    def chance(self, features: FloatArray) -> FloatArray:
        """The estimated chance of a difference, (..., F) to (...)."""
        return _sigmoid(self._design(features) @ self.weights)

    def _design(self, features: FloatArray) -> FloatArray:
        scaled = (features - self.mean) / self.scale
        return np.concatenate([np.ones((*scaled.shape[:-1], 1)), scaled], axis=-1)


def _sigmoid(odds: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -_FAR, _FAR)))
