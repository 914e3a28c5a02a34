"""The result of tuning: what every setting gives, the frontier of cost and accuracy, the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method, Weight
from racer_core.errors import InputError
from racer_core.offline.equalities import EqualityTrial
from racer_core.offline.evaluators import EvaluatorChoice, EvaluatorQuality
from racer_core.types import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting, measured on validation rows that did not set its threshold."""

    alpha: float
    score: Score  # `static`, or the cheapest that is shown to be cheaper
    rule: Method | None  # None on graded rows, which have no vote
    weight: Weight | None  # of `weighted`
    temperature: float | None  # of `weighted`
    # Of the voted answer, an abstention not being right; on graded rows the mean quality of the
    # best called candidate, an empty set having 0.
    accuracy: float
    se: float  # of the accuracy, over rows or clusters of rows
    size: float
    cost: float  # mean price of a query; the size where there are no prices; ratings are not in it
    # Share of the answerable queries whose set has no right candidate; of graded rows the mean
    # shortfall of the set from the pool.
    missed: float
    # The majority under the configured equality, or better than it by two paired standard errors.
    proven: bool
    equality: Equality | None = None  # by which the votes were counted
    # By how much the most accurate proven setting is better on the same rows, and the standard
    # error of this difference.
    behind: float = 0.0
    behind_se: float = 0.0

    @property
    def evaluated(self) -> bool:
        """Whether this vote needs an evaluator."""
        return self.weight not in (None, Weight.ROUTER)

    @property
    def behind_interval(self) -> tuple[float, float]:
        """A 95 % interval of ``behind``."""
        return self.behind - 1.96 * self.behind_se, self.behind + 1.96 * self.behind_se


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCalls:
    """What calling the same candidates for every query gives, for comparison."""

    candidates: tuple[str, ...]
    accuracy: float  # of the majority vote, or of the only candidate; quality as in `Trial`
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The result of the search on the validation rows."""

    trials: tuple[Trial, ...]
    chosen: Trial
    slack: float  # one standard error of the best accuracy: differences below it are noise
    rows: int
    keeps_alpha: bool = False  # the configured alpha: the rows are too few to choose one by
    # Of recorded confidences: the quality of each evaluator, and by kind the chosen ones.
    evaluators: tuple[EvaluatorQuality, ...] = ()
    evaluator_choices: Mapping[str, EvaluatorChoice] = field(
        default_factory=dict[str, EvaluatorChoice]
    )
    everyone: FixedCalls | None = None
    best_single: FixedCalls | None = None  # the best of these rows, in hindsight
    equalities: tuple[EqualityTrial, ...] = ()  # the majority of everyone, the configured one first

    @property
    def points(self) -> tuple[Trial, ...]:
        """The most accurate setting of each alpha; of its own alpha the chosen one."""
        found: dict[float, Trial] = {}
        for trial in self.trials:
            best = found.get(trial.alpha)
            if trial.proven and (best is None or trial.accuracy > best.accuracy):
                found[trial.alpha] = trial
        return tuple((found | {self.chosen.alpha: self.chosen}).values())

    @property
    def frontier(self) -> tuple[Trial, ...]:
        """The points of which no other is at once as cheap and more accurate, or the reverse."""

        def beats(other: Trial, point: Trial) -> bool:
            is_no_worse = other.cost <= point.cost and other.accuracy >= point.accuracy
            return is_no_worse and (other.cost, other.accuracy) != (point.cost, point.accuracy)

        points = self.points
        return tuple(each for each in points if not any(beats(other, each) for other in points))

    @property
    def plateau(self) -> tuple[float, ...]:
        """The levels with a setting that is as accurate as the best, but for ``slack``."""
        found = (each.alpha for each in self.trials if each.proven and each.behind <= self.slack)
        return tuple(sorted(set(found)))

    def at(self, alpha: float) -> Self:
        """The same with the point of this alpha as the chosen one. Raises InputError."""
        for point in self.points:
            if point.alpha == alpha:
                return replace(self, chosen=point)
        levels = ", ".join(f"{point.alpha:g}" for point in self.points)
        raise InputError(f"no point is at alpha {alpha:g}; there are points at {levels}")
