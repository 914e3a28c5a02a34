"""Plans of the promise `same_answer`: which candidates are called, round by round.

A plan follows from the rows of a calibration and the terms of a request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from app.settings import ANSWERABLE, VOTE, SameAnswer
from app.store.answer_calibrations import AnswerCalibrationRecord
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import tie_noise
from racer_core.sequential.fit import fit_coverage_policy, fit_policy, tuned_policy
from racer_core.sequential.serving import CallSequence


@dataclass(frozen=True, slots=True)
class RoundsTerms:
    """What a request demands of the promise.

    Attributes:
        reference: ``VOTE``, ``ANSWERABLE``, or a candidate.
        max_rounds: Most rounds of calls.
    """

    reference: str
    max_rounds: int

    @property
    def counts_misses(self) -> bool:
        """Whether the loss is a miss, which rows tell by labels."""
        return self.reference == ANSWERABLE


@dataclass(frozen=True)
class RoundsPlan:
    """The calls of requests with the same candidates, terms and alpha.

    Attributes:
        calibration: The rows with the policy.
        alpha: Risk level.
        threshold: lambda_hat; +inf calls everything.
        expected_calls: Mean number of calls of the rows.
        prices: Price of a call of each candidate; None: they have none.
    """

    calibration: SequentialCalibration
    alpha: float
    threshold: float
    expected_calls: float
    prices: Mapping[str, float] | None

    @cached_property
    def risk_band(self) -> float:
        """The bound on its risk that holds together with those of all other alphas.

        The policy is tuned at one alpha for all, so all thresholds are of one score. 0 where
        everything is called: nothing differs then.
        """
        realised = self.calibration.realised_risk(self.alpha)
        return 0.0 if realised is None else realised.band()

    @classmethod
    def of(
        cls, found: SequentialCalibration, alpha: float, prices: Mapping[str, float] | None
    ) -> Self:
        """The plan at one alpha."""
        threshold = found.lambda_hat(alpha)
        return cls(found, alpha, threshold, found.expected_calls(threshold), prices)

    def sequence(
        self, decision_id: str, *, equals: Callable[[str, str], bool] | None = None
    ) -> CallSequence:
        """The calls of a request.

        Args:
            decision_id: Its decision, which breaks ties.
            equals: Whether two forms are equal, as in the rows; None: if they are the same.
        """
        noise = tie_noise(self.calibration.salt, (decision_id.encode(),))
        policy, threshold = self.calibration.policy, self.threshold
        return CallSequence(policy, threshold, float(noise[0]), equals=equals)

    def price_share(self, called: Iterable[str]) -> float | None:
        """Price of some calls, as a share of that of the reference; None without prices."""
        if self.prices is None:
            return None
        policy = self.calibration.policy
        names = policy.pool if policy.reference is None else (policy.reference,)
        return sum(map(self.prices.__getitem__, called)) / sum(map(self.prices.__getitem__, names))


def terms_of(section: SameAnswer) -> RoundsTerms:
    """The terms of an application's requests that demand no others."""
    return RoundsTerms(section.reference, section.max_rounds)


def fitted(
    record: AnswerCalibrationRecord, names: Sequence[str], terms: RoundsTerms
) -> SequentialCalibration:
    """The policy and the rows of a record for some of the candidates; a function of these alone.

    A reference that is not among ``names`` is replaced by their vote.

    Raises:
        CalibrationError: Misses are the loss, and on no row is one of ``names`` right.
    """
    if terms.counts_misses:
        policy = fit_coverage_policy(record.fitting, max_rounds=terms.max_rounds)
    else:
        policy = fit_policy(
            record.fitting,
            max_rounds=terms.max_rounds,
            reference=None if reference_of(names, terms) == VOTE else terms.reference,
            prices=record.prices,
        )
    # Tuned at the configured alpha: one policy serves every alpha. Without prices the reference
    # alone would always be the cheapest.
    if policy.reference is None or record.prices is not None:
        policy = tuned_policy(policy, record.fitting, record.alpha, terms.max_rounds, record.prices)
    found = SequentialCalibration(
        policy=policy, answers=record.rows, lost=record.lost, salt=record.salt or None
    )
    return found if set(names) == set(policy.pool) else found.restrict(names)


def reference_of(names: Sequence[str], terms: RoundsTerms) -> str:
    """The reference of these candidates: the one named, or their vote where it is not there."""
    return terms.reference if terms.reference in (*names, ANSWERABLE) else VOTE
