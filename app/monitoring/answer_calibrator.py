"""Calibration of the promise `same_answer` from sampled traffic: rows, checks, activation.

The oldest quarter of the rows fits the policy, the others calibrate its threshold. A calibration is
activated only if its threshold is finite and spares calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Generator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final, Protocol, Self

from app.errors import Conflict, NotFound, StoreError
from app.ids import IdGenerator
from app.monitoring import answer_schedule
from app.monitoring.answer_evidence import UNPRICED, evidence_of, refusal_of
from app.monitoring.answer_progress import expected_at, fitting_rows, rows_needed
from app.monitoring.answer_rows import AnswerRows, answer_rows, samples_since
from app.monitoring.answer_schedule import Attempt, samples_wanted
from app.monitoring.answer_watch import AnswerBets, AnswerWatch, level_of
from app.routing.answer_calibrations import AnswerCalibrations, RoundsTerms, Staleness, age_of
from app.settings import COMPARABLE, DEFAULT, VOTE, SameAnswer, Settings
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from racer_core.errors import InputError

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0  # between two looks at the store
_SALT_BYTES: Final = 16


class Show(Protocol):
    """Shows the state of an application's calibration."""

    def __call__(
        self, application: str, watch: AnswerWatch, *, age: timedelta | None, is_refused: bool
    ) -> None:
        """Show it.

        Args:
            application: The application.
            watch: What the requests since the calibration say.
            age: Time since it was made; None: none is active.
            is_refused: The last attempt at the next one was refused.
        """
        ...


