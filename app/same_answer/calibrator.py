"""Calibration of the promise `same_answer`, by command and from traffic.

A background task follows the store, looks for alarms, and calibrates where that is due. A
calibration decides only if its threshold is finite and spares calls. One that is refused ends the
one before it, whose rows show less than its own: nothing is certified until the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Generator
from dataclasses import asdict
from datetime import timedelta
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, Protocol, Self

from app.access.typical_usage import TypicalUsage
from app.errors import Conflict, NotFound, StoreError
from app.same_answer.alarms import AnswerAlarms
from app.same_answer.calibration import (
    Attempt,
    attempt_of,
    calibration_of,
    comparable_terms,
    fitting_rows,
    is_due,
    log_cost,
    progress_of,
    rows_needed,
    samples_wanted,
)
from app.same_answer.calibrations import AnswerCalibrations, Staleness, age_of
from app.same_answer.rows import AnswerRows, AnswerSample
from app.settings import ANSWERABLE, DEFAULT, Settings
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from app.utc import latest, past
from racer_core.errors import InputError

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0  # between two looks at the store
PROGRESS_S: Final = 5.0  # that a progress stays shown


class Show(Protocol):
    """Shows the state of an application's calibration."""

    def __call__(
        self,
        application: str,
        *,
        differing: float,
        is_alarmed: bool,
        age_s: float,
        is_refused: bool,
    ) -> None:
        """Show it.

        Args:
            application: The application.
            differing: Share of the requests since the calibration whose answers differed.
            is_alarmed: They raised the alarm.
            age_s: Age of its newest row in seconds; nan: none is active.
            is_refused: The last attempt at the next one was refused, or none came in time.
        """
        ...


