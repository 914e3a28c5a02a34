"""Active calibrations of the promise `same_answer`, one for each application, with their policies.

The store decides which are active. Every gateway that shares it follows: at once where one was
made here, else with the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache

from app.errors import NotFound, StoreDamaged
from app.json_output import dump_json
from app.judging.checker_calls import CheckerCode
from app.routing.calibration_sync import FEW_ROWS
from app.routing.rounds_plan import RoundsPlan, RoundsTerms, fitted, reference_of
from app.settings import ANSWERABLE, Checker, Evidence, Settings
from app.store.answer_calibrations import (
    ALARM,
    AnswerCalibrationRecord,
    AnswerCalibrationStore,
)
from app.utc import is_within
from racer_core.aggregation.answers import Equality, forms_version
from racer_core.aggregation.wording import SHIPPED
from racer_core.artifacts import Artifact
from racer_core.sequential.calibration import SequentialCalibration

log = logging.getLogger(__name__)

# Of the newest row of a calibration from traffic: traffic changes within weeks.
MAX_AGE: Final = timedelta(days=7)


_MAX_FITS: Final = 128  # smaller pools, references and numbers of rounds


_MAX_PLANS: Final = 1_024  # the same at several alphas


_Key = tuple[str, tuple[str, ...], str, int]


def answer_setup(
    settings: Settings,
    added: Mapping[str, str],
    code: CheckerCode,
    artifact: Artifact | None = None,
) -> str:
    """Digest of all that decides which requests an application has, and when answers are equal.

    Empty where answers cannot be compared: under ``semantic`` without an encoder. No request is a
    row then, and no calibration decides.

    Args:
        settings: Candidates, applications, their promises and checkers, when answers are equal,
            which includes the version of their normal forms.
        added: Digests of what the gateway adds to the requests of each candidate.
        code: The code of checkers, which they have until the gateway ends.
        artifact: The loaded router, whose encoder compares meanings, and whose rule sentences.
    """
    rule, names = settings.aggregation, (None, *settings.applications)
    what = [
        [[each.name, added[each.name]] for each in settings.candidates],
        settings.grouping,
        [_promise_of(settings, name, code) for name in names],
        [_evidence_of(settings, name, code) for name in names],
        rule.equality,
        forms_version(rule.equality),
        rule.reasoning_markers,
    ]
    if rule.equality is Equality.SEMANTIC:
        if artifact is None:
            return ""
        encoder = replace(artifact.encoder, name="")
        what += [asdict(encoder), rule.similarity, settings.limits.query_chars]
    elif rule.equality.is_pairwise:
        text = artifact and artifact.text_rule
        what += [(text or SHIPPED).weights]
    return blake2b(dump_json(what), digest_size=16).hexdigest()


def _promise_of(settings: Settings, application: str | None, code: CheckerCode) -> object:
    """Whether it has the promise; where its rows have labels, the checker that gives them."""
    found = settings.same_answer_of(application)
    if found is None or found.reference != ANSWERABLE:
        return found is not None
    own = settings.applications.get(application or "")
    return [ANSWERABLE, _checked_by(own and own.checker, code)]


def _evidence_of(settings: Settings, application: str | None, code: CheckerCode) -> object:
    """The checker of its answers, if one is configured."""
    section = settings.same_answer_of(application)
    return _checked_by(section and section.evidence, code)


def _checked_by(checker: Checker | Evidence | None, code: CheckerCode) -> object:
    """A checker, of a function with its code."""
    if checker is None:
        return None
    return [
        checker.model_dump(mode="json", exclude={"concurrency"}),
        checker.function and code[checker.function],
    ]


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
        last = self.last(application)
        return None if last is None or last.refusal is not None else last

    def last(self, application: str | None) -> AnswerCalibrationRecord | None:
        """The record that was activated last; one that was refused ended the one before it."""
        return self._active.get(application or "")

    def stale(self, record: AnswerCalibrationRecord) -> Staleness | None:
        """Why certificates of a record are void; None: they are not."""
        if record.id in self.alarmed or ALARM in record.evidence:
            return Staleness.ALARM
        is_young = is_within(record.evidence["until"], MAX_AGE)
        return None if is_young or record.application not in self._renewed else Staleness.AGE

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
                if before is not self._active.get(application):
                    _log_active(before)
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


def _log_active(record: AnswerCalibrationRecord) -> None:
    """Log what became active, with what follows from it."""
    found, name = record.evidence, record.application and f" of {record.application}"
    if record.refusal is not None:
        log.warning(
            "same_answer%s is not calibrated, the fallback answers: %s", name, record.refusal
        )
        return
    said = [f"alpha {record.alpha:g}, {found['n']} rows" if "n" in found else ""]
    if found.get("n", FEW_ROWS) < FEW_ROWS and "risk_q95" in found:
        said.append(f"of such calibrations one in twenty is above {found['risk_q95']:.1%}")
    if record.is_chosen:
        said.append("its certificates are void, for it was activated by its id")
    said += found.get("consequences", ())
    log.info(
        "same_answer%s is calibrated by %s: %s", name, record.id, "; ".join(filter(None, said))
    )


def _key(record: AnswerCalibrationRecord, names: tuple[str, ...], terms: RoundsTerms) -> _Key:
    return record.id, names, reference_of(names, terms), terms.max_rounds
