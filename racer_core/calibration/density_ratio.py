"""Density ratio estimation: approximate weights of rows for another population of queries.

A logistic regression tells embeddings of served queries from those of the rows; its odds, divided
by the odds of the sample sizes, estimate w(x) = density of served queries over density of rows.
Each row's odds come from a fit on other rows (cross-fitting). The bound of ``loss_curve`` holds for
the true ratio alone: with an estimate it is approximate, and no guarantee.

References: Bickel, Brueckner & Scheffer 2007 (classification for density ratios); Tibshirani,
Barber, Candes & Ramdas 2019, Sec. 2.3 (estimated weights in conformal prediction).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import CalibrationError
from racer_core.types import FloatArray

CLIP: Final = 10.0  # bound of the estimated ratio, and of its inverse
FOLDS: Final = 5
MIN_SERVED: Final = 100  # fewer served queries say little about a ratio
MIN_EFFECTIVE: Final = 50  # with fewer effective rows a few rows decide the threshold
MIN_MEAN: Final = 0.5  # of the clipped ratio over the rows
_RIDGE: Final = 1.0  # penalty on standardised coefficients; the intercept has none
_STEPS: Final = 25


def estimate_weights(
    rows: FloatArray, served: FloatArray, units: Sequence[bytes] | None = None
) -> FloatArray:
    """Approximate weights of the rows for the population of the served queries, shape (n,).

    Args:
        rows: Embeddings of the rows on a few components, shape (n, d).
        served: Embeddings of unlabelled served queries, shape (m, d).
        units: Rows of one unit, such as copies of a query, share a fold; None: each is its own.

    Returns:
        Ratios in [1 / ``CLIP``, ``CLIP``].

    Raises:
        CalibrationError: Fewer served queries than ``MIN_SERVED``, or fewer units than ``FOLDS``.
    """
    if len(served) < MIN_SERVED:
        raise CalibrationError(
            f"{len(served)} served queries are too few to estimate weights: {MIN_SERVED} are needed"
        )
    names = np.array(range(len(rows)) if units is None else list(units))
    ids = np.unique(names, return_inverse=True)[1]
    if ids.max(initial=-1) + 1 < FOLDS:
        raise CalibrationError(f"weights are estimated from {FOLDS} distinct rows or more")
    fold = np.random.default_rng(0).permutation(ids.max() + 1)[ids] % FOLDS
    own, other = _standardised(rows, served)
    log_ratios = np.empty(len(rows))
    for each in range(FOLDS):
        fitted = own[fold != each]
        coefficients = _fit(fitted, other)
        log_ratios[fold == each] = own[fold == each] @ coefficients - np.log(
            len(other) / len(fitted)
        )
    return np.clip(np.exp(np.clip(log_ratios, -50.0, 50.0)), 1.0 / CLIP, CLIP)


def check_coverage(weights: FloatArray, effective_n: float) -> None:
    """Refuse estimates that say that the rows are no sample of any weighted served population.

    The mean of a true ratio over the rows is 1; where clipping cuts it below ``MIN_MEAN``, most
    served queries lie where there are no rows.

    Raises:
        CalibrationError: Fewer than ``MIN_EFFECTIVE`` effective rows, or a mean below ``MIN_MEAN``.
    """
    mean = float(weights.mean())
    if effective_n < MIN_EFFECTIVE or mean < MIN_MEAN:
        raise CalibrationError(
            f"the rows do not cover the served queries: {effective_n:.1f} effective rows "
            f"({MIN_EFFECTIVE} are needed), mean weight {mean:.2f} ({MIN_MEAN} is needed); label "
            "served queries"
        )


def _standardised(rows: FloatArray, served: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both with a column of ones, and components of mean 0 and variance 1 over all."""
    both = np.concatenate([rows, served])
    spread = both.std(axis=0)
    scaled = (both - both.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    columns = np.column_stack([np.ones(len(both)), scaled])
    return columns[: len(rows)], columns[len(rows) :]


def _fit(rows: FloatArray, served: FloatArray) -> NDArray[np.float64]:
    """Coefficients of log odds(served), by Newton's method on the penalised likelihood."""
    columns = np.concatenate([rows, served])
    is_served = np.repeat([0.0, 1.0], [len(rows), len(served)])
    ridge = np.full(columns.shape[1], _RIDGE)
    ridge[0] = 1e-9
    coefficients = np.zeros(columns.shape[1])
    for _ in range(_STEPS):
        chances = np.exp(-np.logaddexp(0.0, -(columns @ coefficients)))
        gradient = columns.T @ (chances - is_served) + ridge * coefficients
        variances = chances * (1.0 - chances)
        hessian = (columns * variances[:, None]).T @ columns + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        largest = float(np.abs(step).max())
        coefficients = coefficients - step * min(1.0, 5.0 / max(largest, 1e-300))
        if largest < 1e-9:
            break
    return coefficients
