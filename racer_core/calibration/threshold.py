"""Critical scores and the calibrated threshold lambda_hat. Paper, Eq. (6) and Algorithm 1."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from racer_core.calibration.laws import binomial_cdf
from racer_core.errors import CalibrationError
from racer_core.types import BoolArray, FloatArray, any_column, checked_alpha


def critical_scores(nonconformity: FloatArray, truth: BoolArray, r: int = 1) -> FloatArray:
    """s_i: the smallest threshold at which row i holds min(r, |G_i|) right columns, shape (n,).

    With r = 1 this is min over G'_i of s(x_i, m), as in Algorithm 1, line 7. A larger r asks for
    that many right candidates, for votes; the loss 1{|C and G| < min(r, |G|)} is monotone too.

    Args:
        nonconformity: s, shape (n, C).
        truth: Which columns are right, shape (n, C); every row has at least one.
        r: How many right candidates are wanted, at least 1.
    """
    if not any_column(truth).all():
        raise CalibrationError("every row needs a right column: augment the truth first")
    if r == 1:
        return np.where(truth, nonconformity, np.inf).min(axis=1)
    wanted = np.minimum(r, truth.sum(axis=1)) - 1
    ordered = np.sort(np.where(truth, nonconformity, np.inf), axis=1)
    return np.take_along_axis(ordered, wanted[:, None], axis=1)[:, 0]


@lru_cache(maxsize=4096)  # called for every request
def allowed_misses(n: int, alpha: float, delta: float | None = None) -> int:
    """How many of n calibration rows may be missed; -1 when no finite threshold is valid.

    Without ``delta`` the largest N with (1 + N)/(n + 1) <= alpha, Algorithm 1, line 9: one
    division and one comparison, so that both sides are the nearest double to the same rational.
    ceil((n + 1)(1 - alpha)) is off by one rank at n = 24, alpha = 0.44.

    With ``delta`` the largest N with P(Bin(n, alpha) <= N) <= delta: then the realised risk is at
    most alpha for all but a share delta of calibration sets (exact binomial rule).
    """
    alpha = checked_alpha(alpha)
    if delta is None:
        misses = np.arange(n)
        valid = (1 + misses) / (n + 1) <= alpha
    else:
        valid = binomial_cdf(n, alpha)[:n] <= delta
    return int(np.count_nonzero(valid)) - 1  # both conditions are monotone in the misses


def fewest_rows(alpha: float, delta: float | None = None) -> int | None:
    """The fewest rows that make alpha feasible: 1/(n + 1) <= alpha, or (1 - alpha)^n <= delta.

    None if the number is too large for a float.
    """
    if delta is not None:
        fewest = math.log(delta) / math.log1p(-alpha)
        return math.ceil(fewest) if math.isfinite(fewest) else None
    if math.isinf(1 / alpha):
        return None
    n = max(1, round(1 / alpha) - 1)
    return n if 1 / (n + 1) <= alpha else n + 1  # one division, as in `allowed_misses`


def calibrate_threshold(
    critical_scores: FloatArray, alpha: float, delta: float | None = None
) -> float:
    """Return lambda_hat, the smallest threshold whose adjusted empirical risk is <= alpha.

    For arrays of critical scores; a ``Calibration`` sorts its scores once and looks lambda_hat up.

    Args:
        critical_scores: s_i, shape (n,), any order; in nonconformity units. -inf is a row that no
            threshold misses, +inf a row that all miss.
        alpha: Risk level in (0, 1); a probability, not a percentage.
        delta: None bounds the mean over calibration sets; else the share that may exceed alpha.

    Returns:
        lambda_hat, or ``inf`` when too few rows exist for alpha (alpha < 1/(n + 1)): the whole
        pool is then selected, which keeps the guarantee at full cost. -inf when so many rows are
        never missed that every threshold is valid.

    Raises:
        CalibrationError: No scores, or one is NaN.

    References:
        RACER, Eq. (6) as written in Algorithm 1, line 9; Theorem 4.3.
    """
    n = critical_scores.size
    if n == 0 or np.isnan(critical_scores).any():
        raise CalibrationError("critical scores must be numbers, at least one")
    return threshold_from_sorted(np.sort(critical_scores), allowed_misses(n, alpha, delta))


def threshold_from_sorted(ascending: FloatArray, misses: int) -> float:
    """The order statistic that leaves exactly ``misses`` rows above it; inf when misses is -1."""
    return float(ascending[ascending.size - 1 - misses]) if misses >= 0 else math.inf