class AnswerCalibrator:
    """Makes, lists, watches and activates calibrations; use it as a context.

    The store's work runs on its threads.

    Args:
        settings: The applications and their terms.
        store: Where samples and calibrations are.
        key: Key of the draws of the sample, and of the noise that breaks ties.
        setup: Digest of the configuration, by which records are stored.
        show: Shows the state of an application's calibration.
        typical_usage: What calls use, by which they have an expected price.

    Attributes:
        calibrations: The active ones.
        alarms: What requests since them show.
        refusals: Why an application has no calibration, where one was tried.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        key: bytes,
        setup: str,
        show: Show,
        typical_usage: TypicalUsage,
    ) -> None:
        self._typical_usage = typical_usage
        self._settings = settings
        self._show = show
        self._store = store
        self._records = AnswerCalibrationStore(store)
        configured = settings.applications
        self._names = [*configured, DEFAULT] if configured else [""]
        sections = {name: settings.same_answer_of(name or None) for name in self._names}
        self._renewed = {
            name: rows_needed(each.alpha)
            for name, each in sections.items()
            if each is not None and each.calibrate == "from_traffic"
        }
        self.calibrations = AnswerCalibrations(self._records, setup=setup, renewed=self._renewed)
        self._sample = AnswerSample(
            store=store,
            pool=settings.pool,
            calibrations=self.calibrations,
            key=key,
            deadline=timedelta(seconds=settings.limits.deadline_s),
            label_waits={
                name: timedelta(seconds=each.label_wait_s)
                for name, each in sections.items()
                if each is not None and each.reference == ANSWERABLE
            },
            is_compared=settings.aggregation.equality.is_pairwise,
        )
        self.alarms = AnswerAlarms(
            sample=self._sample,
            calibrations=self.calibrations,
            records=self._records,
            false_alarm=settings.watching.false_alarm,
        )
        # The same for all calibrations: no new draw can be made until one pleases.
        self._salt = blake2b(key, digest_size=16, person=b"same_answer ties").digest()
        self._refused: dict[str, Attempt] = {}  # the last attempt of each application
        self.refusals: dict[str, str] = {}  # why applications have no calibration, if one was tried
        self._too_old: set[str] = set()  # records whose age was logged
        self._progress_now: dict[str, Any] = {}
        self._progress_at = -math.inf
        self._one_progress = asyncio.Lock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def reconfigure(self, settings: Settings) -> None:
        """Follow other prices; promises, and which requests are rows, stay as they are."""
        self._settings = settings

    async def calibrate(self, application: str | None, *, dry_run: bool = False) -> dict[str, Any]:
        """Calibrate one application from its sample. A result that is refused ends what decides.

        Args:
            application: The application; None where none is configured.
            dry_run: Change nothing.

        Raises:
            NotFound: The application is not configured.
            InputError: Too few rows, or answers that cannot be compared.
            StoreError: The store cannot be used.
        """
        return await self._store.run(self._calibrate, self._checked(application), dry_run)

    async def activate(self, calibration_id: str) -> None:
        """Make a stored calibration decide, whose certificates are void: it was chosen.

        Raises NotFound, Conflict, StoreError.
        """
        await self._store.run(self._activate, calibration_id)

    async def report(self) -> dict[str, Any]:
        """All calibrations, newest first, and the rows that each application has.

        Raises:
            StoreError: The store cannot be used.
        """
        return await self._store.run(self._report)

    async def progress(self) -> dict[str, Any]:
        """What decides for each application, and how far its next calibration is; 5 s old at most.

        Any data key may ask, and an answer reads all rows.

        Raises:
            StoreError: The store cannot be used.
        """
        async with self._one_progress:
            if monotonic() - self._progress_at > PROGRESS_S:
                self._progress_now = await self._store.run(self._progress_of_all)
                self._progress_at = monotonic()
        return self._progress_now

    async def __aenter__(self) -> Self:
        """Load what is active, and watch it in the background."""
        await self._store.run(self.keep_up)
        log_cost(self._settings, self._names)
        self._task = asyncio.create_task(self._run(), name="calibrations of same_answer")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._closing.wait()
                    return
            await self._store.run(self.keep_up)

    # On threads ------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """Follow the store, look for alarms, and calibrate where that is due.

        Blocks. Never raises.
        """
        with _faults_logged(""):
            self.calibrations.catch_up()
        for application in self._names:
            with _faults_logged(application):
                self.alarms.watch(self.calibrations.find(application))
                self._show_state(application)
                if application in self._renewed and self.calibrations.setup:
                    self._renew(application)
                    self._show_state(application)

    def _show_state(self, application: str) -> None:
        record = self.calibrations.find(application)
        found, refused = self.alarms.found(record), self._refused_since_alarm(application)
        self.refusals.pop(application, None)
        if record is None and refused is not None:
            self.refusals[application] = refused.refusal
        age = None if record is None else age_of(record)
        is_old = record is not None and self.calibrations.stale(record) is Staleness.AGE
        self._show(
            application,
            differing=found.differing / found.sampled if found.sampled else 0.0,
            is_alarmed=found.alarm_at is not None,
            age_s=math.nan if age is None else age.total_seconds(),
            is_refused=is_old or refused is not None,
        )
        if record is not None and is_old and record.id not in self._too_old:
            self._too_old.add(record.id)
            log.warning(
                "certificates of same_answer%s are void: the newest row of calibration %s is of "
                "%s (calibrate again, on newer samples); the last attempt: %s",
                _of(application),
                record.id,
                record.evidence["until"],
                "none, for there are no new samples" if refused is None else refused.refusal,
            )

    def _refused_since_alarm(self, application: str) -> Attempt | None:
        """The last attempt, if it was refused; after an alarm rows are counted anew."""
        refused, last = self._refused.get(application), self.calibrations.last(application)
        if refused is None and last is not None and last.refusal is not None:
            refused = attempt_of(last)  # of another gateway, or before the start
        if refused is None or past(refused.until) != refused.until:  # a clock was ahead
            return None
        return refused if refused.until >= self.alarms.not_before(last) else None

    def _renew(self, application: str) -> None:
        """Calibrate from traffic, if it is due."""
        record, last = self.calibrations.find(application), self.calibrations.last(application)
        if record is not None and not self._is_renewal_due(record):
            return
        attempt = self._refused_since_alarm(application)
        wanted = samples_wanted(attempt, self._renewed[application])
        since = self.alarms.not_before(last) if attempt is None else attempt.until
        if self._sample.count_since(application, since, wanted) < wanted:
            return
        rows, is_stored = self.alarms.rows_for_next(application, last), False
        try:
            made = self._made_of(rows)
            refusal, level = made.evidence["refused"], logging.WARNING
            is_stored = refusal is None or record is not None
            if is_stored:  # a refused one ends what decides
                expected = "" if last is None else last.id
                self._records.add(made, activate=True, expected_active_id=expected)
                self.calibrations.catch_up()
        except Conflict as exc:
            log.info("same_answer%s is not calibrated here: %s", _of(application), exc)
            self.calibrations.catch_up()
            return
        except InputError as exc:
            refusal, level = str(exc), logging.INFO
        self._refused.pop(application, None)
        if refusal is not None:
            until = rows.read_until or rows.since
            self._refused[application] = Attempt(
                made_at=now(), rows=len(rows.rows), until=until, refusal=refusal
            )
            if not is_stored:  # else its activation is logged
                log.log(level, "same_answer%s is not calibrated: %s", _of(application), refusal)

    def _is_renewal_due(self, record: AnswerCalibrationRecord) -> bool:
        """Daily, and as soon as the samples have doubled, for few rows waste calls.

        Never without a row since the last one, which would be made of the same rows again.
        """
        if not self.alarms.found(record).sampled:
            return False
        rows, until = record.evidence["rows"], record.evidence["until"]
        activated_at = record.activated_at or record.created_at
        since = record.created_at if activated_at > latest() else activated_at
        if self.calibrations.stale(record) or is_due(since):
            return True
        return self._sample.count_since(record.application, until, rows) >= rows

    def _made_of(self, rows: AnswerRows) -> AnswerCalibrationRecord:
        return calibration_of(
            rows,
            self._settings,
            self.calibrations,
            self._typical_usage,
            self._salt,
            self._sample.labels(rows, fitting_rows(len(rows.rows))),
        )

    def _calibrate(self, application: str, dry_run: bool) -> dict[str, Any]:
        comparable_terms(
            self._settings, application, self.calibrations.setup
        )  # before any row is read
        self.alarms.watch(self.calibrations.find(application))
        rows = self.alarms.rows_for_next(application, self.calibrations.last(application))
        made = self._made_of(rows)
        refusal = made.evidence["refused"]
        is_active = not dry_run and refusal is None
        if not dry_run:
            made = self._records.add(made, activate=True)  # a refused one ends what decides
            self.calibrations.catch_up()
        return {
            "id": made.id,
            "active": is_active,
            "application": application or None,
            "refusal": refusal,
            "evidence": made.evidence,
        }

    def _activate(self, calibration_id: str) -> None:
        self._records.activate(calibration_id, self.calibrations.setup)
        self.calibrations.catch_up()

    def _report(self) -> dict[str, Any]:
        return {
            "applications": self._progress_of_all(),
            "data": [asdict(each) for each in self._records.summaries(self.calibrations.setup)],
        }

    def _progress_of_all(self) -> dict[str, Any]:
        return {name: self._progress(name) for name in self._names}

    def _progress(self, application: str) -> dict[str, Any]:
        watch = self.alarms.watch(self.calibrations.find(application))
        not_before = self.alarms.not_before(self.calibrations.last(application))
        rows = self._sample.rows(application, since=not_before)
        return progress_of(
            rows,
            settings=self._settings,
            calibrations=self.calibrations,
            watch=watch,
            refused=self._refused_since_alarm(application),
        )

    def _checked(self, application: str | None) -> str:
        names = self._names if self._settings.applications else []
        if application is not None and application not in names:
            raise NotFound(
                f"no application {application[:128]!r}; the applications are {names}",
                code="application_not_found",
                param="application",
            )
        return application or self._names[-1]


@contextlib.contextmanager
def _faults_logged(application: str) -> Generator[None]:
    """One application's fault keeps no other one from its bets."""
    try:
        yield
    except StoreError as exc:
        log.warning("calibrations of same_answer%s wait for the store: %s", _of(application), exc)
    except Exception:
        log.exception("calibrations of same_answer%s are not kept up", _of(application))


def _of(application: str) -> str:
    return f" of {application}" if application else ""
