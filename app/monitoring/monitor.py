"""Monitoring of the gateway's decisions: decision log, feedback and drift alarms.

:class:`Monitor` is what the request path and the endpoints use of this package. What it does with
the shadow sample is in ``sampler``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Self

import numpy as np
from prometheus_client import CollectorRegistry

from app.errors import NotFound, StoreError
from app.judging.checker_calls import CheckerCode
from app.monitoring.decisions.feedback import Feedback
from app.monitoring.decisions.history import History
from app.monitoring.decisions.housekeeping import Housekeeping
from app.monitoring.decisions.record import DecisionRecord, are_like_rows
from app.monitoring.decisions.seen_queries import SeenQueries
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.store import DecisionStore, StoredDecision, marked_repeats
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.drift import populations
from app.monitoring.drift import risk as risk_report
from app.monitoring.drift import statistics as drift_statistics
from app.monitoring.drift.alarms import DriftMonitor
from app.monitoring.drift.canary import CanaryWatch
from app.monitoring.drift.populations import MonitoredCalibration
from app.monitoring.drift.store import DriftStore
from app.monitoring.metrics import MonitoringMetrics
from app.monitoring.samples.checker import Checkers
from app.monitoring.samples.record import Sample
from app.monitoring.samples.sampler import Sampler, SamplerOptions
from app.monitoring.verification import SequenceVerification, Verification, recompute
from app.routing.active_calibration import ActiveCalibration
from app.routing.reasons import Reason
from app.settings import Secrets, Settings
from app.settings.monitoring import MonitoringSettings
from app.store import SharedState, Store
from app.store.calibration_record import NO_APPLICATION, CalibrationRecord
from app.telemetry.metrics import Metrics
from app.utc import is_within

log = logging.getLogger(__name__)

AGE = "age"  # beside the names of the streams


class Monitor:
    """Records decisions and watches the active calibration; use it as a context.

    Args:
        settings: What is recorded and watched.
        store: Where it is stored.
        active: The active calibration.
        metrics: Where the metrics of monitoring are registered.
        sampling: What is sampled.
        rng: Draws for the alarms; None takes fresh ones from the operating system.
    """

    def __init__(
        self,
        *,
        settings: MonitoringSettings,
        store: Store,
        active: ActiveCalibration,
        metrics: Metrics,
        sampling: SamplerOptions,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._settings = settings
        self._expire_after_days = settings.expire_after_days
        self._store = store
        self._active = active
        self._monitored: MonitoredCalibration | None = None
        self.metrics = MonitoringMetrics(metrics.registry)
        self._decision_store = DecisionStore(store)
        self._statistics = DecisionStatistics(store)
        self.history = History(store)
        self._sampling_key = sampling.key
        self._seen_queries = SeenQueries()
        self._sent_queries = SeenQueries()  # of each key, whichever calibration decides
        self._dropped = 0
        self._decision_writer = writer = DecisionWriter(self._write, self._count_dropped)
        self.metrics.waiting.set_function(lambda: writer.waiting)
        self.sampler = Sampler(
            sampling,
            settings=settings,
            store=store,
            decision_writer=self._decision_writer,
            metrics=self.metrics,
        )
        self._drift = self._new_drift = None
        if settings.false_alarm is not None:
            self._new_drift = partial(
                DriftMonitor,
                drift_store=DriftStore(store),
                decision_store=self._decision_store,
                false_alarm=settings.false_alarm,
                rng=np.random.default_rng() if rng is None else rng,
            )
            self._drift = self._new_drift(metrics=self.metrics)
        unshown = MonitoringMetrics(CollectorRegistry())  # the gauges are the active one's
        self._canary = CanaryWatch(
            self._new_drift and partial(self._new_drift, metrics=unshown),
            statistics=self._statistics,
            key=sampling.key,
            false_alarm=settings.false_alarm,
        )
        self._housekeeping = Housekeeping(
            settings=settings,
            decision_store=self._decision_store,
            flush_drift=self._flush_drift,
            settle_drift=self._settle_drift,
            fit_budget=self.sampler.fit_budget,
            show_risk=self._show_risk,
        )
        self.feedback = Feedback(
            decision_store=self._decision_store,
            decision_writer=self._decision_writer,
            counting=settings.feedback,
            on_verdicts=self._set_loss,
            metrics=self.metrics,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._store.run(self.sampler.fit_budget)
        await self._active.add_follower(self._on_activation, of_canaries=self._on_canary)
        await self._stack.enter_async_context(self._decision_writer)
        await self._stack.enter_async_context(self._housekeeping)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write the decisions that wait, and add them to the drift state."""
        await self._stack.aclose()
        await self.flush_drift()

    def reconfigure(self, settings: MonitoringSettings, rates: Mapping[str, float]) -> None:
        """Follow other rates, limits and rules of feedback; decisions are stored as before.

        Args:
            settings: What is recorded and watched.
            rates: Sampling rates of applications with one of their own.
        """
        self._expire_after_days = settings.expire_after_days
        self.sampler.reconfigure(settings, rates)
        self._housekeeping.reconfigure(settings)
        self.feedback.reconfigure(settings.feedback)

    def checkers(self, settings: Settings, secrets: Secrets, code: CheckerCode) -> Checkers:
        """The applications' checkers, still closed, whose verdicts are stored here."""
        return Checkers(
            settings, secrets, code, record=self.feedback.add_checked, checks=self.metrics.checks
        )

    # The request path -----------------------------------------------------------------------

    def shared_reasons(
        self, calibration_id: str, application: str | None = None
    ) -> tuple[str, ...]:
        """What the state that gateways share says of a calibration; raised alarms void it.

        Args:
            calibration_id: The calibration.
            application: The application of the request; None: none is configured.
        """
        alarms = self.stale_reasons(calibration_id, application)
        return alarms if self._active.is_current else (*alarms, Reason.STORE_UNREACHABLE)

    def stale_reasons(self, calibration_id: str, application: str | None = None) -> tuple[str, ...]:
        """Why certificates of a calibration that decides, or did, are void: by alarms, or by age.

        Args:
            calibration_id: The calibration.
            application: The application of the request; None: none is configured.
        """
        drift = self._canary.drift_of(calibration_id) or self._drift
        raised = () if drift is None else drift.stale_reasons(calibration_id, application)
        return (*raised, Reason.STALE.of(AGE)) if self._is_expired(calibration_id) else raised

    def _is_expired(self, calibration_id: str) -> bool:
        """Whether a calibration that decides is older than certificates may be."""
        if self._expire_after_days is None:
            return False
        canary = self._active.canary
        deciding = [self._active.record(), *([] if canary is None else [canary.record])]
        span = timedelta(days=self._expire_after_days)
        return any(
            each.id == calibration_id and not is_within(each.created_at, span) for each in deciding
        )

    def is_repeat(
        self,
        fingerprint: bytes,
        reasons: Collection[str],
        application: str | None = None,
        population: int = 0,
        calibration_id: str | None = None,
    ) -> bool:
        """Record a query; returns whether its application saw it before.

        Ignores queries unlike the rows that are monitored.

        Args:
            fingerprint: Fingerprint of the query.
            reasons: The reasons in its certificate.
            application: Its application; None: none is configured.
            population: The place of the rows that set its threshold.
            calibration_id: The calibration that decides; None: none does.
        """
        name = application or NO_APPLICATION
        monitored = self._canary.find(calibration_id or "") or self._monitored
        if monitored is None or monitored.find(name, population) is None:
            return False
        return are_like_rows(reasons) and self._seen_queries.record(_seen_key(name, fingerprint))

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

    @property
    def writes_fail(self) -> bool:
        """Whether decisions wait because the store cannot be written."""
        return self._decision_writer.fails

    def record(self, decision: DecisionRecord) -> None:
        """Record a decision, in the background."""
        self._decision_writer.add(decision)

    async def add_sample(self, sample: Sample, wrong: Collection[str]) -> bool:
        """Store a sample once its decision is stored; returns False where that is not kept.

        Args:
            sample: The sample.
            wrong: The candidates that gave no answer to the request and would not give one, which
                are wrong without a verdict.

        Raises:
            StoreError: The store cannot be used.
        """
        if not await self.sampler.add(sample):
            return False
        if wrong:
            await self.feedback.add_failed(sample.decision_id, wrong)
        return True

    # The endpoints ----------------------------------------------------------------------------

    async def verify(self, decision_id: str) -> Verification | SequenceVerification:
        """Recompute a decision.

        Raises:
            NotFound: The decision or its calibration is not stored.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        return await self._store.run(self._verify, decision_id)

    async def drift_report(self) -> dict[str, Any]:
        """Alarms and risk of the active calibration, by application where it has any.

        Raises NotReady, StoreError.
        """
        monitored = self._active_populations()
        alarms = {} if self._drift is None else await self._store.run(self._drift.as_json)
        reports: dict[str, dict[str, Any]] = {}
        for name, population in monitored.by_application.items():
            risk = await self._store.run(
                risk_report.risk_as_json,
                self._statistics,
                population,
                self._sampling_key,
                alarms.get(name),
            )
            risk["shadow"]["rate"] = self.sampler.rate_of(name or None)
            reports[name] = {"alarms": alarms.get(name), **risk}
        record = monitored.record
        found = {"calibration_id": record.id, "shift": record.evidence.get("shift")}
        if record.is_by_application:
            return found | {
                "decisions": {"dropped": self._dropped},
                "applications": reports,
            }
        reports[NO_APPLICATION]["decisions"]["dropped"] = self._dropped
        return found | reports[NO_APPLICATION]

    async def canary_report(self) -> dict[str, Any] | None:
        """The canary beside the active calibration; None without one. Raises StoreError."""
        active = self._monitored
        return None if active is None else await self._store.run(self._canary.report, active)

    async def reset_drift(self, application: str | None = None) -> None:
        """Begin the alarms of the active calibration again.

        Args:
            application: The application whose alarms begin again; None: those of all.

        Raises:
            NotFound: The calibration has no rows of this application.
            NotReady: No calibration is active.
            StoreError: The store cannot be used.
        """
        names = [name for name in self._active_populations().by_application if name]
        if application is not None and application not in names:
            raise NotFound(
                f"no application {application[:128]!r} has rows in the active calibration; those "
                f"with rows are {names}",
                code="application_not_found",
                param="application",
            )
        if self._drift is not None:
            await self._store.run(self._drift.reset, application)

    async def flush_drift(self) -> None:
        """Add this gateway's queries to the drift state now."""
        await self._store.run(self._flush_drift)

    def on_shared_state(self, state: SharedState) -> None:
        """Learn which alarms other gateways raised, and the canary."""
        self._canary.on_shared_state(state.canary)
        if self._drift is not None and state.active_id is not None:
            self._drift.learn(state.active_id, state.alarms)

    # On threads ------------------------------------------------------------------------------

    def _write(self, decisions: Sequence[DecisionRecord]) -> None:
        if self._settings.decisions:
            ordinary = [
                (monitored := self._monitored_of(each)) is not None
                and populations.is_ordinary(each, monitored)
                for each in decisions
            ]
            with self.metrics.write_failures.count_exceptions(StoreError):
                repeated = self._decision_store.add(decisions, ordinary, self._is_watched)
            decisions = marked_repeats(decisions, repeated)
        if self._drift is not None:
            try:
                self._drift.add_queries(decisions)
                self._canary.add_queries(decisions)
            except StoreError as exc:  # the decisions are written; their statistics wait
                log.warning("the drift alarms wait for the store: %s", exc)

    def _is_watched(self, decision: DecisionRecord) -> bool:
        """Whether the alarms bet on a decision: known before any label."""
        monitored = self._monitored_of(decision)
        if decision.shadow_rate is None or monitored is None:
            return False
        return populations.population_with_loss(decision, monitored) is not None

    def _count_dropped(self, count: int) -> None:
        self._dropped += count
        self.metrics.dropped.inc(count)

    def _set_loss(self, stored: StoredDecision) -> None:
        """Set the loss of a shadow decision, once every candidate has a verdict."""
        if not stored.complete or stored.judged:
            return
        decision = stored.decision
        monitored = self._monitored_of(decision) if self._active.ready else None
        population = monitored and populations.population_with_loss(decision, monitored)
        judged, once = None, False
        if population is not None:
            judged = drift_statistics.judged_query(population.calibration, decision, stored.counted)
            once = not population.counts_repeats
        drift = self._canary.drift_of(decision.calibration_id or "") or self._drift
        if drift is None:
            self._decision_store.set_loss(
                decision,
                judged and judged.loss,
                critical_score=judged and judged.critical_score,
                once=once,
            )
        else:
            drift.add_judged(decision, judged, once=once)

    def _monitored_of(self, decision: DecisionRecord) -> MonitoredCalibration | None:
        """The calibration by whose rows a decision may count: the canary, else the active one."""
        return self._canary.find(decision.calibration_id or "") or self._monitored

    def _verify(self, decision_id: str) -> Verification | SequenceVerification:
        decision = self._decision_store.get(decision_id).decision
        active = self._active.record() if self._active.ready else None
        return recompute(self._store, decision, active)

    def _on_canary(self, record: CalibrationRecord) -> None:
        monitored = self._canary.begin(record)
        for name, each in monitored.by_application.items():
            for fingerprint in each.calibration.fingerprints:
                self._seen_queries.record(_seen_key(name, fingerprint))

    def _on_activation(self, record: CalibrationRecord) -> None:
        self._canary.end(record)  # its alarms go on as the active one's
        monitored = self._monitored = MonitoredCalibration.of(record)
        self._seen_queries = SeenQueries(
            [
                _seen_key(name, fingerprint)
                for name, each in monitored.by_application.items()
                for fingerprint in each.calibration.fingerprints
            ]
        )
        if self._drift is not None:
            self._drift.set_calibration(monitored)
        self.metrics.begin_risk(
            {name: risk_report.bound(each) for name, each in monitored.by_application.items()}
        )
        for name in monitored.by_application:  # until housekeeping reads the losses
            self.metrics.show_risk(name, risk_report.estimate([]))

    def _active_populations(self) -> MonitoredCalibration:
        """The monitored populations. Raises NotReady before a calibration is active."""
        self._active.record()
        assert self._monitored is not None  # found before the record became active
        return self._monitored

    def _show_risk(self) -> None:
        monitored = self._monitored
        if monitored is None:
            return
        for name, population in monitored.by_application.items():
            losses = self._statistics.losses(*population.decisions, key=self._sampling_key)
            self.metrics.show_risk(name, risk_report.estimate(losses))

    def _settle_drift(self, up_to: str) -> None:
        if self._drift is not None:
            self._drift.settle(up_to)
        self._canary.settle(up_to)

    def _flush_drift(self) -> None:
        try:
            if self._drift is not None:
                self._drift.flush()
            self._canary.flush()
        except StoreError as exc:
            log.warning("the drift alarms wait for the store: %s", exc)


def _seen_key(application: str, fingerprint: bytes) -> bytes:
    """A query: the same words to two applications are two. Fingerprints have one length."""
    return fingerprint + application.encode()
