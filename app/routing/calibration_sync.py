"""Calibration sync: an activation on another gateway becomes active in this one's memory.

An activation writes the store first. The memory of every gateway that shares the store follows: at
once where the store can notify, within ``notifications.POLL_S`` otherwise. So a gateway always has
the whole old calibration or the whole new one, and in the end the store's, wherever an activation
is interrupted. While the store cannot be read, the last calibration stays active; a gateway that
starts meanwhile reads it from the copy on its machine. A store that is read and takes no writes,
such as a standby, is followed; activations wait for its promotion.

A canary follows the store likewise. The first gateway that reads one of its drift alarms ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from prometheus_client import Gauge

from app.concurrency.tasks import end
from app.errors import StoreDamaged, StoreError, StoreFileDamaged, StoreUnavailable
from app.routing.active_calibration import ActiveCalibration, Canary
from app.routing.calibration_copy import CalibrationCopy
from app.routing.reasons import Reason
from app.store import KeyPurpose, SharedState, Store, StoredCanary
from app.store.calibration_record import CalibrationRecord
from app.store.notifications import NotificationListener
from app.telemetry.metrics import Metrics
from racer_core.records.conversation import RoutedText

log = logging.getLogger(__name__)

FEW_ROWS: Final = 200  # that count; below, one calibration says little about its own risk
STORE_TIMEOUT_S: Final = 2.0  # after which a store that does not answer counts as lost


class CalibrationSync:
    """Replaces the active calibration; nothing else does.

    Args:
        store: The store to follow.
        active: The calibration that requests decide with.
        setup: As :meth:`follow` takes it, where an artifact is loaded already.
        text: The configured text that the router reads of later turns.
        grouping: ``Settings.grouping``, by which requests are grouped.
        metrics: Registers the gauge ``racer_store_up``.
        copy: The copy on this machine; None: there is none.
    """

    def __init__(
        self,
        store: Store,
        active: ActiveCalibration,
        *,
        setup: str | None = None,
        text: RoutedText,
        grouping: str,
        metrics: Metrics,
        copy: CalibrationCopy | None = None,
    ) -> None:
        # Digest of the artifact and of how candidates are served: records with another digest are
        # ignored. None: no artifact is loaded, and nothing is active.
        self.setup = setup
        self._store = store
        self._active = active
        self._text = text
        self._grouping = grouping
        self._copy = copy
        self._first: Callable[[], None] | None = None
        self._is_first_late = False  # it failed, and will be tried again
        self._one_at_a_time = asyncio.Lock()
        self._damaged = set[str]()  # ids of records that are not tried again
        self._listeners: list[Callable[[SharedState], None]] = []
        self._listener = NotificationListener(store.url)
        self._task: asyncio.Task[None] | None = None
        self._answered_at = time.monotonic()
        self.lost = False  # whether the store cannot be read now
        self.takes_writes = True  # whether it did when it was read last
        # Registered here: a gateway without a router has no store, and so no such metric.
        self._up = Gauge(
            "racer_store_up",
            "0 while the store cannot be read, or takes no writes: what was read last decides",
            registry=metrics.registry,
        )
        self._up.set(1)

    async def __aenter__(self) -> Self:
        """Begin to follow the store."""
        if self.setup is not None:
            await self.follow(self.setup)
        await self._listener.__aenter__()
        self._task = asyncio.create_task(self._follow(), name="following the store")
        return self

    async def __aexit__(self, *error: object) -> None:
        await end(self._task)
        if self.lost:
            self._store.cut()
        await self._listener.__aexit__(None, None, None)

    async def follow(self, setup: str, first: Callable[[], None] | None = None) -> None:
        """Load the active calibration of an artifact that was loaded; later ones follow.

        While the store cannot be reached or is damaged, that of the copy is loaded. Where nothing
        can be loaded, no calibration is active.

        Args:
            setup: Digest of the artifact and of how candidates are served.
            first: Called on a thread before the store is read, again after a StoreError.
        """
        self.setup, self._first = setup, first
        try:
            await self.catch_up()
        except (StoreUnavailable, StoreFileDamaged) as exc:
            self._lost(True)
            if not await self._load_copy(setup):
                self._active.refuse(f"{exc}; no copy of a calibration is on this machine")
        except StoreError as exc:
            self._active.refuse(
                f"{exc}: restore a backup into an empty store, or upload labelled rows to POST "
                "/calibrate"
            )

    def subscribe(self, listener: Callable[[SharedState], None]) -> None:
        """Call ``listener`` with each shared state read from the store; it must not block."""
        self._listeners.append(listener)

    async def catch_up(self, made: CalibrationRecord | None = None) -> None:
        """Make the store's active calibration the one that decides.

        Args:
            made: A record that is in memory already and need not be read.

        Raises:
            StoreError: The store cannot be read, or the record in it is damaged.
        """
        async with self._one_at_a_time:
            setup = self.setup
            await self._call_first()
            state = await self._store.run_short(self._store.shared_state, setup or "")
            if self.takes_writes and not state.takes_writes:
                log.warning(
                    "the store takes no writes: decisions wait until its database is the primary"
                )
            self.takes_writes = state.takes_writes
            self._lost(False)
            if setup is None:
                return
            await self._activate(setup, state, made)
            await self._follow_canary(setup, state, made)
            for listener in self._listeners:
                listener(state)

    async def _call_first(self) -> None:
        if self._first is None:
            return
        try:
            await self._store.run_short(self._first)
        except StoreError as exc:
            if not self._is_first_late:
                log.warning("what the artifact carries is taken over later: %s", exc)
            self._is_first_late = True
        else:
            self._first = None

    async def _load_copy(self, setup: str) -> bool:
        """Make the copy's calibration the one that decides; returns False where there is none."""
        found = None if self._copy is None else await self._copy.read(setup)
        if found is None:
            return False
        record, state = found
        await self._activate(setup, state, record)
        for listener in self._listeners:
            listener(state)
        log.warning(
            "the store cannot be reached: calibration %s is active from the copy on this machine",
            record.id,
        )
        return True

    async def _activate(
        self, setup: str, state: SharedState, made: CalibrationRecord | None
    ) -> None:
        wanted = state.active_id
        if wanted is None:
            await self._explain(setup)
        elif wanted not in self._damaged and (wanted, state.is_chosen) != self._current():
            await self._active.swap(await self._usable(wanted, made))
            self._damaged.clear()
            record = self._active.record()
            _log_active(record)
            self._warn(record)

    async def _follow_canary(
        self, setup: str, state: SharedState, made: CalibrationRecord | None
    ) -> None:
        """Let the store's canary decide its share, or end it where it has an alarm."""
        stored = state.canary
        if stored is not None and stored.ended is None and stored.alarm is not None:
            if state.takes_writes:  # else it ends here alone, and in the store once that does
                await self._end(setup, stored)
            stored = None
        if (
            stored is None
            or stored.ended is not None
            or stored.calibration_id in {state.active_id, *self._damaged}
        ):
            if self._active.canary is not None:
                await self._active.set_canary(None)
            return
        before = self._active.canary
        if before is not None and before.record.id == stored.calibration_id:
            if before.share != stored.share:
                await self._active.set_canary(replace(before, share=stored.share))
            return
        record = await self._usable(stored.calibration_id, made)
        key = await self._store.run_short(self._store.key, KeyPurpose.SAMPLES)
        await self._active.set_canary(Canary(record=record, share=stored.share, key=key))
        log.warning("calibration %s decides %g of the requests", record.id, stored.share)
        self._warn(record)

    async def _end(self, setup: str, canary: StoredCanary) -> None:
        """End a canary by its alarm; only the first gateway logs it."""
        if await self._store.run_short(self._store.end_canary, setup, canary):
            log.error(
                "calibration %s decides no requests any more, for it has a drift alarm (%s): the "
                "active calibration decides all",
                canary.calibration_id,
                canary.alarm,
            )

    async def _usable(self, wanted: str, made: CalibrationRecord | None) -> CalibrationRecord:
        """A record, with the reasons for which all of its certificates are void here."""
        if made is None or made.id != wanted:
            made = await self._read(wanted)
        reasons = made.void_reasons
        if not made.is_grouped_by(self._grouping):
            reasons = (*reasons, Reason.GROUPING_CHANGED)
        return made if reasons == made.void_reasons else replace(made, void_reasons=reasons)

    async def _read(self, calibration_id: str) -> CalibrationRecord:
        try:
            return await self._store.run_short(self._store.record, calibration_id)
        except StoreDamaged as exc:
            self._damaged.add(calibration_id)
            log.error("%s; the last calibration stays active", exc)
            raise

    def _current(self) -> tuple[str, bool] | None:
        """The calibration that decides, and whether it was chosen by its figures."""
        if not self._active.ready:
            return None
        record = self._active.record()
        return record.id, record.is_chosen

    async def _explain(self, setup: str) -> None:
        """Set the reason where the only calibration belongs to another artifact."""
        if self._active.ready:
            return
        other = await self._store.run_short(self._store.others, setup)
        if other is not None:
            self._active.refuse(
                f"calibration {other} was made with another artifact, or with candidates that were "
                "served otherwise: upload its rows again to POST /calibrate"
            )

    def _warn(self, record: CalibrationRecord) -> None:
        """Log which part of a record cannot decide, or promises nothing."""
        if Reason.GROUPING_CHANGED in record.void_reasons:
            log.warning(
                "calibration %s was grouped by %s, and requests are grouped by %s now: its "
                "certificates are void until its rows are uploaded again",
                record.id,
                record.grouped_by,
                self._grouping,
            )
        texts = {each.text for each in record.populations if each.later and each.drawn is None}
        if texts - {self._text}:
            log.warning(
                "calibration %s read later turns by routing.text %s, which is %s now: they are "
                "uncalibrated until its rows are uploaded again",
                record.id,
                min(texts),
                self._text,
            )

    async def _follow(self) -> None:
        while True:
            await self._listener.wait()
            asking = asyncio.create_task(self.catch_up(), name="catching up with the store")
            try:
                while not (await asyncio.wait([asking], timeout=STORE_TIMEOUT_S))[0]:
                    if self._answered_at < time.monotonic() - STORE_TIMEOUT_S:
                        self._lost(True)
                        self._store.cut()
                await asking
            except asyncio.CancelledError:
                asking.cancel()
                raise
            except StoreError as exc:
                if not self.lost:
                    log.warning("the store is not followed now: %s", exc)
                self._lost(True)
            except Exception:
                log.exception("a calibration cannot be used; the last one stays active")

    def _lost(self, lost: bool) -> None:
        if not lost:
            self._answered_at = time.monotonic()
        self.lost = lost
        self._active.is_current = not (lost and self._store.is_shared)  # a file has no others
        self._up.set(self.takes_writes and not lost)


def _log_active(record: CalibrationRecord) -> None:
    """Log what became active, in one line with what follows from it."""
    found, terms = record.evidence, record.calibration.options
    alert = found.get("shift", {}).get("alert")
    said = [f"made for alpha {terms.alpha:g}, {record.calibration.n} rows count"]
    if (q95 := found.get("risk_q95")) is not None and record.calibration.n < FEW_ROWS:
        said.append(f"of such calibrations one in twenty is above {q95:.1%}")
    if (size := found.get("mean_size")) is not None:
        said.append(f"calls per request {size:.1f} of {len(record.calibration.pool)}")
    if record.void_reasons:
        said.append(f"its certificates are void ({', '.join(record.void_reasons)})")
    said += filter(None, [alert])
    level = logging.WARNING if alert or record.void_reasons else logging.INFO
    log.log(level, "calibration %s is active: %s", record.id, "; ".join(said))
