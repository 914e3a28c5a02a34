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
from functools import partial
from typing import Any, Self

from app.calibrations.application_upload import (
    check_application,
    check_rows,
    evidence_before,
    merged,
    replaced_application,
    uploaded_evidence,
    with_promise,
)
from app.calibrations.evidence import shift
from app.calibrations.jobs import Job, JobQueue, Progress
from app.calibrations.record_builder import RecordBuilder
from app.calibrations.seen_rows import SeenRows
from app.calibrations.served_level import served_level
from app.calibrations.thinning import SamplingRates, StoredScores
from app.calibrations.upload import Upload
from app.calibrations.upload_reader import UploadReader
from app.errors import Conflict
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.reasons import Reason
from app.routing.scorer import RouterBackend
from app.routing.scoring_inputs import ScoringInputs
from app.settings import Candidate, Settings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord
from app.wire import bodies
from app.wire.schemas import CalibrateOptions
from racer_core.errors import InfeasibleAlphaError
from racer_core.trained_router import TrainedRouter

log = logging.getLogger(__name__)


class CalibrationService:
    """The only writer of calibrations in this process; use it as a context.

    Args:
        settings: The configuration.
        trained: The router.
        scorer: Scores rows.
        inputs: What decides its scores beside the artifact.
        store: Where records are stored.
        active: The active calibration.
        calibration_sync: Activates what the store says is active.
        setup: Digest of the artifact and of how candidates are served.
        grouping: Finds the group of a row.
        conditions: Finds what candidates are sent, but for the query.
        sampled_scores: Scores of sampled decisions.
        sampling_rates: Sampling rates of stored requests.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        trained: TrainedRouter,
        scorer: RouterBackend,
        inputs: ScoringInputs,
        store: Store,
        active: ActiveCalibration,
        calibration_sync: CalibrationSync,
        setup: str,
        grouping: Grouping,
        conditions: ConditionReader,
        sampled_scores: StoredScores,
        sampling_rates: SamplingRates,
    ) -> None:
        self._inputs = inputs
        self._store = store
        self._active = active
        self._calibration_sync = calibration_sync
        self._setup = setup
        self._new_reader = partial(
            UploadReader,
            trained=trained,
            store=store,
            setup=setup,
            sampled_scores=sampled_scores,
            sampling_rates=sampling_rates,
        )
        self._new_builder = partial(
            RecordBuilder,
            trained=trained,
            scorer=scorer,
            grouping=grouping,
            conditions=conditions,
            setup=setup,
        )
        self.reconfigure(settings)
        self._seen_rows = SeenRows(store)
        self._write_lock = asyncio.Lock()
        self.jobs = JobQueue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.jobs.close()

    def reconfigure(self, settings: Settings) -> None:
        """Calibrate under another configuration; jobs that have begun keep their own."""
        self._settings = settings
        self._reader = self._new_reader(settings=settings)
        self._record_builder = self._new_builder(settings=settings)

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
        self,
        calibration_id: str,
        expected_active_id: str | None,
        *,
        share: float | None = None,
    ) -> CalibrationRecord:
        """Make a stored record the active one, or a canary beside it.

        Its figures could be seen before, so its certificates are void, with
        ``chosen_by_figures``, unless it is the active one already.

        Args:
            calibration_id: The record.
            expected_active_id: The active one, if the caller knows it; empty: none.
            share: Of the requests that it decides as a canary; None: all, and a canary ends.

        Raises:
            InfeasibleAlphaError: Its rows are too few for its alpha.
            NotFound: No such record.
            Conflict: Another record is active than expected, it was made for another artifact, or
                it cannot be a canary.
        """
        async with self._write_lock:
            stored = await self._store.run(self._store.record, calibration_id)
            if stored.artifact == self._setup:  # else the store refuses it
                refuse_infeasible(uploaded_evidence(stored))
                self._refuse_unserved(stored)
            record = await self._store.run(
                self._store.activate,
                calibration_id,
                expected_active_id,
                self._setup,
                share,
            )
            await self._calibration_sync.catch_up(record)
        if record.is_chosen:
            log.warning(
                "calibration %s was chosen after its figures were shown: its certificates are void "
                "(%s) until rows are uploaded again",
                record.id,
                Reason.CHOSEN_BY_FIGURES,
            )
        return record

    async def _calibrate(
        self, upload: Upload, given: dict[str, Any], sender: str, progress: Progress
    ) -> dict[str, Any]:
        reader, builder = self._reader, self._record_builder
        await self._inputs.refuse_changed()
        rows, options, left_out = await reader.read(upload, given, progress)
        active_at_start, alpha = self._active_record(), options.alpha
        if options.application is not None:
            options = self._for_application(options, options.application)
            check_rows(rows, options.application or "")
        rows, sampling = await reader.thinned(rows, options)
        digest = await asyncio.to_thread(rows.digest)
        hashes = rows.query_hashes
        seen = await self._store.run(
            self._seen_rows.fixed_terms, hashes, rows.groups, others=rows.other_hashes
        )
        like = [active_at_start.calibration.options] if active_at_start is not None else []
        stated = builder.fixed_terms(options, like, alpha)
        source = {
            "sha256": upload.sha256,
            "bytes": upload.size,
            "key": sender,
            "trained_rows_left_out": left_out,
            "since": options.since,
            "sampling": sampling,
        }
        fixed = stated if seen is None else seen
        record = await asyncio.to_thread(
            builder.record, rows, options, source, progress, fixed, alpha
        )
        await self._inputs.refuse_changed()
        if options.activate and not options.dry_run:
            refuse_infeasible(uploaded_evidence(record, options.application))
            if options.application is None:  # else its evidence has the level that is served
                self._refuse_unserved(record)
        # Of rows that were shown before, the terms of then stay fixed beside those of now.
        known = [*stated, *(each for each in fixed if each not in stated)]
        await self._store.run(self._seen_rows.add, digest, hashes, known)
        return await self._store_and_activate(record, options, active_at_start, progress)

    async def _store_and_activate(
        self,
        record: CalibrationRecord,
        options: CalibrateOptions,
        active_at_start: CalibrationRecord | None,
        progress: Progress,
    ) -> dict[str, Any]:
        """Store a record, activate it if that is asked for, and return the response.

        Args:
            record: The record.
            options: The upload's options.
            active_at_start: The active calibration when the rows were checked.
            progress: Takes how far it is.

        Raises:
            Conflict: Another calibration became active meanwhile.
        """
        activate = options.activate and not options.dry_run
        async with self._write_lock:
            before = self._active_record()
            expected_active_id = options.expected_active_id
            if options.application is not None:
                if before is not active_at_start:
                    raise Conflict(
                        "another calibration became active meanwhile, whose other rows the upload "
                        "would keep: nothing was changed; upload it again"
                    )
                record = merged(before, record, options.application)
                # Other gateways may replace rows, too.
                expected_active_id = expected_active_id or ("" if before is None else before.id)
            if before is not None:
                record = _with_shift(record, before)
            if not options.dry_run:
                progress("storing")
                progress.commit()
                await self._store.run(
                    self._store.add,
                    record,
                    activate=activate,
                    expected_active_id=expected_active_id,
                )
                if activate:
                    await self._calibration_sync.catch_up(record)
        rows = record.calibration if options.application is None else None
        served = await asyncio.to_thread(
            served_level, self._settings, record, options.application, rows=rows
        )
        return {
            "id": None if options.dry_run else record.id,
            "created_at": record.created_at,
            "active": activate,
            "refusal": self._refusal(record, options) if options.activate else None,
            "artifact": record.artifact,
            "served": served.as_json(),
            "evidence": record.evidence,
        }

    def _for_application(self, options: CalibrateOptions, name: str) -> CalibrateOptions:
        """The options of an upload that replaces the rows of one application.

        Raises:
            NotFound, InputError: Its rows cannot be replaced, or not under these options.
        """
        active = self._active_record()
        check_application(self._settings, name, active)
        return options if active is None else with_promise(options, active, name)

    def _refusal(self, record: CalibrationRecord, options: CalibrateOptions) -> str | None:
        """Why the rows could not be activated; None: they could."""
        try:
            refuse_infeasible(uploaded_evidence(record))
            if options.application is None:
                self._refuse_unserved(record)
        except InfeasibleAlphaError as exc:
            return str(exc)
        return None

    def _refuse_unserved(self, record: CalibrationRecord) -> None:
        """Refuse rows that are too few for the level that the configuration serves.

        As :func:`refuse_infeasible`, this depends on no label and no score of theirs.

        Raises:
            InfeasibleAlphaError: They are too few.
        """
        level = served_level(self._settings, record, rows=record.calibration)
        if Reason.ALPHA_INFEASIBLE in level.certificate.reasons:
            raise InfeasibleAlphaError(
                f"no finite threshold keeps alpha {level.alpha:g}, which `{level.setting}` serves: "
                f"{level.certificate.n} rows count; add rows or configure a larger alpha"
            )

    def _active_record(self) -> CalibrationRecord | None:
        """The active calibration; None before there is one."""
        return self._active.record() if self._active.ready else None


def _with_shift(record: CalibrationRecord, active: CalibrationRecord) -> CalibrationRecord:
    """The record, whose evidence says how far it is from the active one."""
    before = evidence_before(record, active)
    if before is None:  # the application had no rows
        return record
    name = replaced_application(record.evidence)
    of_application = {} if name is None else {"application": name}
    changes = shift(active.id, before, uploaded_evidence(record)) | of_application
    return replace(record, evidence=record.evidence | {"shift": changes})


def setup_digest(artifact: str, candidates: Sequence[Candidate]) -> str:
    """Digest of an artifact and of how its candidates are served.

    Rows that were labelled under another setup do not count for this one.
    """
    served = [[each.name, each.model or each.name, each.parameters] for each in candidates]
    document = json.dumps([artifact, served], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


# Activation: an upload becomes active whatever its threshold, its sets and its risk are. A rule
# that looked at them would choose among calibrations, and those that it leaves active would have a
# larger risk than alpha on average (docs/method.md).


def refuse_infeasible(found: Mapping[str, Any]) -> None:
    """Refuse rows of which no number of misses keeps alpha.

    This depends on how many rows count, and on their weights: not on a label or a score of theirs.

    Args:
        found: The evidence of the rows.

    Raises:
        InfeasibleAlphaError: They are too few.
    """
    if found["feasible"]:
        return
    weights = found["weights"]
    if weights is None:
        missing = f"it needs {found['min_n']}"
    else:
        missing = (
            f"worth {weights['effective_n']:.1f} of equal weight, too few beside a query of "
            f"max_weight {weights['max_weight']:g}"
        )
    raise InfeasibleAlphaError(
        f"no finite threshold keeps alpha {found['alpha']:g}: {found['n']} rows count, {missing}; "
        "add rows or choose a larger alpha"
    )
