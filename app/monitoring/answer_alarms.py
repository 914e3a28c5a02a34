"""Alarms of active calibrations of `same_answer`: each application's bets, over all its requests.

Every row bets against the active calibration before it enters the next. Blocks: use threads.
"""

from __future__ import annotations

import logging
from threading import Lock

from app.routing.rounds_plan import AnswerCalibrations, RoundsTerms
from app.same_answer.alarms import AnswerBets, AnswerWatch, level_of
from app.same_answer.rows import AnswerRows, AnswerSample
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore

log = logging.getLogger(__name__)


class AnswerAlarms:
    """The bets on active calibrations, and the alarms that follow from them.

    Args:
        sample: The rows.
        calibrations: The active calibrations.
        records: Where alarms are stored.
        false_alarm: Probability of any false alarm of an application; None: none is raised.
    """

    def __init__(
        self,
        *,
        sample: AnswerSample,
        calibrations: AnswerCalibrations,
        records: AnswerCalibrationStore,
        false_alarm: float | None,
    ) -> None:
        self._sample = sample
        self._calibrations = calibrations
        self._records = records
        self._false_alarm = false_alarm
        self._bets: dict[str, AnswerBets] = {}  # of each application's active calibration
        self._stored: set[str] = set()  # records whose alarm is in the store
        self._lock = Lock()

    def watch(self, record: AnswerCalibrationRecord | None) -> AnswerWatch:
        """Let further requests bet against an active calibration, and raise its alarm if it is due.

        Raises:
            StoreError: The store cannot be used.
        """
        if record is None:
            return AnswerWatch()
        with self._lock:
            bets = self._bets_on(record)
            is_cut = True
            while is_cut:
                rows = self._sample.rows(record.application, after=bets.after)
                bets.add(rows)
                is_cut = rows.is_cut
            found = bets.found
            if found.alarm_at is not None and record.id not in self._stored:
                self._calibrations.alarmed |= {record.id}  # whether it can be stored or not
                self._records.raise_alarm(record.id, found.alarm_at)
                self._stored.add(record.id)
                log.warning(
                    "certificates of same_answer%s are void: %d of %d sampled answers differed "
                    "since calibration %s",
                    record.application and f" of {record.application}",
                    found.differing,
                    found.sampled,
                    record.id,
                )
        return found

    def found(self, record: AnswerCalibrationRecord | None) -> AnswerWatch:
        """What the requests showed that bet so far."""
        if record is None:
            return AnswerWatch()
        with self._lock:
            return self._bets_on(record).found

    def not_before(self, record: AnswerCalibrationRecord | None) -> str:
        """Requests before that differ from those of today, by an alarm since."""
        if record is None:
            return ""
        return self.found(record).alarm_at or record.evidence["not_before"]

    def rows_for_next(self, application: str, record: AnswerCalibrationRecord | None) -> AnswerRows:
        """The rows of the calibration after the active one; none came after the last bet.

        Raises:
            StoreError: The store cannot be used.
        """
        if record is None:
            return self._sample.rows(application)
        not_before = self.not_before(record)
        with self._lock:
            until = self._bets_on(record).after
        return self._sample.rows(application, since=not_before, until=until)

    def _bets_on(self, record: AnswerCalibrationRecord) -> AnswerBets:
        bets = self._bets.get(record.application)
        if bets is None or bets.calibration_id != record.id:
            evidence, level = record.evidence, self._false_alarm
            terms = RoundsTerms(evidence["reference"], evidence["max_rounds"])
            bets = self._bets[record.application] = AnswerBets(
                record.id,
                self._calibrations.plan(record, record.pool, terms, record.alpha),
                alpha=record.alpha,
                level=None if level is None else level_of(level, evidence["ordinal"]),
                after=evidence["until"],
                alarm_at=evidence.get("alarm_at"),
            )
        return bets
