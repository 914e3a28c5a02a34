"""The drift alarms of the active calibration: fed with queries and losses, and kept.

While nothing changes, and the realised risk of the calibration is within its 95 % point, any stream
ever alarms with probability at most ``watching.false_alarm``: for each calibration, and again after
each reset.

Everything here blocks; calls may come from several threads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from app.errors import StoreError
from app.reasons import Reason
from app.records import Record
from app.store import now
from app.watching import streams
from app.watching.archive import Archive
from app.watching.decisions import DecisionNote
from app.watching.metrics import WatchingMetrics
from racer_core.calibration.monitoring import ExchangeabilityMartingale, RiskEProcess, Watch
from racer_core.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Current:
    """One calibration and its watch, which changes in place."""

    record: Record
    watch: Watch
    since: str
    raised: tuple[str, ...]  # what was told
    saved: bool


class Drift:
    """One watch at a time: that of the calibration that decides.

    Args:
        archive: Where the state of each calibration's watch is kept.
        metrics: Where alarms are shown.
        false_alarm: The probability of any alarm, ever, while nothing changes.
        rng: Two uniforms for each query and stream; another one in every process.
    """

    def __init__(
        self,
        archive: Archive,
        metrics: WatchingMetrics,
        *,
        false_alarm: float,
        rng: np.random.Generator,
    ) -> None:
        self._archive = archive
        self._metrics = metrics
        self._false_alarm = false_alarm
        self._rng = rng
        self._lock = Lock()
        self._current: _Current | None = None

    def stale(self, calibration_id: str) -> tuple[str, ...]:
        """Why certificates of this calibration are void: a reason for each stream that alarmed."""
        current = self._current
        if current is None or current.record.id != calibration_id:
            return ()
        return tuple(Reason.STALE.of(name) for name in current.raised)

    def follow(self, record: Record) -> None:
        """Watch for another calibration: go on where its watch was, or begin."""
        with self._lock:
            try:
                self._save()
            except StoreError as exc:  # a calibration must be activated all the same
                log.warning("the watch of the calibration before is not saved: %s", exc)
            watch, since = self._kept(record) or self._new(record)
            self._take(record, watch, since, saved=True)

    def reset(self) -> None:
        """Begin again for the same calibration, with a new false-alarm probability."""
        with self._lock:
            if self._current is not None:
                record = self._current.record
                watch, since = self._new(record)
                self._take(record, watch, since, saved=False)
                self._save()

    def see(self, notes: Sequence[DecisionNote]) -> None:
        """Feed the label-free streams with routed queries, in order; a repeat tells nothing new."""
        with self._lock:
            if self._current is None:
                return
            record = self._current.record
            fit = [
                note
                for note in notes
                if not note.repeated and streams.fits(note, record.id, record.calibration)
            ]
            if not fit:
                return
            statistics = streams.query_statistics(record.calibration, fit)
            for name, values in statistics.items():
                stream = self._current.watch.streams[name]
                assert isinstance(stream, ExchangeabilityMartingale)
                draws = self._rng.random((len(values), 2)).tolist()
                for value, (tie, evict) in zip(values, draws, strict=True):
                    stream.update(value, tie, evict)
            self._changed(self._current)

    def bet(self, calibration_id: str, loss: float) -> None:
        """Feed the risk stream with a judged loss; the caller sees that each comes once."""
        with self._lock:
            current = self._current
            if current is None or current.record.id != calibration_id:
                return
            stream = current.watch.streams.get(streams.RISK)
            if isinstance(stream, RiskEProcess):
                stream.update(loss)
                self._changed(current)

    def save(self) -> None:
        """Keep the state, if it changed. Raises :class:`StoreError`."""
        with self._lock:
            self._save()

    def as_json(self) -> dict[str, Any] | None:
        """What ``GET /drift`` says of the alarms; None before there is a calibration."""
        with self._lock:
            if self._current is None:
                return None
            watch = self._current.watch
            return {
                "since": self._current.since,
                "false_alarm": watch.delta,
                "alarmed": watch.alarmed,
                "raised": list(watch.raised),
                "streams": {
                    name: streams.stream_as_json(stream) for name, stream in watch.streams.items()
                },
            }

    def _new(self, record: Record) -> tuple[Watch, str]:
        return streams.new_watch(record.calibration, self._false_alarm, self._rng), now()

    def _kept(self, record: Record) -> tuple[Watch, str] | None:
        try:
            found = self._archive.watch(record.id)
            if found is None:
                return None
            since, state = found
            return Watch.from_state(state), since
        except (StoreError, InputError) as exc:
            log.warning("the watch of calibration %s begins again: %s", record.id, exc)
            return None

    def _take(self, record: Record, watch: Watch, since: str, *, saved: bool) -> None:
        self._current = _Current(
            record=record, watch=watch, since=since, raised=watch.raised, saved=saved
        )
        self._show(watch.raised)

    def _changed(self, current: _Current) -> None:
        raised = current.watch.raised
        self._current = replace(current, raised=raised, saved=False)
        for name in raised:
            if name not in current.raised:
                log.warning("drift alarm: %s, calibration %s", name, current.record.id)
                self._show(raised)

    def _save(self) -> None:
        current = self._current
        if current is not None and not current.saved:
            self._archive.keep_watch(current.record.id, current.since, current.watch.to_state())
            self._current = replace(current, saved=True)

    def _show(self, raised: Sequence[str]) -> None:
        for name in streams.STREAMS:
            self._metrics.alarm.labels(name).set(name in raised)
