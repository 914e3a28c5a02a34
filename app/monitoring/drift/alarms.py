"""Drift detection: the alarms of the active calibration, fed with queries and losses.

Each application has drift tests of its own, which void its certificates alone. While nothing
changes in an application, and its realised risk is within its 95 % point, the probability that any
of its streams ever alarms is at most ``watching.false_alarm``: for each calibration, and again
after each reset.

All gateways that share a store share its drift states. Each gateway adds the queries that it routed
every few seconds, and learns from the store which streams alarmed. The order in which queries are
added is independent of their values. A gateway that is killed loses the queries that it had not
added; which ones is independent of their values too. Neither affects the false-alarm probability.

Judged decisions bet in the order in which they were made, however late their labels come
(:mod:`app.monitoring.drift.sequence`).

Every method but :meth:`DriftMonitor.stale_reasons` and :meth:`DriftMonitor.learn` blocks, and may
be called from several threads. An update of a drift state waits for a lock and perhaps
for the store. A change of the calibration waits for neither, so that feedback cannot delay an
activation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

import numpy as np

from app.errors import StoreError
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.drift import populations
from app.monitoring.drift import statistics as drift_statistics
from app.monitoring.drift.populations import (
    MonitoredCalibration,
    MonitoredPopulation,
)
from app.monitoring.drift.sequence import (
    DEADLINE,
    MAX_OPEN,
    WRITING,
    JudgedSequence,
    replay_count,
    settled_count,
)
from app.monitoring.drift.statistics import Statistic
from app.monitoring.drift.store import DriftStore, StoredDriftState
from app.monitoring.metrics import MonitoringMetrics
from app.routing.reasons import Reason
from app.store import Alarms, now
from app.store.calibration_record import NO_APPLICATION
from app.utc import ago
from racer_core.calibration.monitoring import DriftState

log = logging.getLogger(__name__)

FLUSH_S: Final = 5.0  # how long a query may wait to be added
MAX_CALIBRATIONS: Final = 64  # earlier ones whose alarms are remembered for requests in flight
LONG_REPLAY: Final = 200  # decisions; after a longer one the next waits for a flush
MAX_PENDING: Final = 10_000  # values of a stream that wait to be added; further ones are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationDrift:
    """A calibration, its alarms as this gateway knows them, and the values not yet added."""

    monitored: MonitoredCalibration
    alarms: Mapping[str, Alarms] = field(default_factory=dict[str, Alarms])  # by application
    raised: Mapping[str, tuple[str, ...]] = field(  # of them, where there are any
        default_factory=dict[str, tuple[str, ...]]
    )
    pending: dict[str, dict[str, list[Statistic]]] = field(  # by application and stream
        default_factory=dict[str, dict[str, list[Statistic]]]
    )
    unplayed: set[str] = field(default_factory=set[str])  # applications whose labels wait to bet

    @property
    def id(self) -> str:
        """The id of the calibration."""
        return self.monitored.record.id

    @property
    def applications(self) -> tuple[str, ...]:
        """The applications with a drift state."""
        return tuple(self.monitored.by_application)

    def bets_on(self, decision: DecisionRecord) -> bool:
        """Whether its rows made a decision, maybe under an earlier id."""
        population = self.monitored.by_application.get(decision.application)
        return population is not None and decision.calibration_id in population.calibration_ids


class DriftMonitor:
    """The drift alarms of one calibration at a time: the one that decides.

    Args:
        drift_store: Where drift states are stored.
        decision_store: Where it is stored which losses were counted.
        metrics: Where alarms are shown.
        false_alarm: The probability of any alarm of an application, ever, while nothing changes.
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
        self._update_lock = Lock()  # for updates of a drift state; held during a transaction
        self._memory_lock = Lock()  # for the three attributes below; held for microseconds
        self._current: _CalibrationDrift | None = None
        self._previous: _CalibrationDrift | None = None  # requests in flight may still use it
        # The alarms of earlier calibrations, by application.
        self._raised: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._flushed_at = time.monotonic()

    def stale_reasons(self, calibration_id: str, application: str | None = None) -> tuple[str, ...]:
        """Why certificates are void: a reason for each stream that alarmed.

        Alarms of a calibration without applications are alarms of all requests.

        Args:
            calibration_id: The calibration that decided.
            application: The application of the request.
        """
        current = self._current
        if current is not None and current.id == calibration_id:
            raised = current.raised
        else:  # a request that was decided before the last activation
            raised = self._raised.get(calibration_id, {})
        if not raised:
            return ()
        names = {*raised.get(NO_APPLICATION, ()), *raised.get(application or NO_APPLICATION, ())}
        return tuple(Reason.STALE.of(name) for name in drift_statistics.STREAMS if name in names)

    def set_calibration(self, monitored: MonitoredCalibration) -> None:
        """Continue with the drift states of another calibration, or begin them.

        The values that wait for the previous calibration are added at the next flush.
        """
        calibration_id, alarms = monitored.record.id, dict[str, Alarms]()
        try:
            alarms = self._drift_store.alarms(calibration_id)
        except StoreError as exc:  # the next shared state contains them
            log.warning(
                "the drift alarms of calibration %s are not known yet: %s", calibration_id, exc
            )
        with self._memory_lock:
            if self._current is not None:
                self._remember(self._current)
            self._previous, self._current = self._current, _CalibrationDrift(monitored=monitored)
            self._metrics.begin_drift(monitored.by_application, drift_statistics.STREAMS)
        self._add_alarms(calibration_id, alarms)

    def _remember(self, earlier: _CalibrationDrift) -> None:
        """Keep the alarms of a calibration that stops deciding, the latest ``MAX_CALIBRATIONS``."""
        kept = {name: each for name, each in self._raised.items() if name != earlier.id}
        kept[earlier.id] = earlier.raised
        self._raised = dict(list(kept.items())[-MAX_CALIBRATIONS:])

    def learn(self, calibration_id: str, alarms: Mapping[str, Alarms]) -> None:
        """Learn which alarms other gateways raised, by application."""
        self._add_alarms(calibration_id, alarms)

    def reset(self, application: str | None = None) -> None:
        """Begin again for the same calibration, with a new false-alarm probability.

        Args:
            application: The application whose alarms begin again; None: those of all.
        """
        with self._update_lock:
            current = self._current
            if current is None:
                return
            for name in current.applications if application is None else (application,):
                with self._updating(current, name) as stored:
                    stored.state, stored.since = self._new_state(current, name), now()
                    stored.sequence = JudgedSequence.begin(stored.state, stored.since)
                current.pending.pop(name, None)
                self._learn(current.id, name, stored)

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
            new: dict[str, list[DecisionRecord]] = {}
            for each in decisions:
                population = populations.population_of(each, current.monitored)
                if population is not None and (population.counts_repeats or not each.repeated):
                    new.setdefault(population.application, []).append(each)
            for application, queries in new.items():
                self._wait(current, current.monitored.by_application[application], queries)
            if time.monotonic() - self._flushed_at >= FLUSH_S:
                self._flush_all()

    def _wait(
        self,
        drift: _CalibrationDrift,
        population: MonitoredPopulation,
        queries: Sequence[DecisionRecord],
    ) -> None:
        """Let the statistics of queries wait for the next flush."""
        pending = drift.pending.setdefault(population.application, {})
        found = drift_statistics.query_statistics(population.calibration, queries)
        for name, values in found.items():
            waiting = pending.setdefault(name, [])
            waiting += values[: MAX_PENDING - len(waiting)]

    def add_judged(
        self,
        decision: DecisionRecord,
        judged: drift_statistics.JudgedQuery | None,
        *,
        once: bool,
    ) -> None:
        """Mark a shadow decision as judged, and let the judged streams bet on it in its place.

        Args:
            decision: The decision.
            judged: Its loss and critical score; None if they are not known for this calibration.
            once: A query has one loss, however often it is judged.

        Raises:
            StoreError: Nothing is changed.
        """
        with self._update_lock:
            current, application = self._current, decision.application
            if current is None or judged is None or not current.bets_on(decision):
                self._decision_store.set_loss(decision, None)
                return
            with self._updating(current, application) as stored:
                self._decision_store.set_loss_in(
                    stored.session,
                    decision,
                    judged.loss,
                    critical_score=judged.critical_score,
                    once=once,
                )
                if (
                    application not in current.unplayed
                    and self._replay(current, application, stored) > LONG_REPLAY
                ):
                    current.unplayed.add(application)
            self._learn(current.id, application, stored)

    def settle(self, up_to: str) -> None:
        """Let no decision up to a time wait for its label: it is about to be deleted.

        Args:
            up_to: UTC, ISO 8601.

        Raises:
            StoreError: The decisions must not be deleted.
        """
        with self._update_lock:
            current = self._current
            if current is None:
                return
            for name in current.applications:
                with self._updating(current, name) as stored:
                    self._replay(current, name, stored, up_to)
                self._learn(current.id, name, stored)

    def _replay(
        self,
        drift: _CalibrationDrift,
        application: str,
        stored: StoredDriftState,
        up_to: str = "",
    ) -> int:
        """Bet again on the decisions that may still get labels; returns on how many.

        Args:
            drift: The calibration.
            application: The application.
            stored: Its drift state.
            up_to: No decision up to this time may get one: UTC, ISO 8601.
        """
        if not stored.sequence.state.streams:
            return 0
        of_it = drift.monitored.by_application[application].calibration_ids, application
        read = self._decision_store
        stored.sequence = stored.sequence.in_the_past()
        too_late = max(
            up_to,
            ago(DEADLINE),
            read.oldest_of_newest_in(stored.session, *of_it, MAX_OPEN),
        )
        written = ago(WRITING)
        while True:
            after = stored.sequence.after
            page = read.watched_in(stored.session, *of_it, after, MAX_OPEN)
            settled = settled_count(page, too_late, max(written, too_late))
            if settled:
                stored.sequence = stored.sequence.settled(page[:settled])
            if not settled or len(page) < MAX_OPEN:
                break
        waiting = page[settled:]
        replayed = waiting[: replay_count(waiting)]
        streams = dict(stored.state.streams)
        for name, stream in stored.sequence.settled(replayed).state.streams.items():
            # An alarm stays, whatever decisions are deleted meanwhile.
            before = streams[name].wager.log_peak
            stream.wager.log_peak = max(stream.wager.log_peak, before)
            streams[name] = stream
        stored.state = replace(stored.state, streams=streams)
        return len(replayed)

    def flush(self) -> None:
        """Add the values that wait to the drift states. Raises :class:`StoreError`."""
        with self._update_lock:
            self._flush_all()

    def as_json(self) -> dict[str, dict[str, Any]]:
        """The alarms in ``GET /drift`` by application; empty before there is a calibration."""
        with self._update_lock:
            current = self._current
            if current is None:
                return {}
            return {name: _as_json(self._flush(current, name)) for name in current.applications}

    def _flush_all(self) -> None:
        self._flushed_at = time.monotonic()
        for each in (self._previous, self._current):
            if each is not None:
                for application in {*each.pending, *each.unplayed}:
                    self._flush(each, application)

    def _flush(self, drift: _CalibrationDrift, application: str) -> StoredDriftState:
        """Add this gateway's values to the state that all gateways share."""
        with self._updating(drift, application) as stored:
            for name, values in drift.pending.get(application, {}).items():
                stream = stored.state.streams.get(name)
                if stream is not None and values:
                    drift_statistics.update(stream, values, self._rng)
            # Before the commit: if its result is unknown, the values are not added again. Added
            # twice, they would not be exchangeable with the others.
            drift.pending.pop(application, None)
            if application in drift.unplayed:
                drift.unplayed.discard(application)
                self._replay(drift, application, stored)
        self._learn(drift.id, application, stored)
        return stored

    def _updating(
        self, drift: _CalibrationDrift, application: str
    ) -> AbstractContextManager[StoredDriftState]:
        return self._drift_store.updating(
            drift.id, application, lambda: self._new_state(drift, application)
        )

    def _new_state(self, drift: _CalibrationDrift, application: str) -> DriftState:
        population = drift.monitored.by_application[application]
        return drift_statistics.new_drift_state(
            population.calibration,
            self._false_alarm,
            self._rng,
            counts_repeats=population.counts_repeats,
            together=population.together,
        )

    def _learn(self, calibration_id: str, application: str, stored: StoredDriftState) -> None:
        """Remember the alarms of a stored state, and show how far its streams are from others."""
        raised = tuple(stored.state.raised)
        self._add_alarms(calibration_id, {application: Alarms(since=stored.since, raised=raised)})
        with self._memory_lock:
            if self._current is not None and self._current.id == calibration_id:
                for name, stream in stored.state.streams.items():
                    evidence = stream.wager.log_peak / -math.log(stream.level)
                    self._metrics.evidence.labels(application, name).set(evidence)

    def _add_alarms(self, calibration_id: str, alarms: Mapping[str, Alarms]) -> None:
        """Remember alarms; within one drift state none is forgotten, in any order of messages."""
        with self._memory_lock:
            current = self._current
            if current is None or current.id != calibration_id:
                earlier = self._raised.get(calibration_id)
                if earlier is not None:  # requests in flight may still rest on it
                    self._raised[calibration_id] = dict(earlier) | {
                        name: tuple(dict.fromkeys((*earlier.get(name, ()), *each.raised)))
                        for name, each in alarms.items()
                    }
                return
            after = dict(current.alarms)
            for application, found in alarms.items():
                before = current.alarms.get(application)
                known = before.raised if before and before.since == found.since else ()
                raised = tuple(
                    name for name in drift_statistics.STREAMS if name in {*known, *found.raised}
                )
                after[application] = replace(found, raised=raised)
                self._show_alarms(calibration_id, application, raised, known)
            all_raised = {name: each.raised for name, each in after.items() if each.raised}
            self._current = replace(current, alarms=after, raised=all_raised)

    def _show_alarms(
        self, calibration_id: str, application: str, raised: Sequence[str], known: Sequence[str]
    ) -> None:
        """Show the alarms of an application, and log those that were not known."""
        of_it = f", application {application}" if application else ""
        for name in drift_statistics.STREAMS:
            if name in raised and name not in known:
                log.warning("drift alarm: %s, calibration %s%s", name, calibration_id, of_it)
            self._metrics.alarm.labels(application, name).set(name in raised)


def _as_json(stored: StoredDriftState) -> dict[str, Any]:
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
