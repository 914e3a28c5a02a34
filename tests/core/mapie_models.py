"""MAPIE, the independent conformal library that thresholds are compared with, and its models."""

import numpy as np
from mapie.classification import SplitConformalClassifier
from mapie.regression import SplitConformalRegressor
from mapie.risk_control import MultiLabelClassificationController
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

__all__ = ["Given", "MultiLabelClassificationController", "SplitConformalClassifier", "half_width"]


class Zero(RegressorMixin, BaseEstimator):
    """Predicts 0, so that the absolute residual of a row is its y."""

    fitted_ = True

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y):
        """Nothing to learn."""
        return self

    def predict(self, X):
        """Zeros."""
        return np.zeros(len(X))


class Given(ClassifierMixin, BaseEstimator):
    """Says what X says: X holds the probabilities of the classes."""

    def __init__(self, classes=2):
        self.classes = classes

    @property
    def classes_(self):
        """0, 1, ..."""
        return np.arange(self.classes)

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y):
        """Nothing to learn."""
        return self

    def predict(self, X):
        """The likeliest class."""
        return np.asarray(X).argmax(axis=1)

    def predict_proba(self, X):
        """X itself."""
        return np.asarray(X)


def half_width(critical, alpha):
    """MAPIE's threshold for scores of one's own: half the width of a conformal interval."""
    regressor = SplitConformalRegressor(Zero(), confidence_level=1 - alpha, prefit=True)
    rows = np.zeros((len(critical), 1))
    regressor.conformalize(rows, np.asarray(critical))
    _, interval = regressor.predict_interval(rows[:1])
    return float(interval[0, 1, 0])
