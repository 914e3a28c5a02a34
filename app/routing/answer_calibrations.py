"""Active calibrations of the promise `same_answer`, one for each application, with their policies.

The store decides which are active. Every gateway that shares it follows: at once where one was
made here, else with the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache

from app.errors import NotFound, StoreDamaged
from app.json_output import dump_json
from app.settings import VOTE, Settings
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy, tuned_policy

log = logging.getLogger(__name__)

_MAX_FITS: Final = 128  # smaller pools, references and numbers of rounds
_MAX_PLANS: Final = 1_024  # the same at several alphas
_Key = tuple[str, tuple[str, ...], str, int]


@dataclass(frozen=True, slots=True)
class RoundsTerms:
    """What a request demands of the promise.

    Attributes:
        reference: ``VOTE``, or a candidate.
        max_rounds: Most rounds of calls.
    """

    reference: str
    max_rounds: int


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """The calls of requests with the same candidates, terms and alpha.

    Attributes:
        calibration: The rows with the policy.
        threshold: lambda_hat; +inf calls everything.
        expected_calls: Mean number of calls of the rows.
    """

    calibration: SequentialCalibration
    threshold: float
    expected_calls: float


def answer_setup(settings: Settings, added: Mapping[str, str]) -> str:
    """Digest of all that decides which requests an application has, and when answers are equal.

    Args:
        settings: Candidates, applications, equality and reasoning markers.
        added: Digests of what the gateway adds to the requests of each candidate.
    """
    rule = settings.aggregation
    what = [
        [[each.name, added[each.name]] for each in settings.candidates],
        settings.grouping,
        rule.equality,
        rule.reasoning_markers,
    ]
    return blake2b(dump_json(what), digest_size=16).hexdigest()


class AnswerCalibrations:
    """The active records and what follows from their rows. Methods but ``find`` block.

    Args:
        store: Where records are; None: there is no store, and none is active.
        setup: Digest of the configuration, by which records are stored.
        prices: Price of a call of each candidate; None: they have none.
    """

    def __init__(
        self,
        store: AnswerCalibrationStore | None,
        *,
        setup: str,
        prices: Mapping[str, float] | None,
    ) -> None:
        self.setup = setup
        self._store = store
        self._prices = prices
        self._active: Mapping[str, AnswerCalibrationRecord] = {}
        self.stale: frozenset[str] = frozenset()  # ids of records that an alarm made void
        self._fits: LRUCache[_Key, SequentialCalibration] = LRUCache(_MAX_FITS)
        self._plans: LRUCache[tuple[Any, ...], RoundsPlan] = LRUCache(_MAX_PLANS)
        self._lock = Lock()

    def find(self, application: str | None) -> AnswerCalibrationRecord | None:
        """The record that decides for an application; None while there is none."""
        return self._active.get(application or "")

    def catch_up(self) -> None:
        """Make the store's active records those that decide here.

        A damaged record is left out, and the one before it stays.

        Raises:
            StoreError: The store cannot be read.
        """
        if self._store is None:
            return
        found: dict[str, AnswerCalibrationRecord] = {}
        for application, calibration_id in self._store.active(self.setup).items():
            before = self._active.get(application)
            if before is None or before.id != calibration_id:
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
        """
        key = _key(record, names, terms)
        with self._lock:
            found = self._fits.get(key)
        if found is None:
            found = self._fitted(record, key[2], terms.max_rounds)
            if set(names) != set(found.policy.pool):
                found = found.restrict(names)
        threshold = found.lambda_hat(alpha)
        plan = RoundsPlan(found, threshold, found.expected_calls(threshold))
        with self._lock:
            self._fits[key] = found
            self._plans[*key, alpha] = plan
        return plan

    def _fitted(
        self, record: AnswerCalibrationRecord, reference: str, max_rounds: int
    ) -> SequentialCalibration:
        policy = fit_policy(
            record.fitting,
            max_rounds=max_rounds,
            reference=None if reference == VOTE else reference,
            prices=self._prices,
        )
        # Tuned at the configured alpha: one policy serves every alpha. Without prices the reference
        # alone would always be the cheapest.
        if policy.reference is None or self._prices is not None:
            policy = tuned_policy(policy, record.fitting, record.alpha, max_rounds, self._prices)
        return SequentialCalibration(
            policy=policy, answers=record.rows, lost=record.lost, salt=record.salt or None
        )


def _key(record: AnswerCalibrationRecord, names: tuple[str, ...], terms: RoundsTerms) -> _Key:
    reference = terms.reference if terms.reference in names else VOTE
    return record.id, names, reference, terms.max_rounds
