"""One object for the request path and the endpoints: remembers, samples, takes feedback, warns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np

from app.errors import StoreError
from app.monitoring import drift_statistics, risk_report
from app.monitoring.decision_record import DecisionRecord, are_answered_like_rows, are_like_rows
from app.monitoring.decision_store import DecisionStore, StoredDecision
from app.monitoring.decision_writer import DecisionWriter
from app.monitoring.drift import DriftMonitor
from app.monitoring.drift_store import DriftStore
from app.monitoring.feedback import Feedback
from app.monitoring.metrics import MonitoringMetrics
from app.monitoring.seen_queries import SeenQueries
from app.monitoring.verification import Verification, verify
from app.routing.active_calibration import ActiveCalibration
from app.routing.decision import ChosenBy
from app.settings.monitoring import MonitoringSettings
from app.store import Pulse, Store
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.calibration.shadow import is_sampled

log = logging.getLogger(__name__)

TIDY_EVERY_S: Final = 60.0


class Monitor:
    """Remembers decisions and watches the active calibration.

    Args:
        settings: What is remembered, and what is watched.
        store: Where it is kept.
        active: Whose swaps are followed.
        metrics: Where metrics are registered.
        key: Secret of the shadow sample, the same for all replicas.
        rng: Draws for the alarms; None takes fresh ones from the operating system.
    """

    def __init__(
        self,
        settings: MonitoringSettings,
        store: Store,
        active: ActiveCalibration,
        metrics: Metrics,
        *,
        key: bytes,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._active = active
        self._key = key
        self._metrics = MonitoringMetrics(metrics.registry)
        self._decision_store = DecisionStore(store)
        self._repeats = SeenQueries()
        self._drawn = SeenQueries()
        self._dropped = 0
        self._decision_writer = DecisionWriter(self._write, self._drop)
        self._drift = None
        if settings.false_alarm is not None:
            self._drift = DriftMonitor(
                DriftStore(store),
                self._decision_store,
                self._metrics,
                false_alarm=settings.false_alarm,
                rng=np.random.default_rng() if rng is None else rng,
            )
        self.feedback = Feedback(
            self._decision_store,
            self._decision_writer,
            counting=settings.feedback,
            complete=self._complete,
            metrics=self._metrics,
        )
        self._stack = AsyncExitStack()
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._active.tell(self._follow)
        await self._stack.enter_async_context(self._decision_writer)
        housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping of decisions")
        self._stack.push_async_callback(asyncio.wait, [housekeeping])
        self._stack.callback(self._closing.set)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what waits, and add it to what is watched."""
        await self._stack.aclose()
        await self._store.run(self._settle)

    # The request path -----------------------------------------------------------------------

    @property
    def stale(self) -> tuple[str, ...]:
        """Why certificates of the active calibration are void; empty while nothing alarmed."""
        if self._drift is None or not self._active.ready:
            return ()
        return self._drift.stale(self._active.record().id)

    def repeated(self, fingerprint: bytes, reasons: Collection[str]) -> bool:
        """Whether a query came before; it has now. Others than rows are like are not remembered."""
        return are_like_rows(reasons) and self._repeats.record(fingerprint)

    def sampled(self, decision_id: str, fingerprint: bytes, reasons: Collection[str]) -> bool:
        """Whether everyone is called for a decision, which is drawn here and now.

        A query is drawn once: when it is first to be answered as the rows were. A decision that
        calls nobody, or whose loss would not count, uses up no draw.
        """
        rate = self._settings.shadow_rate
        if rate == 0.0 or not are_answered_like_rows(reasons) or self._drawn.record(fingerprint):
            return False
        return is_sampled(self._key, decision_id.encode(), rate)

    def note(self, note: DecisionRecord) -> None:
        """Remember a routed decision, in the background."""
        self._decision_writer.add(note)

    # The endpoints ----------------------------------------------------------------------------

    async def verification(self, decision_id: str) -> Verification:
        """Decide again what was decided.

        Raises:
            NotFound: The decision or its calibration is not kept.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        return await self._store.run(self._verified, decision_id)

    async def drift(self) -> dict[str, Any]:
        """Alarms and risk of the active calibration. Raises NotReady, StoreError."""
        record = self._active.record()
        alarms = None if self._drift is None else await self._store.run(self._drift.as_json)
        risk = await self._store.run(
            risk_report.risk_as_json, self._decision_store, record.id, record.calibration
        )
        risk["decisions"]["dropped"] = self._dropped
        risk["shadow"]["rate"] = self._settings.shadow_rate
        return {"calibration_id": record.id, "alarms": alarms, **risk}

    async def reset(self) -> None:
        """Begin the alarms of the active calibration again. Raises StoreError."""
        if self._drift is not None:
            await self._store.run(self._drift.reset)

    async def settle(self) -> None:
        """Add what was seen here to what is watched, without waiting for its time."""
        await self._store.run(self._settle)

    def hear(self, pulse: Pulse) -> None:
        """Learn which alarms other gateways raised."""
        if self._drift is not None:
            self._drift.hear(pulse)

    async def shadow_rows(self) -> bytes:
        """The judged shadow decisions as labelled rows, JSON lines. Raises NotReady, StoreError."""
        record = self._active.record()
        return await self._store.run(self._rows, record)

    # On threads ------------------------------------------------------------------------------

    def _write(self, notes: Sequence[DecisionRecord]) -> None:
        if self._settings.decisions:
            record = self._active.record()
            before = self._decision_store.add(notes, [_ordinary(note, record) for note in notes])
            notes = [
                replace(note, repeated=True) if note.fingerprint in before else note
                for note in notes
            ]
        if self._drift is not None:
            self._see(self._drift, notes)

    def _see(self, drift: DriftMonitor, notes: Sequence[DecisionRecord]) -> None:
        try:
            drift.see(notes)
        except StoreError as exc:  # they are written, and wait there
            log.warning("the drift alarms wait for the store: %s", exc)

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._metrics.dropped.inc(count)

    def _complete(self, known: StoredDecision) -> None:
        """Judge a shadow decision, once it is known of everyone whether they were right."""
        if not known.complete or known.judged:
            return
        note, record = known.note, self._active.record()
        counts = (
            note.answered_like_rows
            and note.pool == record.calibration.pool
            and drift_statistics.fits(note, record.id, record.calibration)
        )
        loss = drift_statistics.loss_of(record.calibration, note, known.counted) if counts else None
        if self._drift is None:
            self._decision_store.judge(note, loss)
        else:
            self._drift.judge(note, loss)

    def _verified(self, decision_id: str) -> Verification:
        note = self._decision_store.known(decision_id).note
        active = self._active.record()
        mine = note.calibration_id == active.id
        return verify(note, active if mine else self._store.record(note.calibration_id))

    def _rows(self, record: CalibrationRecord) -> bytes:
        """A query is one row, as in an upload: what was judged of it first."""
        pool = record.calibration.pool
        rows: dict[str, dict[str, Any]] = {}
        for note, correct in self._decision_store.shadow(self._store.ids(record.artifact)):
            if note.answered_like_rows and note.pool == pool and note.scores and note.shadow_rate:
                row = {
                    "scores": dict(zip(pool, note.scores, strict=True)),
                    "correct": {name: correct[name] for name in pool},
                    "group": note.group,
                    "weight": 1.0 / note.shadow_rate,
                    "decision_id": note.decision_id,
                }
                asked = {} if note.query is None else {"query": note.query}
                rows.setdefault(note.fingerprint, asked | row)
        return "".join(f"{json.dumps(row)}\n" for row in rows.values()).encode()

    def _follow(self, record: CalibrationRecord) -> None:
        rows = record.calibration.fingerprints
        self._repeats, self._drawn = SeenQueries(rows), SeenQueries(rows)
        if self._drift is not None:
            self._drift.follow(record)
        calibration, alpha = record.calibration, record.calibration.options.alpha
        finite = calibration.misses(alpha) >= 0
        self._metrics.risk_bound.set(calibration.risk_q95(alpha) if finite else math.nan)
        self._show_risk([])  # until what was judged is read

    async def _keep_house(self) -> None:
        while not self._closing.is_set():
            await self._store.run(self._tidy)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIDY_EVERY_S):
                    await self._closing.wait()

    def _tidy(self) -> None:
        self._settle()
        try:
            if self._active.ready:
                self._show_risk(self._decision_store.losses(self._active.record().id))
            while not self._closing.is_set():
                keep = self._settings
                if not self._decision_store.prune(keep.keep_days, keep.keep_rows):
                    return
        except StoreError as exc:
            log.warning("old decisions are not deleted, nor is the risk shown: %s", exc)

    def _show_risk(self, losses: Sequence[float]) -> None:
        found = risk_report.estimate(losses)
        for name, value in (("lower", found.lower), ("mean", found.risk), ("upper", found.upper)):
            self._metrics.risk.labels(name).set(value)

    def _settle(self) -> None:
        try:
            if self._drift is not None:
                self._drift.settle()
        except StoreError as exc:
            log.warning("the drift alarms wait for the store: %s", exc)


def _ordinary(note: DecisionRecord, record: CalibrationRecord) -> bool:
    """Whether the set was chosen as the calibration's own evidence says."""
    options = record.calibration.options
    return (
        drift_statistics.fits(note, record.id, record.calibration)
        and note.answered_like_rows
        and note.chosen_by is ChosenBy.THRESHOLD
        and note.pool == record.calibration.pool
        and note.alpha == options.alpha
        and note.score == options.score
    )
