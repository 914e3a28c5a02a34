"""Active calibrations of the promise `same_answer`, one for each application, with their policies.

The store decides which are active. Every gateway that shares it follows: at once where one was
made here, else with the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, Self

from cachetools import LRUCache

from app.errors import NotFound, StoreDamaged
from app.json_output import dump_json
from app.settings import ANSWERABLE, VOTE, SameAnswer, Settings
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from racer_core.aggregation.answers import Equality, forms_version
from racer_core.encoder.base import EncoderSpec
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.coverage import fit_coverage_policy
from racer_core.sequential.critical import tie_noise
from racer_core.sequential.fit import fit_policy, tuned_policy
from racer_core.sequential.serving import CallSequence

log = logging.getLogger(__name__)

# Of the newest row of a calibration from traffic: traffic changes within weeks.
MAX_AGE: Final = timedelta(days=7)
_MAX_FITS: Final = 128  # smaller pools, references and numbers of rounds
_MAX_PLANS: Final = 1_024  # the same at several alphas
_Key = tuple[str, tuple[str, ...], str, int]


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


def answer_setup(
    settings: Settings, added: Mapping[str, str], encoder: EncoderSpec | None = None
) -> str:
    """Digest of all that decides which requests an application has, and when answers are equal.

    Empty where answers cannot be compared: under ``semantic`` without an encoder. No request is a
    row then, and no calibration decides.

    Args:
        settings: Candidates, applications, their promises and checkers, when answers are equal,
            which includes the version of their normal forms.
        added: Digests of what the gateway adds to the requests of each candidate.
        encoder: That of the loaded router.
    """
    rule, names = settings.aggregation, (None, *settings.applications)
    what = [
        [[each.name, added[each.name]] for each in settings.candidates],
        settings.grouping,
        [_promise_of(settings, name) for name in names],
        [_checker_of(settings, name) for name in names],
        rule.equality,
        forms_version(rule.equality),
        rule.reasoning_markers,
    ]
    if rule.equality is Equality.SEMANTIC:
        if encoder is None:
            return ""
        what += [asdict(replace(encoder, name="")), rule.similarity, settings.limits.query_chars]
    return blake2b(dump_json(what), digest_size=16).hexdigest()


def _promise_of(settings: Settings, application: str | None) -> object:
    """Whether it has the promise; where its rows have labels, the checker that gives them."""
    found = settings.same_answer_of(application)
    if found is None or found.reference != ANSWERABLE:
        return found is not None
    own = settings.applications.get(application or "")
    checker = None if own is None else own.checker
    return [ANSWERABLE, None if checker is None else checker.model_dump(mode="json")]


def _checker_of(settings: Settings, application: str | None) -> object:
    section = settings.same_answer_of(application)
    found = None if section is None else section.evidence
    return None if found is None else found.model_dump(mode="json", exclude={"concurrency"})


class Staleness(StrEnum):
    """Why certificates of an active record are void."""

    ALARM = "alarm"  # too many answers differed since
    AGE = "age"  # no row is new enough


def age_of(record: AnswerCalibrationRecord) -> timedelta:
    """The age of a record's newest row: neither old rows nor activating it again renew it."""
    return datetime.now(UTC) - datetime.fromisoformat(record.evidence["until"])


class AnswerCalibrations:
    """The active records and what follows from their rows. Methods but ``find`` block.

    Args:
        store: Where records are; None: there is no store, and none is active.
        setup: Digest of the configuration, by which records are stored; while it is empty none is
            active.
        renewed: The applications that are calibrated from their traffic.
    """

    def __init__(
        self,
        store: AnswerCalibrationStore | None,
        *,
        setup: str,
        renewed: Collection[str] = (),
    ) -> None:
        self.setup = setup
        self._renewed = renewed
        self._store = store
        self._active: Mapping[str, AnswerCalibrationRecord] = {}
        self.alarmed: frozenset[str] = frozenset()  # ids; stored alarms are evidence
        self._fits: LRUCache[_Key, SequentialCalibration] = LRUCache(_MAX_FITS)
        self._plans: LRUCache[tuple[Any, ...], RoundsPlan] = LRUCache(_MAX_PLANS)
        self._lock = Lock()

    def find(self, application: str | None) -> AnswerCalibrationRecord | None:
        """The record that decides for an application; None while there is none."""
        return self._active.get(application or "")

    def stale(self, record: AnswerCalibrationRecord) -> Staleness | None:
        """Why certificates of a record are void; None: they are not."""
        if record.id in self.alarmed or "alarm_at" in record.evidence:
            return Staleness.ALARM
        is_old = record.application in self._renewed and age_of(record) > MAX_AGE
        return Staleness.AGE if is_old else None

    def follow(self, setup: str) -> None:
        """Let the records of another setup decide, that of a loaded encoder.

        Raises:
            StoreError: The store cannot be read.
        """
        self.setup = setup
        self.catch_up()

    def catch_up(self) -> None:
        """Make the store's active records those that decide here.

        A damaged record is left out, and the one before it stays.

        Raises:
            StoreError: The store cannot be read.
        """
        if self._store is None or not self.setup:
            return
        found: dict[str, AnswerCalibrationRecord] = {}
        for application, (calibration_id, since) in self._store.active(self.setup).items():
            before = self._active.get(application)
            if before is None or (before.id, before.activated_at) != (calibration_id, since):
                try:
                    before = self._store.record(calibration_id)
                except (NotFound, StoreDamaged) as exc:
                    log.error("%s; the last calibration stays active", exc)
            if before is not None:
                found[application] = before
        self._active = found

    def cached_plan(
        self,
        record: AnswerCalibrationRecord,
        names: tuple[str, ...],
        terms: RoundsTerms,
        alpha: float,
    ) -> RoundsPlan | None:
        """As :meth:`plan`; None where it must be computed. Does not block."""
        with self._lock:
            return self._plans.get((*_key(record, names, terms), alpha))

    def plan(
        self,
        record: AnswerCalibrationRecord,
        names: tuple[str, ...],
        terms: RoundsTerms,
        alpha: float,
    ) -> RoundsPlan:
        """The plan of a record for some of the candidates.

        A reference that is not among ``names`` is replaced by their vote.

        Raises:
            CalibrationError: As :func:`fitted`.
        """
        key = _key(record, names, terms)
        with self._lock:
            found = self._fits.get(key)
        if found is None:
            found = fitted(record, names, terms)
        plan = RoundsPlan.of(found, alpha, record.prices)
        with self._lock:
            self._fits[key] = found
            self._plans[*key, alpha] = plan
        return plan


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
            reference=None if _reference(names, terms) == VOTE else terms.reference,
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


def _key(record: AnswerCalibrationRecord, names: tuple[str, ...], terms: RoundsTerms) -> _Key:
    return record.id, names, _reference(names, terms), terms.max_rounds


def _reference(names: Sequence[str], terms: RoundsTerms) -> str:
    return terms.reference if terms.reference in (*names, ANSWERABLE) else VOTE