class AnswerCalibrator:
    """Makes, lists, watches and activates calibrations; use it as a context.

    The store's work runs on its threads.

    Args:
        settings: The applications and their terms.
        store: Where samples and calibrations are.
        key: Key of the draws of the sample.
        setup: Digest of the configuration, by which records are stored.
        show: Shows the state of an application's calibration.

    Attributes:
        calibrations: The active ones.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        key: bytes,
        setup: str,
        show: Show,
    ) -> None:
        self._settings = settings
        self._show = show
        self._store = store
        self._records = AnswerCalibrationStore(store)
        self._key = key
        self._ids = IdGenerator()
        configured = settings.applications
        self._names = [*configured, DEFAULT] if configured else [""]
        sections = {name: self._section(name) for name in self._names}
        self.calibrations = AnswerCalibrations(
            self._records,
            setup=setup,
            renewed={name for name, each in sections.items() if each and each.calibrate},
        )
        self._refused: dict[str, Attempt] = {}  # the last attempt of each application
        self._too_old: set[str] = set()  # records whose age was logged
        self._bets: dict[str, AnswerBets] = {}  # of each application's active calibration
        self._betting = Lock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def calibrate(self, application: str | None, *, dry_run: bool = False) -> dict[str, Any]:
        """Calibrate one application from its sample, and activate the result if it is sound.

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
        """Make a stored calibration decide. Raises NotFound, Conflict, StoreError."""
        await self._store.run(self._activate, calibration_id)

    async def report(self) -> dict[str, Any]:
        """All calibrations, newest first, and the rows that each application has.

        Raises:
            StoreError: The store cannot be used.
        """
        return await self._store.run(self._report)

    async def __aenter__(self) -> Self:
        """Load what is active, and watch it in the background."""
        await self._store.run(self.keep_up)
        self._log_cost()
        self._log_unpriced()
        self._task = asyncio.create_task(self._run(), name="calibrations of same_answer")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _log_cost(self) -> None:
        """Log once what calibration from traffic costs."""
        settings = self._settings
        sections = {name: settings.same_answer_of(name or None) for name in self._names}
        if any(each is not None and each.calibrate for each in sections.values()):
            watching, rates = settings.watching, settings.shadow_rates
            shares = {rates.get(name, watching.shadow_rate) for name in self._names}
            limit = watching.shadow_calls_per_day
            log.warning(
                "same_answer is calibrated from traffic: all %d candidates answer a share of %s of "
                "the requests in the background, which adds %s calls a day "
                "(watching.shadow_rate, watching.shadow_calls_per_day)",
                len(settings.pool),
                " to ".join(f"{share:g}" for share in sorted({min(shares), max(shares)})),
                "any number of" if limit is None else f"at most {limit:,}",
            )

    def _log_unpriced(self) -> None:
        """Log which sections no calibration becomes active for by itself."""
        for place, section in self._settings.same_answers.items():
            if section.reference != VOTE and self._settings.prices is None:
                log.warning("%s.reference: %s", place, UNPRICED)

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
                self._watch(application)
                self._refresh(application)
                self._show_state(application)

    def _watch(self, application: str) -> AnswerWatch:
        """Raise the alarm of an application's calibration, if it is due."""
        record = self.calibrations.find(application)
        if record is None:
            return AnswerWatch()
        with self._betting:
            bets = self._bets_on(record)
            is_cut = True
            while is_cut:
                rows = self._rows(application, after=bets.after)
                bets.add(rows)
                is_cut = rows.is_cut
            found = bets.found
            if found.alarm_at is not None and record.id not in self.calibrations.alarmed:
                self.calibrations.alarmed |= {record.id}
                self._records.raise_alarm(record.id, found.alarm_at)
                self._refused.pop(application, None)  # rows are counted anew
                log.warning(
                    "certificates of same_answer%s are void: %d of %d sampled answers differed "
                    "since calibration %s",
                    _of(application),
                    found.differing,
                    found.sampled,
                    record.id,
                )
        self._show_state(application)
        return found

    def _show_state(self, application: str) -> None:
        record, refused = self.calibrations.find(application), self._refused.get(application)
        bets = self._bets.get(application)
        age = None if record is None else age_of(record)
        found = AnswerWatch() if record is None or bets is None else bets.found
        self._show(application, found, age=age, is_refused=refused is not None)
        is_old = record is not None and self.calibrations.stale(record) is Staleness.AGE
        if record is not None and is_old and record.id not in self._too_old:
            self._too_old.add(record.id)
            log.warning(
                "certificates of same_answer%s are void: calibration %s was made at %s, and no "
                "refresh succeeded since (calibrate again, on newer samples); the last attempt: %s",
                _of(application),
                record.id,
                record.created_at,
                "none, for there are no new samples" if refused is None else refused.refusal,
            )

    def _bets_on(self, record: AnswerCalibrationRecord) -> AnswerBets:
        bets = self._bets.get(record.application)
        if bets is None or bets.calibration_id != record.id:
            evidence, false_alarm = record.evidence, self._settings.watching.false_alarm
            terms = RoundsTerms(evidence["reference"], evidence["max_rounds"])
            bets = self._bets[record.application] = AnswerBets(
                record.id,
                self.calibrations.plan(record, record.pool, terms, record.alpha),
                alpha=record.alpha,
                level=None if false_alarm is None else level_of(false_alarm, evidence["ordinal"]),
                after=evidence["until"],
                alarm_at=evidence.get("alarm_at"),
            )
        return bets

    def _refresh(self, application: str) -> None:
        """Calibrate from traffic where that is configured and due."""
        section = self._section(application)
        if section is None or section.calibrate != "from_traffic":
            return
        record, attempt = self.calibrations.find(application), self._refused.get(application)
        if record is not None and not self._is_renewal_due(record):
            return
        wanted = samples_wanted(attempt, rows_needed(section.alpha))
        since = self._not_before(application) if attempt is None else attempt.until
        if samples_since(self._store, application=application, since=since, enough=wanted) < wanted:
            return
        expected = "" if record is None else record.id
        rows, not_before = self._rows_for_next(application)
        try:
            refusal = self._calibrated(
                application, rows, not_before, activates=True, expected_active_id=expected
            )["refusal"]
            level = logging.WARNING
        except Conflict as exc:
            log.info("same_answer%s is not calibrated here: %s", _of(application), exc)
            self.calibrations.catch_up()
            return
        except InputError as exc:
            refusal, level = str(exc), logging.INFO
        self._refused.pop(application, None)
        if refusal is not None:
            self._refused[application] = Attempt(
                made_at=now(), rows=len(rows.rows), until=rows.read_until or "", refusal=refusal
            )
            log.log(level, "same_answer%s is not calibrated: %s", _of(application), refusal)

    def _is_renewal_due(self, record: AnswerCalibrationRecord) -> bool:
        """Daily, and as soon as the samples have doubled, for few rows waste calls."""
        rows, since = record.evidence["rows"], record.activated_at or record.created_at
        if (
            self.calibrations.stale(record)
            or answer_schedule.age_of(since) >= answer_schedule.REFRESH
        ):
            return True
        return (
            samples_since(self._store, application=record.application, since=since, enough=rows)
            >= rows
        )

    def _not_before(self, application: str) -> str:
        """Requests before that differ from those of today, by an alarm since."""
        record = self.calibrations.find(application)
        if record is None:
            return ""
        return self._watch(application).alarm_at or record.evidence["not_before"]

    def _rows_for_next(self, application: str) -> tuple[AnswerRows, str]:
        """The rows of the next calibration, and the time before which none is.

        None came after the last bet: every row bets against the active calibration, if there is
        one, before it enters the next.
        """
        not_before = self._not_before(application)
        record, bets = self.calibrations.find(application), self._bets.get(application)
        if record is None or bets is None:
            return self._rows(application, since=not_before), not_before
        return self._rows(application, since=not_before, until=bets.after), not_before

    def _calibrate(self, application: str, dry_run: bool) -> dict[str, Any]:
        self._terms(application)
        rows, not_before = self._rows_for_next(application)
        return self._calibrated(
            application, rows, not_before, activates=not dry_run, keeps_refused=not dry_run
        )

    def _calibrated(
        self,
        application: str,
        rows: AnswerRows,
        not_before: str,
        *,
        activates: bool,
        keeps_refused: bool = False,
        expected_active_id: str | None = None,
    ) -> dict[str, Any]:
        """The calibration by these rows; activated if it may be and is sound.

        Raises:
            InputError: Too few rows, or answers that cannot be compared.
            Conflict: Another one than expected is active.
            StoreError: The store cannot be used.
        """
        terms = self._terms(application)
        total = len(rows.rows)
        fitting, needed = fitting_rows(total), rows_needed(terms.alpha)
        if total < needed:
            asked = "" if self._section(application) else ", which ask for `promise: same_answer`"
            raise InputError(
                f"there are {total} sampled requests at the usual terms{asked}, and alpha "
                f"{terms.alpha:g} takes {needed}, {fitting_rows(needed)} of which fit the order of "
                "calls: wait "
                "for more, or raise `watching.shadow_rate` or alpha",
                param="rows",
            )
        pool, prices = self._settings.pool, self._settings.prices
        record = AnswerCalibrationRecord(
            id=f"answers-{self._ids.new_id()}",
            created_at=now(),
            answer_setup=self.calibrations.setup,
            application=application,
            fitting=rows.classes(pool, 0, fitting),
            rows=rows.classes(pool, fitting, None),
            lost=rows.lost(fitting),
            salt=secrets.token_bytes(_SALT_BYTES),
            alpha=terms.alpha,
            prices=None if prices is None else dict(zip(pool, prices, strict=True)),
            evidence={},
        )
        if not len(record.fitting) or not len(record.rows):
            raise InputError(
                "hardly any sampled request was answered by all candidates: look for candidates "
                "that are down",
                param="rows",
            )
        wanted = RoundsTerms(terms.reference, terms.max_rounds)
        found = self.calibrations.plan(record, pool, wanted, terms.alpha).calibration
        evidence = evidence_of(self._settings, terms, found) | {
            "rows": total,
            "fitting": fitting,
            "n": found.n,
            "lost": record.lost,
            "pending": rows.pending,
            "thinned": rows.thinned,
            "not_before": not_before,
            "since": rows.rows[0].created_at,
            "until": rows.rows[-1].created_at,
        }
        refusal = refusal_of(self._settings, terms, found, record.fitting)
        evidence["refused"] = refusal
        record = replace(record, evidence=evidence)
        is_active = activates and refusal is None
        if is_active or keeps_refused:
            record = self._records.add(
                record, activate=is_active, expected_active_id=expected_active_id
            )
            self.calibrations.catch_up()
        return {
            "id": record.id,
            "active": is_active,
            "application": application or None,
            "refusal": refusal,
            "evidence": record.evidence,
        }

    def _activate(self, calibration_id: str) -> None:
        self._records.activate(calibration_id, self.calibrations.setup)
        self.calibrations.catch_up()

    def _report(self) -> dict[str, Any]:
        return {
            "applications": {name: self._progress(name) for name in self._names},
            "data": [asdict(each) for each in self._records.summaries(self.calibrations.setup)],
        }

    def _progress(self, application: str) -> dict[str, Any]:
        found = self._watch(application)
        rows = self._rows(application, since=self._not_before(application))
        active = self.calibrations.find(application)
        section = self._settings.same_answer_of(application or None)
        attempt = self._refused.get(application)
        refusal = attempt and attempt.refusal
        try:
            self._terms(application)
        except InputError as exc:
            refusal = str(exc)
        terms = section or SameAnswer()
        needed = rows_needed(terms.alpha)
        times = [datetime.fromisoformat(row.created_at) for row in rows.rows]
        expected = expected_at(times, needed, datetime.now(UTC))
        return {
            "configured": section is not None,
            "calibrate": terms.calibrate,
            "alpha": terms.alpha,
            "reference": terms.reference,
            "active": active and active.id,
            "activated_at": active and active.activated_at,
            "age_s": active and round(age_of(active).total_seconds()),
            "stale": active and self.calibrations.stale(active),
            "rows": len(rows.rows),
            "needed": needed,
            "expected_at": expected and expected.isoformat(timespec="seconds"),
            "lost": rows.lost(0),
            "pending": rows.pending,
            "refusal": refusal,
            "refused_at": attempt and attempt.made_at,
            "watch": asdict(found),
        }

    def _rows(self, application: str, **times: str) -> AnswerRows:
        return answer_rows(
            self._store,
            application=application,
            pool=self._settings.pool,
            answer_setup=self.calibrations.setup,
            key=self._key,
            deadline=timedelta(seconds=self._settings.limits.deadline_s),
            **times,
        )

    def _terms(self, application: str) -> SameAnswer:
        equality = self._settings.aggregation.equality
        if equality not in COMPARABLE:
            raise InputError(
                f"answers cannot be compared two by two under `aggregation.equality: {equality}`: "
                f"set one of {', '.join(COMPARABLE)}",
                param="aggregation.equality",
            )
        own = self._settings.applications.get(application)
        if own is not None and own.turns == "together":
            raise InputError(
                f"applications.{application}.turns: rows of `same_answer` are first turns; set "
                "`separate`",
                param="application",
            )
        return self._section(application) or SameAnswer()

    def _section(self, application: str) -> SameAnswer | None:
        return self._settings.same_answer_of(application or None)

    def _checked(self, application: str | None) -> str:
        configured = self._settings.applications
        names = [*configured, DEFAULT] if configured else []
        if application is not None and application not in names:
            raise NotFound(
                f"no application {application[:128]!r}; the applications are {names}",
                code="application_not_found",
                param="application",
            )
        return application or (DEFAULT if configured else "")


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
