"""Monitoring of the gateway's decisions: decision log, feedback, shadow sample, drift alarms.

:class:`Monitor` is what the request path and the endpoints use of this package.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from typing import Any, Self

import numpy as np

from app.errors import StoreDamaged, StoreError
from app.monitoring import drift_statistics, eligibility, risk_report, shadow_sample
from app.monitoring.decision_record import DecisionRecord, are_like_rows
from app.monitoring.decision_statistics import DecisionStatistics
from app.monitoring.decision_store import DecisionStore, StoredDecision
from app.monitoring.decision_writer import DecisionWriter
from app.monitoring.drift import DriftMonitor
from app.monitoring.drift_store import DriftStore
from app.monitoring.feedback import Feedback
from app.monitoring.housekeeping import Housekeeping
from app.monitoring.metrics import MonitoringMetrics
from app.monitoring.seen_queries import SeenQueries
from app.monitoring.shadow_sample import ShadowSample
from app.monitoring.verification import Verification, calibration_of, verify
from app.routing.active_calibration import ActiveCalibration
from app.settings import GroupBy
from app.settings.monitoring import MonitoringSettings
from app.store import SharedState, Store
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class Monitor:
    """Records decisions and watches the active calibration; use it as a context.

    Args:
        settings: What is recorded and watched.
        store: Where it is stored.
        active: The active calibration.
        metrics: Where the metrics of monitoring are registered.
        key: Secret of the shadow sample, the same for all gateways; none before :meth:`sample_by`.
        group_by: The configured origin of a request's group.
        rng: Draws for the alarms; None takes fresh ones from the operating system.
    """

    def __init__(
        self,
        *,
        settings: MonitoringSettings,
        store: Store,
        active: ActiveCalibration,
        metrics: Metrics,
        key: bytes = b"",
        group_by: GroupBy,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._active = active
        self._group_by: GroupBy = group_by
        self._metrics = MonitoringMetrics(metrics.registry)
        self._decision_store = DecisionStore(store)
        self._statistics = DecisionStatistics(store)
        self._seen_queries = SeenQueries()
        self._sent_queries = SeenQueries()  # of each key, whichever calibration decides
        self._shadow_sample = ShadowSample(settings.shadow_rate, key)
        self._dropped = 0
        self._decision_writer = DecisionWriter(self._write, self._count_dropped)
        self._drift = None
        if settings.false_alarm is not None:
            self._drift = DriftMonitor(
                drift_store=DriftStore(store),
                decision_store=self._decision_store,
                metrics=self._metrics,
                false_alarm=settings.false_alarm,
                rng=np.random.default_rng() if rng is None else rng,
            )
        self._housekeeping = Housekeeping(
            settings=settings,
            active=active,
            decision_store=self._decision_store,
            statistics=self._statistics,
            metrics=self._metrics,
            flush_drift=self._flush_drift,
        )
        self.feedback = Feedback(
            decision_store=self._decision_store,
            decision_writer=self._decision_writer,
            counting=settings.feedback,
            on_verdicts=self._set_loss,
            metrics=self._metrics,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._active.add_follower(self._on_activation)
        await self._stack.enter_async_context(self._decision_writer)
        await self._stack.enter_async_context(self._housekeeping)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write the decisions that wait, and add them to the drift state."""
        await self._stack.aclose()
        await self.flush_drift()

    def sample_by(self, key: bytes) -> None:
        """Draw the shadow sample with the key of an artifact that was loaded."""
        self._shadow_sample.key = key

    # The request path -----------------------------------------------------------------------

    def stale_reasons(self, calibration_id: str) -> tuple[str, ...]:
        """Why certificates of a calibration that decides, or did, are void by drift alarms."""
        return () if self._drift is None else self._drift.stale_reasons(calibration_id)

    def is_repeat(self, fingerprint: bytes, reasons: Collection[str]) -> bool:
        """Record a query; returns whether it was seen before. Ignores queries unlike the rows."""
        return are_like_rows(reasons) and self._seen_queries.record(fingerprint)

    def was_sent(self, key: str, fingerprint: bytes, *, later: bool, records: bool) -> bool:
        """Whether an API key sent a query before. What other keys sent stays their secret.

        Args:
            key: Name of the API key.
            fingerprint: Fingerprint of the query.
            later: It is a later turn: the same words on a first turn are another query.
            records: Record the query as sent.
        """
        # Fingerprints have one length, so no two senders have the same bytes.
        sent = fingerprint + (b"+" if later else b"-") + key.encode()
        return self._sent_queries.record(sent) if records else sent in self._sent_queries

    def draw_shadow(self, decision_id: str, fingerprint: bytes, reasons: Collection[str]) -> bool:
        """Draw whether a decision is in the shadow sample, so that the whole pool is called."""
        return self._shadow_sample.draw(decision_id, fingerprint, reasons)

    def record(self, decision: DecisionRecord) -> None:
        """Record a decision, in the background."""
        self._decision_writer.add(decision)

    # The endpoints ----------------------------------------------------------------------------

    async def verify(self, decision_id: str) -> Verification:
        """Recompute a decision.

        Raises:
            NotFound: The decision or its calibration is not stored.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        return await self._store.run(self._verify, decision_id)

    async def drift_report(self) -> dict[str, Any]:
        """Alarms and risk of the active calibration. Raises NotReady, StoreError."""
        record = self._active.record()
        alarms = None if self._drift is None else await self._store.run(self._drift.as_json)
        risk = await self._store.run(
            risk_report.risk_as_json, self._statistics, record.id, record.calibration
        )
        risk["decisions"]["dropped"] = self._dropped
        risk["shadow"]["rate"] = self._settings.shadow_rate
        return {"calibration_id": record.id, "alarms": alarms, **risk}

    async def reset_drift(self) -> None:
        """Begin the alarms of the active calibration again. Raises StoreError."""
        if self._drift is not None:
            await self._store.run(self._drift.reset)

    async def flush_drift(self) -> None:
        """Add this gateway's queries to the drift state now."""
        await self._store.run(self._flush_drift)

    def on_shared_state(self, state: SharedState) -> None:
        """Learn which alarms other gateways raised."""
        if self._drift is not None:
            self._drift.on_shared_state(state)

    async def shadow_rows(self) -> bytes:
        """The judged shadow decisions as labelled rows, JSON lines. Raises NotReady, StoreError."""
        record = self._active.record()
        return await self._store.run(self._shadow_rows, record)

    # On threads ------------------------------------------------------------------------------

    def _write(self, decisions: Sequence[DecisionRecord]) -> None:
        if self._settings.decisions:
            record = self._active.record() if self._active.ready else None
            ordinary = [
                record is not None and eligibility.is_ordinary(each, record) for each in decisions
            ]
            repeated = self._decision_store.add(decisions, ordinary)
            decisions = [
                replace(each, repeated=True) if each.fingerprint in repeated else each
                for each in decisions
            ]
        if self._drift is not None:
            try:
                self._drift.add_queries(decisions)
            except StoreError as exc:  # the decisions are written; their statistics wait
                log.warning("the drift alarms wait for the store: %s", exc)

    def _count_dropped(self, count: int) -> None:
        self._dropped += count
        self._metrics.dropped.inc(count)

    def _set_loss(self, stored: StoredDecision) -> None:
        """Set the loss of a shadow decision, once every candidate has a verdict."""
        if not stored.complete or stored.judged:
            return
        decision, record = stored.decision, self._active.record()
        judged = None
        if eligibility.has_loss(decision, record):
            judged = drift_statistics.judged_query(record.calibration, decision, stored.counted)
        if self._drift is None:
            loss = None if judged is None else judged.loss
            self._decision_store.set_loss(decision, loss, once=not record.counts_repeats)
        else:
            self._drift.add_judged(decision, judged)

    def _verify(self, decision_id: str) -> Verification:
        decision = self._decision_store.get(decision_id).decision
        calibration_id = calibration_of(decision)
        active = self._active.record() if self._active.ready else None
        if active is not None and calibration_id == active.id:
            return verify(decision, active)
        return verify(decision, self._store.record(calibration_id))

    def _shadow_rows(self, record: CalibrationRecord) -> bytes:
        judged = self._statistics.judged_shadow_sample(self._store.ids(record.artifact))

        @cache
        def conditions_of(calibration_id: str) -> tuple[str, ...] | None:
            try:
                decided = (
                    record if calibration_id == record.id else self._store.record(calibration_id)
                )
            except StoreDamaged as exc:
                log.warning("%s: its decisions are no shadow rows", exc)
                return None
            first = decided.populations[0]  # drawn rows have other digests than requests
            return None if first.drawn else first.conditions

        return shadow_sample.labelled_rows(
            judged,
            record.calibration.pool,
            group_by=self._group_by,
            conditions_of=conditions_of,
            keeps_repeats=record.counts_repeats,
        )

    def _on_activation(self, record: CalibrationRecord) -> None:
        rows = record.calibration.fingerprints
        self._seen_queries = SeenQueries(rows)
        self._shadow_sample.restart(None if record.counts_repeats else rows)
        if self._drift is not None:
            self._drift.set_calibration(record)
        calibration, alpha = record.calibration, record.calibration.options.alpha
        risk = calibration.realised_risk(alpha)
        self._metrics.risk_bound.set(math.nan if risk is None else risk.upper())
        self._metrics.show_risk(risk_report.estimate([]))  # until housekeeping reads the losses

    def _flush_drift(self) -> None:
        try:
            if self._drift is not None:
                self._drift.flush()
        except StoreError as exc:
            log.warning("the drift alarms wait for the store: %s", exc)
