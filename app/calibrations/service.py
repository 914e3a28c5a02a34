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
from functools import partial
from typing import Any, Final, Self

from app.calibrations.application_upload import (
    check_application,
    check_rows,
    compared_evidence,
    merged,
    replaced_application,
    with_promise,
)
from app.calibrations.evidence import shift
from app.calibrations.jobs import Job, JobQueue, Progress
from app.calibrations.record_builder import RecordBuilder
from app.calibrations.seen_rows import SeenRows, Terms, limit_terms, terms_of
from app.calibrations.thinning import SamplingRates, StoredScores
from app.calibrations.upload import Upload
from app.calibrations.upload_reader import UploadReader
from app.errors import ConfirmNeeded, Conflict, LimitNotKept, StoreUnavailable
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
from app.wire.schemas import CalibrateOptions
from racer_core.trained_router import TrainedRouter

log = logging.getLogger(__name__)

HOW_TO_CONFIRM: Final = (
    "If it is meant, activate it by its id with confirm, or calibrate with confirm (--force) and "
    "without max_shift"
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
        setup: Digest of the artifact and of how candidates are served.
        grouping: Finds the group of a row.
        metrics: Shows when an activation was refused.
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
        store: Store,
        active: ActiveCalibration,
        calibration_sync: CalibrationSync,
        setup: str,
        grouping: Grouping,
        metrics: Metrics,
        conditions: ConditionReader,
        sampled_scores: StoredScores,
        sampling_rates: SamplingRates,
    ) -> None:
        self._store = store
        self._active = active
        self._calibration_sync = calibration_sync
        self._setup = setup
        self._metrics = metrics
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
        """Show the newest calibration that was refused before the start."""
        try:
            summaries = await self._store.run(self._store.summaries)  # newest first
        except StoreUnavailable:  # the gateway starts without its database
            return self
        for each in summaries:
            if each.artifact == self._setup and "refused" in each.evidence:
                self._show_refused(each.created_at)
                break
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
        confirm: bool = False,
        share: float | None = None,
    ) -> CalibrationRecord:
        """Make a stored record the active one, or a canary beside it.

        Args:
            calibration_id: The record.
            expected_active_id: The active one, if the caller knows it; empty: none.
            confirm: Activate it whatever the activation rule says.
            share: Of the requests that it decides as a canary; None: all, and a canary ends.

        Raises:
            ConfirmNeeded: The activation rule refuses it, and ``confirm`` is false.
            NotFound: No such record.
            Conflict: Another record is active than expected, it was made for another artifact, or
                it cannot be a canary.
        """
        async with self._write_lock:
            stored = await self._store.run(self._store.record, calibration_id)
            if stored.artifact == self._setup:  # else the store refuses it
                refusal = refusal_of(stored, self._active_record(), confirm=confirm)
                if refusal is not None:
                    raise ConfirmNeeded(f"{refusal}. {HOW_TO_CONFIRM}")
            record = await self._store.run(
                self._store.activate,
                calibration_id,
                expected_active_id,
                self._setup,
                share,
            )
            await self._calibration_sync.catch_up(record)
        return record

    async def _calibrate(
        self, upload: Upload, given: dict[str, Any], sender: str, progress: Progress
    ) -> dict[str, Any]:
        reader, builder = self._reader, self._record_builder
        rows, options, left_out = await reader.read(upload, given, progress)
        active_at_start = self._active_record()
        if options.application is not None:
            options = self._for_application(options, options.application)
            check_rows(rows, options.application or "")
        rows, sampling = await reader.thinned(rows, options)
        digest = await asyncio.to_thread(rows.digest)
        hashes = rows.query_hashes
        seen = await self._store.run(
            self._seen_rows.fixed_terms, hashes, rows.groups, others=rows.other_hashes
        )
        stated = self._fixed_terms(options, builder)
        source = {
            "sha256": upload.sha256,
            "bytes": upload.size,
            "key": sender,
            "trained_rows_left_out": left_out,
            "since": options.since,
            "sampling": sampling,
        }
        fixed = stated if seen is None else seen
        try:
            record = await asyncio.to_thread(builder.record, rows, options, source, progress, fixed)
        except LimitNotKept:
            await self._store.run(self._seen_rows.add, digest, hashes, stated)
            raise
        await self._store.run(self._seen_rows.add, digest, hashes, stated)
        return await self._store_and_activate(record, options, active_at_start, progress)

    async def _store_and_activate(
        self,
        record: CalibrationRecord,
        options: CalibrateOptions,
        active_at_start: CalibrationRecord | None,
        progress: Progress,
    ) -> dict[str, Any]:
        """Store a record, activate it if the rules allow it, and return the response.

        Args:
            record: The record.
            options: The upload's options.
            active_at_start: The active calibration when the rows were checked.
            progress: Takes how far it is.

        Raises:
            ConfirmNeeded: The activation rule refuses it; it is stored.
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
            refusal = None
            if options.activate:
                refusal = refusal_of(
                    record, before, confirm=options.confirm, max_shift=options.max_shift
                )
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
                    expected_active_id=expected_active_id,
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

    def _for_application(self, options: CalibrateOptions, name: str) -> CalibrateOptions:
        """The options of an upload that replaces the rows of one application.

        Raises:
            NotFound, InputError: Its rows cannot be replaced, or not under these options.
        """
        active = self._active_record()
        check_application(self._settings, name, active)
        return options if active is None else with_promise(options, active, name)

    def _fixed_terms(self, options: CalibrateOptions, builder: RecordBuilder) -> list[Terms]:
        """The terms that do not depend on rows that were never shown."""
        stated = [] if options.dry_run else [options]
        fixed = [builder.guarantee(each) for each in (CalibrateOptions(), *stated)]
        if (active := self._active_record()) is not None:
            fixed.append(active.calibration.options)
        found = [terms_of(each) for each in fixed]
        for each in fixed:
            found += [terms for _, _, terms in builder.application_terms(each)]
        if (limit := options.answer_risk_max) is not None:
            found.append(limit_terms(builder.guarantee(options), limit))
        return found

    def _active_record(self) -> CalibrationRecord | None:
        """The active calibration; None before there is one."""
        return self._active.record() if self._active.ready else None

    async def _propose(
        self, record: CalibrationRecord, refusal: ConfirmNeeded, progress: Progress
    ) -> None:
        """Store a record that was refused, for an operator to activate, and complete the error."""
        proposal = replace(record, evidence=record.evidence | {"refused": str(refusal)})
        progress("storing")
        progress.commit()
        await self._store.run(self._store.add, proposal, activate=False)
        self._show_refused(record.created_at)
        log.warning("calibration %s is stored and was not activated: %s", record.id, refusal)
        refusal.args = (
            f"{refusal}. The active calibration stays; {record.id} is stored. {HOW_TO_CONFIRM}",
        )

    def _show_refused(self, created_at: str) -> None:
        self._metrics.calibration_refused.set(datetime.fromisoformat(created_at).timestamp())


def _with_shift(record: CalibrationRecord, active: CalibrationRecord) -> CalibrationRecord:
    """The record, whose evidence says how far it is from the active one."""
    found, compared = compared_evidence(record, active)
    if compared is None:  # the application had no rows
        return record
    name = replaced_application(record.evidence)
    of_application = {} if name is None else {"application": name}
    changes = shift(active.id, compared.evidence, found) | of_application
    return replace(record, evidence=record.evidence | {"shift": changes})


def refusal_of(
    record: CalibrationRecord, active: CalibrationRecord | None, **terms: Any
) -> ConfirmNeeded | None:
    """Why the record may not become active; None if it may.

    Args:
        record: The record.
        active: The active one; None: a first activation.
        terms: As :func:`refusal` takes them.
    """
    if active is None:
        return refusal(record.evidence, None, **terms)
    found, compared = compared_evidence(record, active)
    return refusal(found, compared, **terms)


def setup_digest(artifact: str, candidates: Sequence[Candidate]) -> str:
    """Digest of an artifact and of how its candidates are served.

    Rows that were labelled under another setup do not count for this one.
    """
    served = [[each.name, each.model or each.name, each.parameters] for each in candidates]
    document = json.dumps([artifact, served], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


# Activation rule: the calibrations that become active only when an operator confirms them.
#
# Uploads, dry runs, scheduled refreshes and activations by id ask this rule and no other. It
# compares evidence and knows neither rows nor the store.

MAX_SIZE_CHANGE: Final = 0.25  # of the mean set size, at the same promise
_PROMISE: Final = ("alpha", "score", "risk_target", "delta", "r")
_NESTED: Final = (
    ("sample", "unit"),
    ("weights", "kind"),
    ("weights", "max_weight"),
    ("answer_limit", "answer_risk_max"),
)

Evidence = Mapping[str, Any]


def refusal(
    new: Evidence,
    active: CalibrationRecord | None,
    *,
    confirm: bool = False,
    max_shift: float | None = None,
) -> ConfirmNeeded | None:
    """Return why a calibration may not become active; None if it may.

    Args:
        new: Its evidence.
        active: The active calibration; None: a first activation, which is exempt from both limits
            of the change.
        confirm: The operator accepts an infeasible threshold and any change of the mean set size.
        max_shift: The caller's own limit of the largest change, which ``confirm`` does not waive.
    """
    if not confirm and not new["feasible"]:
        return ConfirmNeeded(
            f"no finite threshold keeps alpha {new['alpha']:g}: {new['n']} rows count, "
            f"{_what_is_missing(new)}; add rows or choose a larger alpha"
        )
    if active is None:
        return None
    before = active.evidence
    found = shift(active.id, before, new)
    if max_shift is not None and found["largest"] > max_shift:
        limit = f"a change of {found['largest']:.0%}, where max_shift is {max_shift:.0%}"
    elif not confirm and _is_size_changed(before, new):
        limit = f"a change of the mean set size by more than {MAX_SIZE_CHANGE:.0%}"
    else:
        return None
    turns = found.get("later_turns")
    return ConfirmNeeded(
        f"mean set size {before['mean_size']:.3g} would become {new['mean_size']:.3g}, and "
        f"lambda_hat {before['lambda_hat']} {new['lambda_hat']}"
        f"{'' if turns is None else f' (later turns: {turns})'}: {limit}"
    )


def _what_is_missing(new: Evidence) -> str:
    """The rows that alpha needs, or why no number of weighted rows says it."""
    weights = new["weights"]
    if new["unlabelled"]:
        return f"{new['unlabelled']} of them have no label and count as misses: label more of them"
    if weights is None:
        return f"it needs {new['min_n']} and fewer abstentions"
    return (
        f"worth {weights['effective_n']:.1f} of equal weight, too few beside a query of max_weight "
        f"{weights['max_weight']:g}, or too many abstain"
    )


def _promise(found: Evidence) -> list[Any]:
    """The terms of the promise; None for one that the evidence does not have."""
    parts: list[Any] = [found.get(part) or {} for part, _ in _NESTED]
    nested = [part.get(name) for part, (_, name) in zip(parts, _NESTED, strict=True)]
    return [*(found[name] for name in _PROMISE), *nested]


def _is_size_changed(before: Evidence, new: Evidence) -> bool:
    """Whether the mean set size changes too much between two calibrations of the same promise.

    An infeasible active calibration calls every candidate, so that its replacement by a feasible
    one needs no confirmation.
    """
    if not before["feasible"] or _promise(before) != _promise(new):
        return False
    change = abs(new["mean_size"] - before["mean_size"])
    return change > MAX_SIZE_CHANGE * before["mean_size"]
