"""Learn then Test: a threshold that keeps a limit on the rate of wrong final answers.

P(final answer wrong | answered) is not monotone in lambda: one more candidate can turn a right
majority wrong, or an abstention into an error. The conformal rule does not apply, so lambda is
chosen by hypothesis tests: Learn then Test, Angelopoulos, Bates, Candes, Jordan & Lei 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from racer_core.calibration.laws import beta_quantile, binomial_cdf_at
from racer_core.errors import CalibrationError
from racer_core.types import checked_alpha

FIRST_SHARE: Final = 0.75


def clopper_pearson_upper(errors: int, n: int, delta: float = 0.05) -> float:
    """The exact upper bound: below the true rate for at most a share delta of samples.

    The rate at which ``errors`` or fewer of n have probability delta; 1.0 if n is 0 or all err.

    Raises:
        CalibrationError: More errors than trials, or fewer than none.

    References:
        Clopper & Pearson 1934.
    """
    delta = checked_alpha(delta, "delta")
    if not 0 <= errors <= n:
        raise CalibrationError(f"{errors} errors among {n} is not a count: check the evidence")
    return beta_quantile(1.0 - delta, errors + 1, n - errors) if errors < n else 1.0


def clopper_pearson_lower(errors: int, n: int, delta: float = 0.05) -> float:
    """The exact lower bound: above the true rate for at most a share delta of samples."""
    return 1.0 - clopper_pearson_upper(n - errors, n, delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """The result of one lambda of a fixed grid on the rows of the test."""

    lambda_hat: float
    errors: int
    answered: int
    size: float  # mean candidates called; breaks ties between points that answer equally often


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaChoice:
    """The points that passed. With probability 1 - delta all of them are within the target.

    Attributes:
        answer_risk_max: The target: P(final answer wrong | answered) at most this.
        valid: Points that passed, in the order of the grid.
    """

    answer_risk_max: float
    delta: float
    valid: tuple[GridPoint, ...]

    @property
    def chosen(self) -> GridPoint | None:
        """The valid point with most answers, then the smallest size; None: infeasible."""
        return min(self.valid, key=lambda point: (-point.answered, point.size), default=None)

    @property
    def feasible(self) -> bool:
        """Whether any point passed; without one there is no lambda with a guarantee."""
        return bool(self.valid)


def learn_then_test(
    grid: Sequence[GridPoint],
    answer_risk_max: float,
    delta: float = 0.05,
    first_share: float = FIRST_SHARE,
) -> LambdaChoice:
    """Find the points whose answer risk is at most the target; any error has probability <= delta.

    Each point's null hypothesis is "its risk exceeds the target"; its p-value is
    P(Bin(answered, target) <= errors), exact given the number of answers. The fallback procedure
    (Wiens 2003) tests the points in order: a point has a share of delta, and inherits the level
    of the point before it if that one passed. The first point has ``first_share`` of delta, as it
    looked best before these rows were seen; the others share the rest equally. So in a run of good
    points from the first on each is tested at most of delta, as in fixed-sequence testing.
    Fixed-sequence testing alone would stop at its first failure, and a strict first point that
    answers few queries fails for lack of rows.

    Why it is exact: every failure resets the inherited level. The first wrong pass therefore
    happens at a level made of the shares since the previous bad point; these shares sum to delta.

    Args:
        grid: Points and their order, both fixed before these rows were seen (for example strictest
            first, or best first by validation rows).
        answer_risk_max: In (0, 1).
        delta: Bound on P(a point passes that exceeds the target), under any dependence.
        first_share: The first point's share of delta; a single point has all of it.
    """
    target, delta = checked_alpha(answer_risk_max, "answer_risk_max"), checked_alpha(delta, "delta")
    valid: list[GridPoint] = []
    level = 0.0
    first_share = first_share if len(grid) > 1 else 1.0
    for number, point in enumerate(grid):
        share = first_share if number == 0 else (1.0 - first_share) / (len(grid) - 1)
        level += delta * share
        if _p_value(point, target) <= level:
            valid.append(point)
        else:
            level = 0.0
    return LambdaChoice(answer_risk_max=target, delta=delta, valid=tuple(valid))


def _p_value(point: GridPoint, target: float) -> float:
    if not 0 <= point.errors <= point.answered:
        raise CalibrationError(
            f"{point.errors} errors among {point.answered} is not a count: check the evidence"
        )
    return binomial_cdf_at(point.errors, point.answered, target)
