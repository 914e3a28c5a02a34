"""Canary watch: drift alarms and realised figures of the calibration with a share.

Its alarms are as those of the active calibration, which the gauges show alone: while nothing
changes, and its realised risk is within its 95 % point, the probability that it is ever ended is at
most ``watching.false_alarm``, for each application.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.drift import risk as risk_report
from app.monitoring.drift.alarms import DriftMonitor
from app.monitoring.drift.populations import MonitoredCalibration
from app.store import StoredCanary
from app.store.calibration_record import NO_APPLICATION, CalibrationRecord


class CanaryWatch:
    """Watches the latest canary, also after its end: labels of its decisions still arrive.

    Args:
        new_drift: Makes drift alarms that no gauge shows; None: there are none.
        statistics: Of the store.
        key: Secret of the draws of the shadow sample.
        false_alarm: The probability of any false alarm of an application; None: there are none.
    """

    def __init__(
        self,
        new_drift: Callable[[], DriftMonitor] | None,
        *,
        statistics: DecisionStatistics,
        key: bytes,
        false_alarm: float | None,
    ) -> None:
        self._drift = None if new_drift is None else new_drift()
        self._statistics = statistics
        self._key = key
        self._false_alarm = false_alarm
        self._stored: StoredCanary | None = None  # as all gateways share it
        self._monitored: MonitoredCalibration | None = None

    def begin(self, record: CalibrationRecord) -> MonitoredCalibration:
        """Watch a canary; blocks."""
        monitored = self._monitored = MonitoredCalibration.of(record)
        if self._drift is not None:
            self._drift.set_calibration(monitored)
        return monitored

    def end(self, record: CalibrationRecord) -> None:
        """Stop to watch it, where it is the one that became active; waiting values are flushed."""
        if self.find(record.id) is not None:
            self._monitored = None

    def find(self, calibration_id: str) -> MonitoredCalibration | None:
        """The canary, if it is the calibration of this id."""
        monitored = self._monitored
        return monitored if monitored and monitored.record.id == calibration_id else None

    def drift_of(self, calibration_id: str) -> DriftMonitor | None:
        """Its drift alarms, if it is the calibration of this id."""
        return None if self.find(calibration_id) is None else self._drift

    def on_shared_state(self, canary: StoredCanary | None) -> None:
        """Learn which canary there is, and which alarms other gateways raised."""
        self._stored = canary
        if canary is not None and (drift := self.drift_of(canary.calibration_id)) is not None:
            drift.learn(canary.calibration_id, canary.alarms)

    def add_queries(self, decisions: Sequence[DecisionRecord]) -> None:
        """Feed its alarms with the queries that it routed. Raises StoreError."""
        if self._drift is not None and self._monitored is not None:
            self._drift.add_queries(decisions)

    def flush(self) -> None:
        """Add the values that wait to its alarms. Raises StoreError."""
        if self._drift is not None:
            self._drift.flush()

    def settle(self, up_to: str) -> None:
        """As :meth:`DriftMonitor.settle`. Raises StoreError."""
        if self._drift is not None:
            self._drift.settle(up_to)

    def report(self, active: MonitoredCalibration) -> dict[str, Any] | None:
        """The canary, and what both calibrations have realised since it began; None without one.

        The figures of a canary that ended before the start of this gateway are None. Blocks, and
        raises StoreError.

        Args:
            active: The active calibration.
        """
        stored = self._stored
        if stored is None:
            return None
        watched = self.find(stored.calibration_id)
        return {
            "calibration_id": stored.calibration_id,
            "share": stored.share,
            "since": stored.since,
            "ended": stored.ended,
            "false_alarm": self._false_alarm,
            "realised": watched and self._figures(watched, stored.since),
            "active": {
                "calibration_id": active.record.id,
                "realised": self._figures(active, stored.since),
            },
        }

    def _figures(self, monitored: MonitoredCalibration, since: str) -> dict[str, Any]:
        found = figures(self._statistics, monitored, since, self._key)
        return found if monitored.record.is_by_application else found[NO_APPLICATION]


def figures(
    statistics: DecisionStatistics, monitored: MonitoredCalibration, since: str, key: bytes
) -> dict[str, dict[str, Any]]:
    """What a calibration has realised, by application; blocks, and raises StoreError.

    Args:
        statistics: Of the store.
        monitored: The calibration; decisions of others with the same rows do not count.
        since: Only decisions from then on: UTC, ISO 8601.
        key: Secret of the draws of the shadow sample.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in monitored.by_application:
        of_it = ((monitored.record.id,), name, since)
        sizes = _sizes(statistics, *of_it)
        decisions = sum(sizes.values())
        shadow = risk_report.estimate(statistics.losses(*of_it, key=key))
        selected = sum(size * count for size, count in sizes.items())
        found[name] = {
            "decisions": statistics.counts(*of_it).decisions,
            "at_own_alpha_and_pool": decisions,
            "mean_set": selected / decisions if decisions else None,
            "abstained": sizes.get(0, 0) / decisions if decisions else None,
            "judged": shadow.sampled,
            "risk": None if math.isnan(shadow.risk) else shadow.risk,
            "lower": shadow.lower,
            "upper": shadow.upper,
        }
    return found


def _sizes(
    statistics: DecisionStatistics, ids: Sequence[str], application: str, since: str
) -> Mapping[int, int]:
    """How many ordinary decisions have a set of each size."""
    without, with_verdicts = statistics.sets(ids, application, since)
    sizes: dict[int, int] = {}
    for selected, count in [
        *((each.selected, each.count) for each in without),
        *((each.selected, 1) for each in with_verdicts),
    ]:
        sizes[len(selected)] = sizes.get(len(selected), 0) + count
    return sizes
