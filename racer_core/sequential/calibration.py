"""Sequential calibration: thresholds for "the answer differs on at most alpha of the requests".

The rows' critical scores are those of :mod:`racer_core.sequential.critical`; thresholds and laws of
the realised risk are those of sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.errors import CalibrationError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.critical import (
    critical_scores,
    round_nonconformity,
    rounds_called,
    tie_noise,
)
from racer_core.sequential.policy import Columns, Loss, Outcomes, Policy
from racer_core.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class Stops:
    """Where sequences of rows stop at a threshold.

    Attributes:
        rounds: Rounds called, shape (n,).
        calls: Candidates called, shape (n,).
        winner: The column whose answer is returned, shape (n,).
        differs: Whether it differs from the reference's answer, shape (n,).
    """

    rounds: Columns
    calls: Columns
    winner: Columns
    differs: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """What a level of risk takes: means over the calibration rows themselves.

    Attributes:
        alpha: The level.
        threshold: lambda_hat; +inf calls everything.
        calls: Candidates called.
        rounds: Rounds called.
        price_share: Price of the calls as a share of the reference's; None without prices.
    """

    alpha: float
    threshold: float
    calls: float
    rounds: float
    price_share: float | None


@dataclass(frozen=True, kw_only=True)
class SequentialCalibration:
    """A policy with rows that neither fitted nor chose it.

    Attributes:
        policy: Order, rounds, vote and stopping score.
        answers: The calibration rows, drawn as requests are.
        lost: Further rows without the answers of all candidates. Left out, the rows would be drawn
            by what could be answered; they count as lost at every threshold.
        salt: Key of the noise that breaks ties, which no figure may choose; None adds none: then
            rows with equal scores stop together, and the risk is below alpha.
    """

    policy: Policy
    answers: AnswerClasses
    lost: int = 0
    salt: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse an empty calibration."""
        if not len(self.answers):
            raise CalibrationError("a calibration needs rows")
        if self.policy.loss is Loss.MISSES and len(self.answers.answerable()) < len(self.answers):
            raise CalibrationError(
                "misses are counted where a candidate is right: leave out others"
            )

    @property
    def n(self) -> int:
        """The number of rows, lost ones included."""
        return len(self.answers) + self.lost

    @cached_property
    def ascending(self) -> FloatArray:
        """The rows' critical scores in ascending order, shape (n,)."""
        outcomes = self._outcomes
        s = self.nonconformity(outcomes.doubt, self.answers.fingerprints)
        scores = np.sort(critical_scores(s, outcomes.differs))
        return np.append(scores, np.full(self.lost, np.inf))

    def nonconformity(self, doubt: FloatArray, fingerprints: tuple[bytes, ...]) -> FloatArray:
        """S of every round, shape (n, R), of rows with these fingerprints."""
        return round_nonconformity(doubt, tie_noise(self.salt, fingerprints))

    def lambda_hat(self, alpha: float, delta: float | None = None) -> float:
        """The threshold for any alpha; +inf calls everything, for the rows are too few.

        Args:
            alpha: The largest share of requests whose answer may differ.
            delta: None bounds the mean over calibrations; else the share that may exceed alpha.
        """
        return threshold_from_sorted(self.ascending, allowed_misses(self.n, alpha, delta))

    def realised_risk(self, alpha: float, delta: float | None = None) -> RealisedRisk | None:
        """What the rows tell about the risk of the threshold; None where everything is called."""
        misses = allowed_misses(self.n, alpha, delta)
        if np.isposinf(threshold_from_sorted(self.ascending, misses)):
            return None
        return RealisedRisk.of(self.ascending, misses)

    def stops(self, answers: AnswerClasses, threshold: float) -> Stops:
        """Where the sequences of these rows stop."""
        is_own = answers is self.answers
        outcomes = self._outcomes if is_own else self.policy.outcomes(answers)
        s = self.nonconformity(outcomes.doubt, answers.fingerprints)
        rounds = rounds_called(s, threshold)
        at = np.arange(len(answers)), rounds - 1
        calls = np.array(self.policy.borders)[rounds - 1]
        return Stops(rounds, calls, outcomes.winner[at], outcomes.differs[at])

    def expected_calls(self, threshold: float) -> float:
        """Mean number of calls of the rows at a threshold."""
        return float(self.stops(self.answers, threshold).calls.mean())

    @property
    def least_alpha(self) -> float:
        """The smallest alpha with a finite threshold; below it everything is called."""
        return float((1 + np.isposinf(self.ascending).sum()) / (self.n + 1))

    def price_share(self, calls: Columns, prices: Mapping[str, float]) -> float:
        """Mean price of requests as a share of what calling the reference takes.

        Args:
            calls: How many candidates were called, in the order of the policy, shape (n,).
            prices: Price of one call of each candidate; the vote's is that of the whole pool.
        """
        policy = self.policy
        spent = np.cumsum([prices[name] for name in policy.order])
        names = policy.pool if policy.reference is None else (policy.reference,)
        return float(spent[calls - 1].mean()) / sum(prices[name] for name in names)

    def frontier(
        self, alphas: Sequence[float], prices: Mapping[str, float] | None = None
    ) -> tuple[FrontierPoint, ...]:
        """What each level of risk takes of the rows themselves.

        Args:
            alphas: The levels.
            prices: Price of one call of each candidate; None: they have none.
        """
        points: list[FrontierPoint] = []
        for alpha in alphas:
            stops = self.stops(self.answers, threshold := self.lambda_hat(alpha))
            point = FrontierPoint(
                alpha=alpha,
                threshold=threshold,
                calls=float(stops.calls.mean()),
                rounds=float(stops.rounds.mean()),
                price_share=None if prices is None else self.price_share(stops.calls, prices),
            )
            points.append(point)
        return tuple(points)

    @cached_property
    def _outcomes(self) -> Outcomes:
        """Those of the rows, which every threshold and level shares."""
        return self.policy.outcomes(self.answers)

    def restrict(self, names: Sequence[str]) -> Self:
        """The calibration of a smaller pool: its order, votes, references and critical scores.

        Raises:
            InputError: The reference is not in the smaller pool.
        """
        policy = self.policy.restrict(names)
        answers = self.answers.restrict(policy.pool)
        if policy.loss is Loss.MISSES:
            answers = answers.answerable()
        return replace(self, policy=policy, answers=answers)

    def group(self, name: str) -> Self:
        """The calibration by the rows of one group.

        Raises:
            CalibrationError: No row is of this group.
        """
        groups = self.answers.groups or ()
        return replace(self, answers=self.answers.at(np.array([g == name for g in groups], bool)))

    def risk_e_process(self, alpha: float, *, level: float) -> RiskEProcess:
        """The test of the differences to come against the promised risk.

        A row must bet before it enters any calibration: at a threshold that was calibrated on the
        row itself, a changed loss looks like an unchanged one.
        """
        return RiskEProcess.for_calibration(self.realised_risk(alpha), level=level)
