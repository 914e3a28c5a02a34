"""Drift detection: the alarms of the active calibration, fed with queries and losses.

While nothing changes, and the realised risk of the calibration is within its 95 % point, the
probability that any stream ever alarms is at most ``watching.false_alarm``: for each calibration,
and again after each reset.

All gateways that share a store share one drift state. Each gateway adds the queries that it routed
every few seconds, and learns from the store which streams alarmed. The order in which queries are
added is independent of their values. A gateway that is killed loses the queries that it had not
added; which ones is independent of their values too. Neither affects the false-alarm probability.

Every method but :meth:`DriftMonitor.stale_reasons` and :meth:`DriftMonitor.on_shared_state` blocks,
and may be called from several threads. An update of the drift state waits for a lock and perhaps
for the store. A change of the calibration waits for neither, so that feedback cannot delay an
activation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

import numpy as np

from app.errors import StoreError
from app.monitoring import drift_statistics, eligibility
from app.monitoring.decision_record import DecisionRecord
from app.monitoring.decision_store import DecisionStore
from app.monitoring.drift_statistics import Statistic
from app.monitoring.drift_store import DriftStore, StoredDriftState
from app.monitoring.metrics import MonitoringMetrics
from app.routing.reasons import Reason
from app.store import SharedState, now
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.martingales import UpwardMartingale
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.risk_e_process import RiskEProcess

log = logging.getLogger(__name__)

FLUSH_S: Final = 5.0  # how long a query may wait to be added
MAX_CALIBRATIONS: Final = 64  # earlier ones whose alarms are remembered for requests in flight
MAX_PENDING: Final = 10_000  # values of a stream that wait to be added; further ones are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationDrift:
    """A calibration, its alarms as this gateway knows them, and the values not yet added."""

    record: CalibrationRecord
    since: str = ""  # when its drift state began; empty while unknown
    raised: tuple[str, ...] = ()
    pending: dict[str, list[Statistic]] = field(  # by stream
        default_factory=dict[str, list[Statistic]]
    )


class DriftMonitor:
    """The drift alarms of one calibration at a time: the one that decides.

    Args:
        drift_store: Where drift states are stored.
        decision_store: Where it is stored which losses were counted.
        metrics: Where alarms are shown.
        false_alarm: The probability of any alarm, ever, while nothing changes.
        rng: Draws two uniforms for each query and stream; each process needs its own.
    """

    def __init__(
        self,
        *,
        drift_store: DriftStore,
        decision_store: DecisionStore,
        metrics: MonitoringMetrics,
        false_alarm: float,
        rng: np.random.Generator,
    ) -> None:
        self._drift_store = drift_store
        self._decision_store = decision_store
        self._metrics = metrics
        self._false_alarm = false_alarm
        self._rng = rng
        self._update_lock = Lock()  # for updates of the drift state; held during a transaction
        self._memory_lock = Lock()  # for the three attributes below; held for microseconds
        self._current: _CalibrationDrift | None = None
        self._previous: _CalibrationDrift | None = None  # requests in flight may still use it
        self._raised: dict[str, tuple[str, ...]] = {}  # the alarms of earlier calibrations
        self._flushed_at = time.monotonic()

    def stale_reasons(self, calibration_id: str) -> tuple[str, ...]:
        """Why certificates of this calibration are void: a reason for each stream that alarmed."""
        current = self._current
        if current is not None and current.record.id == calibration_id:
            raised = current.raised
        else:  # a request that was decided before the last activation
            raised = self._raised.get(calibration_id, ())
        return tuple(Reason.STALE.of(name) for name in raised)

    def set_calibration(self, record: CalibrationRecord) -> None:
        """Continue with the drift state of another calibration, or begin one.

        The values that wait for the previous calibration are added at the next flush.
        """
        alarms = None
        try:
            alarms = self._drift_store.alarms(record.id)
        except StoreError as exc:  # the next shared state contains them
            log.warning("the drift alarms of calibration %s are not known yet: %s", record.id, exc)
        with self._memory_lock:
            if self._current is not None:
                self._remember(self._current)
            self._previous, self._current = self._current, _CalibrationDrift(record=record)
            self._show_alarms(())
            for name in drift_statistics.STREAMS:  # until the state is next updated
                self._metrics.evidence.labels(name).set(0.0)
        if alarms is not None:
            self._add_alarms(record.id, *alarms)

    def _remember(self, earlier: _CalibrationDrift) -> None:
        """Keep the alarms of a calibration that stops deciding, the latest ``MAX_CALIBRATIONS``."""
        kept = {name: each for name, each in self._raised.items() if name != earlier.record.id}
        kept[earlier.record.id] = earlier.raised
        self._raised = dict(list(kept.items())[-MAX_CALIBRATIONS:])

    def on_shared_state(self, state: SharedState) -> None:
        """Learn which alarms other gateways raised."""
        if state.active_id is not None and state.watched_since is not None:
            self._add_alarms(state.active_id, state.watched_since, state.raised)

    def reset(self) -> None:
        """Begin again for the same calibration, with a new false-alarm probability."""
        with self._update_lock:
            current = self._current
            if current is None:
                return
            with self._updating(current.record) as stored:
                stored.state, stored.since = self._new_state(current.record), now()
            current.pending.clear()
            self._add_alarms(current.record.id, stored.since, ())
            self._show_evidence(current.record.id, stored.state)

    def add_queries(self, decisions: Sequence[DecisionRecord]) -> None:
        """Feed the label-free streams with routed queries, in order.

        Repeats are left out, unless the rows are a sample of traffic, with its own repeats.

        Raises:
            StoreError: The values wait for the next flush.
        """
        with self._update_lock:
            current = self._current
            if current is None:
                return
            counts_repeats = current.record.counts_repeats
            new = [
                each
                for each in decisions
                if (counts_repeats or not each.repeated) and eligibility.fits(each, current.record)
            ]
            calibration = current.record.calibration
            values_by_name = drift_statistics.query_statistics(calibration, new) if new else {}
            for name, values in values_by_name.items():
                pending = current.pending.setdefault(name, [])
                pending += values[: MAX_PENDING - len(pending)]
            if time.monotonic() - self._flushed_at >= FLUSH_S:
                self._flush_all()

    def add_judged(
        self, decision: DecisionRecord, judged: drift_statistics.JudgedQuery | None
    ) -> None:
        """Mark a shadow decision as judged, and feed it to the judged streams, once.

        Args:
            decision: The decision.
            judged: Its loss and critical score; None if it does not count.

        Raises:
            StoreError: Nothing is changed.
        """
        with self._update_lock:
            current = self._current
            if current is None or current.record.id != decision.calibration_id or judged is None:
                self._decision_store.set_loss(decision, None)
                return
            with self._updating(current.record) as stored:
                once = not current.record.counts_repeats
                if self._decision_store.set_loss_in(
                    stored.session, decision, judged.loss, once=once
                ):
                    self._update_judged(stored.state, judged)
            self._add_alarms(current.record.id, stored.since, stored.state.raised)
            self._show_evidence(current.record.id, stored.state)

    def _update_judged(self, state: DriftState, judged: drift_statistics.JudgedQuery) -> None:
        """Bet on a judged query; a state of an earlier version has no stream of critical scores."""
        risk = state.streams.get(drift_statistics.RISK)
        if isinstance(risk, RiskEProcess):
            risk.update(judged.loss)
        critical = state.streams.get(drift_statistics.CRITICAL_SCORE)
        if isinstance(critical, UpwardMartingale):
            tie, evict = self._rng.random(2).tolist()
            critical.update(judged.critical_score, tie, evict)

    def flush(self) -> None:
        """Add the values that wait to the drift state. Raises :class:`StoreError`."""
        with self._update_lock:
            self._flush_all()

    def as_json(self) -> dict[str, Any] | None:
        """The alarms in ``GET /drift``; None before there is a calibration."""
        with self._update_lock:
            if self._current is None:
                return None
            stored = self._flush(self._current)
        return {
            "since": stored.since,
            "false_alarm": stored.state.delta,
            "alarmed": stored.state.alarmed,
            "raised": list(stored.state.raised),
            "streams": {
                name: drift_statistics.stream_as_json(stream)
                for name, stream in stored.state.streams.items()
            },
        }

    def _flush_all(self) -> None:
        self._flushed_at = time.monotonic()
        for each in (self._previous, self._current):
            if each is not None and each.pending:
                self._flush(each)

    def _flush(self, drift: _CalibrationDrift) -> StoredDriftState:
        """Add this gateway's values to the state that all gateways share."""
        with self._updating(drift.record) as stored:
            for name, values in drift.pending.items():
                stream = stored.state.streams.get(name)  # None in an earlier version's state
                if stream is not None and values:
                    drift_statistics.update(stream, values, self._rng)
            # Before the commit: if its result is unknown, the values are not added again. Added
            # twice, they would not be exchangeable with the others.
            drift.pending.clear()
        self._add_alarms(drift.record.id, stored.since, stored.state.raised)
        self._show_evidence(drift.record.id, stored.state)
        return stored

    def _updating(self, record: CalibrationRecord) -> AbstractContextManager[StoredDriftState]:
        return self._drift_store.updating(record.id, lambda: self._new_state(record))

    def _new_state(self, record: CalibrationRecord) -> DriftState:
        return drift_statistics.new_drift_state(
            record.calibration,
            self._false_alarm,
            self._rng,
            counts_repeats=record.counts_repeats,
        )

    def _add_alarms(self, calibration_id: str, since: str, raised: Sequence[str]) -> None:
        """Remember alarms; within one drift state none is forgotten, in any order of messages."""
        with self._memory_lock:
            current = self._current
            if current is None or current.record.id != calibration_id:
                earlier = self._raised.get(calibration_id)
                if earlier is not None:  # requests in flight may still rest on it
                    self._raised[calibration_id] = tuple(dict.fromkeys((*earlier, *raised)))
                return
            before = current.raised if since == current.since else ()
            after = tuple(name for name in drift_statistics.STREAMS if name in {*before, *raised})
            self._current = replace(current, since=since, raised=after)
            for name in after:
                if name not in before:
                    log.warning("drift alarm: %s, calibration %s", name, calibration_id)
            if after != current.raised:
                self._show_alarms(after)

    def _show_evidence(self, calibration_id: str, state: DriftState) -> None:
        """Show how far each stream is from its alarm, if it is about the active calibration."""
        with self._memory_lock:
            current = self._current
            if current is not None and current.record.id == calibration_id:
                for name, stream in state.streams.items():
                    evidence = stream.wager.log_peak / -math.log(stream.level)
                    self._metrics.evidence.labels(name).set(evidence)

    def _show_alarms(self, raised: Sequence[str]) -> None:
        for name in drift_statistics.STREAMS:
            self._metrics.alarm.labels(name).set(name in raised)
