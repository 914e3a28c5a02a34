"""Calibration service: reads uploads, builds records, stores them and activates them.

Everything that blocks runs off the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Self

from app.calibrations.answer_risk import textual
from app.calibrations.columns import RowColumns
from app.calibrations.evidence import shift
from app.calibrations.jobs import Job, JobQueue
from app.calibrations.parsing import ReadInstructions
from app.calibrations.progress import Progress
from app.calibrations.record_builder import RecordBuilder
from app.calibrations.row_reader import read_rows
from app.calibrations.upload import Upload
from app.errors import Conflict, InfeasibleCalibration, LargeChange, NotReady
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.scorer import RouterBackend
from app.settings import Candidate, Settings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from app.wire import bodies
from app.wire.schemas import CalibrateFields, CalibrateOptions
from racer_core.racer import TrainedRouter

log = logging.getLogger(__name__)

MAX_SIZE_CHANGE: Final = 0.25  # of the mean set size, at the same promise, without confirmation
_PROMISE: Final = ("alpha", "score", "risk_target", "delta", "r")
_HOW_TO_CONFIRM: Final = (
    "If it is meant, activate it by its id, or calibrate with confirm (--force) without max_shift"
)


class CalibrationService:
    """The only writer of calibrations in this process; use it as a context.

    Args:
        settings: The configuration.
        trained: The router.
        scorer: Scores rows.
        store: Where records are stored.
        active: The active calibration.
        calibration_sync: Activates what the store says is active.
        grouping: Finds the group of a row.
        metrics: Shows when an activation was refused.
        conditions: Finds what candidates are sent, but for the query.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        trained: TrainedRouter,
        scorer: RouterBackend,
        store: Store,
        active: ActiveCalibration,
        calibration_sync: CalibrationSync,
        grouping: Grouping,
        metrics: Metrics,
        conditions: ConditionReader,
    ) -> None:
        self._settings = settings
        self._salt = trained.artifact.salt
        self._store = store
        self._active = active
        self._calibration_sync = calibration_sync
        self._metrics = metrics
        self._record_builder = RecordBuilder(
            settings=settings,
            trained=trained,
            scorer=scorer,
            grouping=grouping,
            conditions=conditions,
            setup=calibration_sync.setup,
        )
        self._write_lock = asyncio.Lock()
        self.jobs = JobQueue()

    async def __aenter__(self) -> Self:
        """Show the newest calibration that was refused before the start."""
        for each in await self._store.run(self._store.summaries):  # newest first
            if each.artifact == self._calibration_sync.setup and "refused" in each.evidence:
                self._show_refused(each.created_at)
                break
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.jobs.close()

    def start(self, upload: Upload, given: dict[str, Any], sender: str) -> Job:
        """Queue a calibration. If the job fails, nothing is changed.

        Args:
            upload: The rows; closed when the job ends.
            given: Options of the query and the form; a document's own come with its rows.
            sender: The name of the caller's key.

        Raises:
            SchemaError: An option is not valid.
        """
        bodies.checked(CalibrateOptions, given)

        async def work(progress: Progress) -> dict[str, Any]:
            try:
                progress.raise_if_cancelled()
                return await self._calibrate(upload, given, sender, progress)
            finally:
                upload.close()

        return self.jobs.submit(work, now(), upload.size)

    async def activate(
        self, calibration_id: str, expected_active_id: str | None, *, confirm: bool = False
    ) -> CalibrationRecord:
        """Make a stored record the active one, however far it is from the one before.

        Raises:
            InfeasibleCalibration: It has no finite threshold, and ``confirm`` is false.
            NotFound: No such record.
            Conflict: Another record is active than expected, or it was made for another artifact.
        """
        async with self._write_lock:
            summary = await self._store.run(self._store.summary, calibration_id)
            if not confirm and (infeasible := _infeasible(summary.evidence)):
                raise InfeasibleCalibration(f"{infeasible}. {_HOW_TO_CONFIRM}")
            record = await self._store.run(
                self._store.activate,
                calibration_id,
                expected_active_id,
                self._calibration_sync.setup,
            )
            await self._calibration_sync.catch_up(record)
        return record

    async def _calibrate(
        self, upload: Upload, given: dict[str, Any], sender: str, progress: Progress
    ) -> dict[str, Any]:
        rows, options = await asyncio.to_thread(self._read, upload, given, progress)
        source = {"sha256": upload.sha256, "bytes": upload.size, "key": sender}
        record = await asyncio.to_thread(
            self._record_builder.record, rows, options, source, progress
        )
        activate = options.activate and not options.dry_run
        async with self._write_lock:
            record = self._with_shift(record)
            refusal = self._refusal(record, options) if options.activate else None
            if activate and refusal is not None:
                await self._propose(record, refusal, progress)
                raise refusal
            if not options.dry_run:
                progress("storing")
                progress.commit()
                await self._store.run(
                    self._store.add,
                    record,
                    activate=activate,
                    expected_active_id=options.expected_active_id,
                )
                if activate:
                    await self._calibration_sync.catch_up(record)
        return {
            "id": None if options.dry_run else record.id,
            "created_at": record.created_at,
            "active": activate,
            "refusal": None if refusal is None else str(refusal),
            "artifact": record.artifact,
            "evidence": record.evidence,
        }

    def _read(
        self, upload: Upload, given: dict[str, Any], progress: Progress
    ) -> tuple[RowColumns, CalibrateOptions]:
        options = bodies.checked(CalibrateOptions, given)

        def add_fields(fields: dict[str, Any]) -> None:
            nonlocal options
            bodies.checked(CalibrateFields, fields)
            options = bodies.checked(CalibrateOptions, {**given, **fields})

        progress("reading", 0, upload.size)
        instructions = ReadInstructions(
            name=upload.name.lower(),
            source="rows" if upload.document else upload.name,
            document=upload.document,
            pool=self._settings.pool,
            query_chars=self._settings.limits.query_chars,
            equality=textual(self._settings.aggregation.equality),
            salt=self._salt,
            text=self._settings.routing.text,
        )
        return read_rows(upload, instructions, progress, add_fields), options

    def _with_shift(self, record: CalibrationRecord) -> CalibrationRecord:
        """The record, with its shift from the active one in the evidence."""
        try:
            active = self._active.record()
        except NotReady:
            return record
        found = shift(active.id, active.evidence, record.evidence)
        return replace(record, evidence=record.evidence | {"shift": found})

    def _refusal(self, record: CalibrationRecord, options: CalibrateOptions) -> Conflict | None:
        """Why a record must not become active unless the caller confirms it."""
        new = record.evidence
        if not options.confirm and (infeasible := _infeasible(new)):
            return InfeasibleCalibration(infeasible)
        found = new.get("shift")
        if found is None:
            return None
        before = self._active.record().evidence
        if options.max_shift is not None:
            change, allowed, name = found["largest"], options.max_shift, "max_shift is"
        elif options.confirm or not before["feasible"] or not _is_same_promise(before, new):
            return None
        else:
            change, allowed = abs(found["size_change"] or 0.0), MAX_SIZE_CHANGE
            name = "without confirmation the limit is"
        if change <= allowed:
            return None
        return LargeChange(
            f"mean set size {found['mean_size']:.3g} would become {new['mean_size']:.3g}, and "
            f"lambda_hat {found['lambda_hat']} {new['lambda_hat']}{_later_turns(found)}: a change "
            f"of {change:.0%}, where {name} {allowed:.0%}"
        )

    async def _propose(
        self, record: CalibrationRecord, refusal: Conflict, progress: Progress
    ) -> None:
        """Store a record that was refused, for an operator to activate, and complete the error."""
        proposal = replace(record, evidence=record.evidence | {"refused": str(refusal)})
        progress("storing")
        progress.commit()
        await self._store.run(self._store.add, proposal, activate=False)
        self._show_refused(record.created_at)
        log.warning("calibration %s is stored and was not activated: %s", record.id, refusal)
        refusal.args = (
            f"{refusal}. The active calibration stays; {record.id} is stored. {_HOW_TO_CONFIRM}",
        )

    def _show_refused(self, created_at: str) -> None:
        self._metrics.calibration_refused.set(datetime.fromisoformat(created_at).timestamp())


def _infeasible(found: Mapping[str, Any]) -> str | None:
    """Why a calibration has no finite threshold at its own alpha; None if it has one."""
    if found["feasible"]:
        return None
    return (
        f"no finite threshold keeps alpha {found['alpha']:g}: {found['n']} rows count, it needs "
        f"{found['min_n']} and fewer abstentions; add rows or choose a larger alpha"
    )


def _is_same_promise(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two calibrations promise the same, so that their sets should be of one size."""
    return all(before[name] == after[name] for name in _PROMISE)


def _later_turns(found: Mapping[str, Any]) -> str:
    """The shift of later turns, as a part of an error message."""
    turns = found.get("later_turns")
    return "" if turns is None else f" (later turns: {turns})"


def setup_digest(artifact: str, candidates: Sequence[Candidate]) -> str:
    """Digest of an artifact and of how its candidates are served.

    Rows that were labelled under another setup do not count for this one.
    """
    served = [[each.name, each.model or each.name, each.parameters] for each in candidates]
    document = json.dumps([artifact, served], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()
