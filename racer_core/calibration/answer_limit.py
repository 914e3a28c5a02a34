"""Served limit on P(final answer wrong | answered): thresholds that passed Learn then Test.

The rows are divided at random. The first half fixes tau, a grid of thresholds and their order. The
second half tests the grid, and sets lambda_hat as always. With probability 1 - delta all thresholds
that passed keep the limit, so that any rule may choose among them: a request gets the smallest one
that is at least lambda_hat. It covers more than lambda_hat does, so the bound on misses stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from racer_core.calibration.learn_then_test import GridPoint, learn_then_test


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimit:
    """A limit, and the thresholds that keep it.

    Attributes:
        answer_risk_max: P(final answer wrong | answered) is at most this.
        delta: Probability that some threshold breaks it.
        thresholds: Those that passed, ascending.
        vote: The rule of the vote that was tested.
    """

    answer_risk_max: float
    delta: float
    thresholds: tuple[float, ...]
    vote: str

    def served(self, lambda_hat: float) -> float:
        """The smallest threshold that passed and is at least this; this one if there is none."""
        place = bisect_left(self.thresholds, lambda_hat)
        return self.thresholds[place] if place < len(self.thresholds) else lambda_hat

    def holds_at(self, threshold: float, vote: str) -> bool:
        """Whether the limit is certified for a threshold and a rule of the vote."""
        return threshold in self.thresholds and vote == self.vote


def passing(
    grid: Sequence[GridPoint], at_least: float, limit: float, delta: float
) -> tuple[float, ...]:
    """The thresholds that pass, ascending; none if all of them are below ``at_least``."""
    passed = sorted(each.lambda_hat for each in learn_then_test(grid, limit, delta).valid)
    return tuple(passed) if passed and passed[-1] >= at_least else ()


def smallest_feasible(grid: Sequence[GridPoint], at_least: float, delta: float) -> float | None:
    """The smallest limit, rounded up to 0.001, that would have passed; None if none would have.

    A limit that is chosen so is not certified by the rows that chose it.
    """
    steps = range(1, 1_000)
    # Every p-value falls as the limit grows, so that what passed a limit passes a larger one.
    first = bisect_left(
        steps, True, key=lambda step: bool(passing(grid, at_least, step / 1_000, delta))
    )
    return steps[first] / 1_000 if first < len(steps) else None
