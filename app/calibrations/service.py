"""Takes uploads in, builds records, keeps them and swaps them in, all off the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from app.calibrations.answer_risk import answer_risk, textual
from app.calibrations.build import BuiltCalibration, build
from app.calibrations.columns import RowColumns
from app.calibrations.evidence import curve, evidence, groups, later_evidence, shift
from app.calibrations.jobs import Job, Jobs
from app.calibrations.parsing import ReadInstructions
from app.calibrations.progress import Progress
from app.calibrations.row_reader import read_rows
from app.calibrations.upload import Upload
from app.errors import LargeChange, NotReady
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.groups import Grouping
from app.routing.reasons import Reason
from app.routing.scorer import RouterBackend
from app.settings import Candidate, Settings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord, LaterTurns
from app.wire import bodies
from app.wire.schemas import CalibrateFields, CalibrateOptions
from racer_core.calibration.calibration import CalibrationOptions
from racer_core.errors import CalibrationError
from racer_core.racer import Trained, refuse_uncounted


class CalibrationService:
    """The only writer of calibrations. Close it, or use it as a context."""

    def __init__(
        self,
        settings: Settings,
        trained: Trained,
        scoring: RouterBackend,
        store: Store,
        active: ActiveCalibration,
        calibration_sync: CalibrationSync,
        grouping: Grouping,
    ) -> None:
        self._settings = settings
        self._grouping = grouping
        self._trained = trained
        self._scoring = scoring
        self._store = store
        self._active = active
        self._calibration_sync = calibration_sync
        self._one_at_a_time = asyncio.Lock()
        self.jobs = Jobs()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.jobs.close()

    def start(self, upload: Upload, given: dict[str, Any], sender: str) -> Job:
        """Put a calibration into the queue; nothing changes on any error.

        Args:
            upload: The rows; closed when the job ends.
            given: Options of the query and the form; a document's own come with its rows.
            sender: The name of the key that sent it.

        Raises:
            SchemaError: An option is none.
        """
        bodies.checked(CalibrateOptions, given)

        async def work(progress: Progress) -> dict[str, Any]:
            try:
                progress.check()
                return await self._calibrate(upload, given, sender, progress)
            finally:
                upload.close()

        return self.jobs.submit(work, now(), upload.size)

    async def activate(
        self, calibration_id: str, expected_active_id: str | None
    ) -> CalibrationRecord:
        """Make a kept record the active one.

        Raises:
            NotFound: No such record.
            Conflict: Another record is active than expected, or it was made for another artifact.
        """
        async with self._one_at_a_time:
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
        built = await asyncio.to_thread(self._build, rows, options, source, progress)
        activate = options.activate and not options.dry_run
        async with self._one_at_a_time:
            record = self._compared(built, options, activate=activate)
            if not options.dry_run:
                progress("storing")
                progress.settle()
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

        def fields(said: dict[str, Any]) -> None:
            nonlocal options
            bodies.checked(CalibrateFields, said)
            options = bodies.checked(CalibrateOptions, {**given, **said})

        progress("reading", 0, upload.size)
        order = ReadInstructions(
            name=upload.name.lower(),
            source="rows" if upload.document else upload.name,
            document=upload.document,
            pool=self._settings.pool,
            query_chars=self._settings.limits.query_chars,
            equality=textual(self._settings.aggregation.equality),
            salt=self._trained.artifact.salt,
            text=self._settings.routing.text,
        )
        return read_rows(upload, order, progress, fields), options

    def _groups(self, rows: RowColumns) -> tuple[str | None, ...] | None:
        """The group of each row, found as it is found when serving."""
        given = rows.groups or (None,) * len(rows)
        found = tuple(map(self._grouping.of_row, rows.queries, given))
        return found if any(found) else None

    def _build(
        self,
        rows: RowColumns,
        options: CalibrateOptions,
        source: dict[str, Any],
        progress: Progress,
    ) -> CalibrationRecord:
        routing = self._settings.routing
        promised = CalibrationOptions(
            alpha=routing.alpha if options.alpha is None else options.alpha,
            delta=options.delta,
            score=options.score or routing.score,
            risk_target=options.risk_target or routing.risk_target,
            r=options.r,
            null_threshold=self._trained.artifact.null_threshold,
            smoothing_salt=secrets.token_bytes(16) if options.smoothing == "hash" else None,
        )
        first, later = rows.turns(later=False), rows.turns(later=True)
        if not len(first):
            raise CalibrationError(
                "every row is a turn after the first of a conversation: the rows of first turns "
                "come in the same upload"
            )
        if not options.allow_overlap:
            self._trained.refuse_overlap(rows.fingerprints)
        built = self._built(first, promised, progress)
        refuse_uncounted(built.calibration)
        kept = self._later(later, promised, progress)
        progress("thresholds")
        overlap = len(self._trained.overlap(rows.fingerprints))
        found = self._evidence(first, built, dry_run=options.dry_run)
        found |= {"source": source, "overlap": overlap}
        if kept is not None:
            found["later_turns"] = later_evidence(kept.calibration)
        return CalibrationRecord(
            id=f"cal-{secrets.token_hex(8)}",
            created_at=now(),
            artifact=self._calibration_sync.setup,
            calibration=built.calibration,
            evidence=found,
            void_reasons=tuple(
                reason
                for reason, applies in (
                    (Reason.TRAINING_OVERLAP, overlap > 0),
                    # Nobody can tell whether the serving router would have given these scores.
                    (Reason.ROW_SCORES_UNVERIFIED, built.own_scores),
                )
                if applies
            ),
            later=kept,
        )

    def _later(
        self, rows: RowColumns, promised: CalibrationOptions, progress: Progress
    ) -> LaterTurns | None:
        """The rows of later turns, if there are any."""
        if not len(rows):
            return None
        built = self._built(rows, promised, progress)
        return LaterTurns(calibration=built.calibration, text=self._settings.routing.text)

    def _built(
        self, rows: RowColumns, promised: CalibrationOptions, progress: Progress
    ) -> BuiltCalibration:
        progress("scoring", 0, len(rows))
        return build(
            self._trained,
            replace(rows, groups=self._groups(rows)),
            promised,
            scorer=partial(self._scoring.score_rows, progress=partial(progress, "scoring")),
            prices=self._settings.prices,
        )

    def _evidence(
        self, rows: RowColumns, built: BuiltCalibration, *, dry_run: bool
    ) -> dict[str, Any]:
        """What the record says for itself; a dry run also shows what else could be chosen."""
        calibration, stacked = built.calibration, self._trained.artifact.stacked
        found = evidence(calibration) | {
            "duplicates": rows.duplicates,
            "near_duplicates": rows.near_duplicates,
            "answer_risk": answer_risk(rows, calibration, self._settings.aggregation, stacked),
        }
        if dry_run:
            found |= {"curve": curve(calibration), "groups": groups(calibration)}
        return found

    def _compared(
        self, record: CalibrationRecord, options: CalibrateOptions, *, activate: bool
    ) -> CalibrationRecord:
        """The record with its distance from the active one in the evidence.

        Raises:
            LargeChange: It is more than the caller allows.
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
                f"{record.evidence['lambda_hat']}{_of_turns(found)}: a change of {largest:.0%}, "
                f"where max_shift is {options.max_shift:.0%}. Nothing was changed; if it is meant, "
                "send the rows without max_shift"
            )
        return replace(record, evidence=record.evidence | {"shift": found})


def _of_turns(found: Mapping[str, Any]) -> str:
    """A change of what is known of later turns, in a sentence about the others."""
    turns = found.get("later_turns")
    return "" if turns is None else f" (later turns: {turns})"


def setup_digest(artifact: str, candidates: Sequence[Candidate]) -> str:
    """The artifact and how its candidates are served: rows labelled for another are no rows."""
    served = [[each.name, each.model or each.name, each.parameters] for each in candidates]
    told = json.dumps([artifact, served], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()
