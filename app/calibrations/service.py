"""Calibration service: reads uploads, builds records, stores them and activates them.

Everything that blocks runs off the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from app.calibrations.answer_risk import textual
from app.calibrations.columns import RowColumns
from app.calibrations.evidence import shift
from app.calibrations.jobs import Job, JobQueue
from app.calibrations.parsing import ReadInstructions
from app.calibrations.progress import Progress
from app.calibrations.record_builder import RecordBuilder
from app.calibrations.row_reader import read_rows
from app.calibrations.upload import Upload
from app.errors import LargeChange, NotReady
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.groups import Grouping
from app.routing.scorer import RouterBackend
from app.settings import Candidate, Settings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord
from app.wire import bodies
from app.wire.schemas import CalibrateFields, CalibrateOptions
from racer_core.racer import TrainedRouter


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
    ) -> None:
        self._settings = settings
        self._salt = trained.artifact.salt
        self._store = store
        self._active = active
        self._calibration_sync = calibration_sync
        self._record_builder = RecordBuilder(
            settings=settings,
            trained=trained,
            scorer=scorer,
            grouping=grouping,
            setup=calibration_sync.setup,
        )
        self._write_lock = asyncio.Lock()
        self.jobs = JobQueue()

    async def __aenter__(self) -> Self:
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
        self, calibration_id: str, expected_active_id: str | None
    ) -> CalibrationRecord:
        """Make a stored record the active one.

        Raises:
            NotFound: No such record.
            Conflict: Another record is active than expected, or it was made for another artifact.
        """
        async with self._write_lock:
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
            record = self._with_shift(record, options, activate=activate)
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

    def _with_shift(
        self, record: CalibrationRecord, options: CalibrateOptions, *, activate: bool
    ) -> CalibrationRecord:
        """The record, with its shift from the active one in the evidence.

        Raises:
            LargeChange: The shift is larger than the caller allows.
        """
        try:
            active = self._active.record()
        except NotReady:
            return record
        found = shift(active.id, active.evidence, record.evidence)
        largest = found["largest"]
        if activate and options.max_shift is not None and largest > options.max_shift:
            raise LargeChange(
                f"mean set size {found['mean_size']:.3g} would become "
                f"{record.evidence['mean_size']:.3g}, and lambda_hat {found['lambda_hat']} "
                f"{record.evidence['lambda_hat']}{_later_turns(found)}: a change of {largest:.0%}, "
                f"where max_shift is {options.max_shift:.0%}. Nothing was changed; if it is meant, "
                "send the rows without max_shift"
            )
        return replace(record, evidence=record.evidence | {"shift": found})


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
