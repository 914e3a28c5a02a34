"""Alarm of the promise `same_answer`: sampled requests bet against the active calibration.

Every sampled request since the calibration shows without a label whether its answer would have
differed from the reference's. These losses feed an e-process, each before it enters any
calibration. All gateways find the same in the stored samples. An alarm is stored: it outlives them.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from app.routing.rounds_plan import RoundsPlan, RoundsTerms
from app.same_answer.calibrations import AnswerCalibrations
from app.same_answer.rows import AnswerRows, AnswerSample
from app.store.answer_calibrations import (
    ALARM,
    AnswerCalibrationRecord,
    AnswerCalibrationStore,
)
from app.utc import past

HALF: Final = 0.5  # of the answers differ, after the change whose delay is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWatch:
    """What the requests since a calibration show.

    Attributes:
        sampled: How many there were.
        differing: On how many of them the answer would have differed, or could not be compared.
        unlabelled: How many of them lacked a label in time, and bet as if their loss were 0.
        evidence: The largest capital of the bets so far.
        alarms_at: The capital at which the alarm is raised; None: none is raised.
        alarm_within: The number of further sampled requests after which the alarm is raised with a
            probability of 95 %, if half of the answers differ from now on; None: not known.
        alarm_at: When the request came that raised the alarm; None: there is none.
    """

    sampled: int = 0
    differing: int = 0
    unlabelled: int = 0
    evidence: float = 1.0
    alarms_at: float | None = None
    alarm_within: int | None = None
    alarm_at: str | None = None


def level_of(false_alarm: float, ordinal: int) -> float:
    """The level of an application's calibration; all together spend ``false_alarm``.

    Args:
        false_alarm: The probability of any false alarm.
        ordinal: The number of calibrations before it.
    """
    return false_alarm / ((ordinal + 1) * (ordinal + 2))


class AnswerBets:
    """The bets of the requests since a calibration; not for several threads at a time.

    Args:
        calibration_id: The calibration.
        plan: It, at its own alpha.
        alpha: That alpha.
        level: Probability of a false alarm; None: none is raised.
        after: When its last row was made; the time of the last request that bet.
        alarm_at: When the alarm was raised, if it was raised before.
    """

    def __init__(
        self,
        calibration_id: str,
        plan: RoundsPlan,
        *,
        alpha: float,
        level: float | None,
        after: str,
        alarm_at: str | None,
    ) -> None:
        self.calibration_id = calibration_id
        self.after = after
        self._plan = plan
        # Where everything is called nothing can differ.
        self._can_differ = plan.threshold < math.inf
        self._test = None
        if level is not None and self._can_differ:
            self._test = plan.calibration.risk_e_process(alpha, level=level)
        alarms_at = None if level is None or self._test is None else 1.0 / level
        self.found = AnswerWatch(
            alarms_at=alarms_at, alarm_within=self._alarm_within, alarm_at=alarm_at
        )

    @property
    def _alarm_within(self) -> int | None:
        return self._test and self._test.alarm_within(HALF)

    def add(self, rows: AnswerRows) -> None:
        """Let further requests bet, oldest first.

        One without all answers counts as different, one without its labels as not different.
        """
        calibration, found = self._plan.calibration, self.found
        losses = [False] * len(rows.rows)
        if self._can_differ:
            whole = rows.classes(calibration.policy.pool, 0, None)
            stops = calibration.stops(whole, self._plan.threshold) if len(whole) else None
            differs = iter([] if stops is None else stops.differs.tolist())
            losses = [
                not row.lacks_labels and (row.classes is None or bool(next(differs)))
                for row in rows.rows
            ]
        evidence, alarm_at = found.evidence, found.alarm_at
        for row, loss in zip(rows.rows, losses, strict=True):
            if self._test is not None:
                self._test.update(float(loss))
                evidence = max(evidence, self._test.e_value)
                if self._test.alarmed and alarm_at is None:
                    alarm_at = row.created_at
        self.after = rows.read_until or self.after
        self.found = replace(
            found,
            sampled=found.sampled + len(losses),
            differing=found.differing + sum(losses),
            unlabelled=found.unlabelled + sum(row.lacks_labels for row in rows.rows),
            evidence=evidence,
            alarm_within=self._alarm_within,
            alarm_at=alarm_at,
        )


log = logging.getLogger(__name__)


class AnswerAlarms:
    """The bets of each application's rows on its active calibration, and the alarms they raise.

    Every row bets against the active calibration before it enters the next. Blocks: use threads.

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
        if record is None or record.refusal is not None:
            return AnswerWatch()
        with self._lock:
            bets = self._bets_on(record)
            bets.after = past(bets.after)
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
        if record is None or record.refusal is not None:
            return AnswerWatch()
        with self._lock:
            return self._bets_on(record).found

    def not_before(self, record: AnswerCalibrationRecord | None) -> str:
        """Requests before that differ from those of today, by an alarm on the last record."""
        if record is None:
            return ""
        alarm_at = self.found(record).alarm_at
        times = [each for each in (alarm_at, record.evidence["not_before"]) if each is not None]
        return next((each for each in times if past(each) == each), "")

    def rows_for_next(self, application: str, record: AnswerCalibrationRecord | None) -> AnswerRows:
        """The rows of the calibration after the last one; none came after the last bet on it.

        Raises:
            StoreError: The store cannot be used.
        """
        not_before = self.not_before(record)
        if record is None or record.refusal is not None:
            return self._sample.rows(application, since=not_before)
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
                alarm_at=evidence.get(ALARM),
            )
        return bets
