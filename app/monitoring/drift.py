"""The drift alarms of the active calibration: fed with queries and losses, and kept.

While nothing changes, and the realised risk of the calibration is within its 95 % point, any stream
ever alarms with probability at most ``watching.false_alarm``: for each calibration, and again after
each reset. There is one watch for all gateways that share a store. Each adds what it saw every few
seconds, and learns from the others' additions what alarmed; the order in which they come to it
tells nothing of the values. What a gateway had not added when it was killed is missing, which tells
nothing of them either.

Every method but :meth:`DriftMonitor.stale` and :meth:`DriftMonitor.hear` blocks, and may be called
from several threads. A change of a watch waits for a lock and perhaps for the store. A change of
the calibration waits for neither, so that a verdict cannot delay an activation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

import numpy as np

from app.errors import StoreError
from app.monitoring import drift_statistics
from app.monitoring.decision_record import DecisionRecord
from app.monitoring.decision_store import DecisionStore
from app.monitoring.drift_store import DriftStore, StoredDriftState
from app.monitoring.metrics import MonitoringMetrics
from app.routing.reasons import Reason
from app.store import Pulse, now
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.monitoring import DriftState, ExchangeabilityMartingale, RiskEProcess

log = logging.getLogger(__name__)

SETTLE_S: Final = 5.0  # how long a query may wait to be added
MAX_WAITING: Final = 10_000  # queries; more are not watched


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationDrift:
    """The calibration that decides, and what is known of its alarms here."""

    record: CalibrationRecord
    since: str = ""  # when its watch began; empty before it is known
    raised: tuple[str, ...] = ()
    waiting: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  # by stream


class DriftMonitor:
    """One watch at a time: that of the calibration that decides.

    Args:
        watches: Where they are kept.
        decision_store: Where it is kept which losses were counted.
        metrics: Where alarms are shown.
        false_alarm: The probability of any alarm, ever, while nothing changes.
        rng: Two uniforms for each query and stream; another one in every process.
    """

    def __init__(
        self,
        watches: DriftStore,
        decision_store: DecisionStore,
        metrics: MonitoringMetrics,
        *,
        false_alarm: float,
        rng: np.random.Generator,
    ) -> None:
        self._watches = watches
        self._decision_store = decision_store
        self._metrics = metrics
        self._false_alarm = false_alarm
        self._rng = rng
        self._turn = Lock()  # to change a watch; held while the store is asked
        self._moment = Lock()  # to change what is known here; never held for longer
        self._followed: _CalibrationDrift | None = None
        self._former: _CalibrationDrift | None = None  # it may decide for a moment yet
        self._settled_at = time.monotonic()

    def stale(self, calibration_id: str) -> tuple[str, ...]:
        """Why certificates of this calibration are void: a reason for each stream that alarmed."""
        for followed in (self._followed, self._former):
            if followed is not None and followed.record.id == calibration_id:
                return tuple(Reason.STALE.of(name) for name in followed.raised)
        return ()

    def follow(self, record: CalibrationRecord) -> None:
        """Watch for another calibration: go on where its watch was, or begin.

        What waits for the watch of the one before is added when this one's is.
        """
        told = None
        try:
            told = self._watches.told(record.id)
        except StoreError as exc:  # until it is heard of with the next pulse
            log.warning("the watch of calibration %s is not known yet: %s", record.id, exc)
        with self._moment:
            self._former, self._followed = self._followed, _CalibrationDrift(record=record)
            self._show(())
            for name in drift_statistics.STREAMS:  # until its watch is next written
                self._metrics.evidence.labels(name).set(0.0)
        if told is not None:
            self._learn(record.id, *told)

    def hear(self, pulse: Pulse) -> None:
        """Learn what alarmed elsewhere."""
        if pulse.active_id is not None and pulse.watched_since is not None:
            self._learn(pulse.active_id, pulse.watched_since, pulse.raised)

    def reset(self) -> None:
        """Begin again for the same calibration, with a new false-alarm probability."""
        with self._turn:
            followed = self._followed
            if followed is None:
                return
            with self._changing(followed.record) as kept:
                kept.watch, kept.since = self._new(followed.record), now()
            followed.waiting.clear()
            self._learn(followed.record.id, kept.since, ())
            self._measure(followed.record.id, kept.watch)

    def see(self, notes: Sequence[DecisionRecord]) -> None:
        """Feed the label-free streams with routed queries, in order; a repeat tells nothing new.

        Raises:
            StoreError: They wait on.
        """
        with self._turn:
            followed = self._followed
            if followed is None:
                return
            record = followed.record
            fit = [
                note
                for note in notes
                if not note.repeated and drift_statistics.fits(note, record.id, record.calibration)
            ]
            for name, values in (
                drift_statistics.query_statistics(record.calibration, fit) if fit else {}
            ).items():
                waiting = followed.waiting.setdefault(name, [])
                waiting += values[: MAX_WAITING - len(waiting)]
            if time.monotonic() - self._settled_at >= SETTLE_S:
                self._settle_waiting()

    def judge(self, note: DecisionRecord, loss: float | None) -> None:
        """Bet on the loss of a shadow decision of which all is known: once, whoever asks.

        Args:
            note: The decision.
            loss: None where it does not count.

        Raises:
            StoreError: Nothing is changed.
        """
        with self._turn:
            followed = self._followed
            if followed is None or followed.record.id != note.calibration_id or loss is None:
                self._decision_store.judge(note, None)
                return
            with self._changing(followed.record) as kept:
                counted = self._decision_store.judge_in(kept.session, note, loss)
                stream = kept.watch.streams.get(drift_statistics.RISK)
                if counted and isinstance(stream, RiskEProcess):
                    stream.update(loss)
            self._learn(followed.record.id, kept.since, kept.watch.raised)
            self._measure(followed.record.id, kept.watch)

    def settle(self) -> None:
        """Add what waits. Raises :class:`StoreError`."""
        with self._turn:
            self._settle_waiting()

    def as_json(self) -> dict[str, Any] | None:
        """What ``GET /drift`` says of the alarms; None before there is a calibration."""
        with self._turn:
            if self._followed is None:
                return None
            kept = self._settle(self._followed)
        return {
            "since": kept.since,
            "false_alarm": kept.watch.delta,
            "alarmed": kept.watch.alarmed,
            "raised": list(kept.watch.raised),
            "streams": {
                name: drift_statistics.stream_as_json(stream)
                for name, stream in kept.watch.streams.items()
            },
        }

    def _settle_waiting(self) -> None:
        self._settled_at = time.monotonic()
        for followed in (self._former, self._followed):
            if followed is not None and followed.waiting:
                self._settle(followed)

    def _settle(self, followed: _CalibrationDrift) -> StoredDriftState:
        """Add what this gateway saw to the watch of all."""
        with self._changing(followed.record) as kept:
            for name, values in followed.waiting.items():
                stream = kept.watch.streams[name]
                assert isinstance(stream, ExchangeabilityMartingale)
                draws = self._rng.random((len(values), 2)).tolist()
                for value, (tie, evict) in zip(values, draws, strict=True):
                    stream.update(value, tie, evict)
            # If nobody can tell whether they were kept, they are not added again: seen twice, they
            # would be evidence of nothing.
            followed.waiting.clear()
        self._learn(followed.record.id, kept.since, kept.watch.raised)
        self._measure(followed.record.id, kept.watch)
        return kept

    def _changing(self, record: CalibrationRecord) -> Any:
        return self._watches.changing(record.id, lambda: self._new(record))

    def _new(self, record: CalibrationRecord) -> DriftState:
        return drift_statistics.new_drift_state(record.calibration, self._false_alarm, self._rng)

    def _learn(self, calibration_id: str, since: str, raised: Sequence[str]) -> None:
        """Of one watch nothing that alarmed is forgotten, in whatever order it is heard of."""
        with self._moment:
            followed = self._followed
            if followed is None or followed.record.id != calibration_id:
                return  # it was about one that no longer decides
            known = followed.raised if since == followed.since else ()
            told = tuple(name for name in drift_statistics.STREAMS if name in {*known, *raised})
            self._followed = replace(followed, since=since, raised=told)
            for name in told:
                if name not in known:
                    log.warning("drift alarm: %s, calibration %s", name, calibration_id)
            if told != followed.raised:
                self._show(told)

    def _measure(self, calibration_id: str, watch: DriftState) -> None:
        """Show how far each bet came, if it is about what decides."""
        with self._moment:
            followed = self._followed
            if followed is not None and followed.record.id == calibration_id:
                for name, stream in watch.streams.items():
                    way = stream.wager.log_peak / -math.log(stream.level)
                    self._metrics.evidence.labels(name).set(way)

    def _show(self, raised: Sequence[str]) -> None:
        for name in drift_statistics.STREAMS:
            self._metrics.alarm.labels(name).set(name in raised)
