"""The active calibration, swapped atomically, and a canary beside it; thresholds of their parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Generic, TypeVar

from cachetools import LRUCache

from app.errors import NotReady, Overloaded
from app.routing.groups import GroupedRows, GroupThreshold, RowPlan
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration

MAX_PARTS: Final = 64
MAX_PENDING: Final = 8
_THREADS: Final = 2

Pool = tuple[str, ...]
_Place = tuple[str, Pool, int]  # the record's id, the candidates, the place of the rows
KeyT = TypeVar("KeyT")
PartT = TypeVar("PartT")


class ActiveCalibration:
    """The calibration that requests decide with. A reader takes the record once: no half swaps.

    Clients choose the smaller pools, so ``max_parts`` and ``max_pending`` limit each kind of part.

    Args:
        metrics: Takes the number of rows and the time of the active calibration, and the share of
            the canary.
        max_parts: Maximum number of cached parts.
        max_pending: Maximum number of parts that are computed at once; one more is refused.

    Attributes:
        is_current: False while a store that gateways share cannot be read: another one may have
            become active, and alarms may have been raised.
    """

    NONE_YET: ClassVar = "no calibration is active yet: upload labelled rows to POST /calibrate"

    def __init__(
        self, metrics: Metrics, *, max_parts: int = MAX_PARTS, max_pending: int = MAX_PENDING
    ) -> None:
        self._metrics = metrics
        self._record: CalibrationRecord | None = None
        self._why_not = self.NONE_YET
        self.is_current = True
        # Own threads, so that thresholds hold up no other work; they end with this object.
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="racer-threshold")
        limits = threads, max_parts, max_pending
        # Keys have the record's id, so that a swap never serves a part of another record.
        self._sub_pools = _PartCache[_Place, Calibration](*limits)
        self._grouped = _PartCache[_Place, GroupedRows](*limits)
        self._groups = _PartCache[tuple[_Place, RowPlan], GroupThreshold](*limits)
        # An own thread, so that no other work delays an activation.
        self._swapping = ThreadPoolExecutor(1, thread_name_prefix="racer-activation")
        self._followers: list[Callable[[CalibrationRecord], None]] = []
        self._canary: Canary | None = None
        self._canary_followers: list[Callable[[CalibrationRecord], None]] = []

    @property
    def ready(self) -> bool:
        """Whether queries can be routed."""
        return self._record is not None

    @property
    def why_not(self) -> str:
        """Why it is not ready, and what an operator should do."""
        return self._why_not

    def record(self) -> CalibrationRecord:
        """The active record. Raises :class:`NotReady` before there is one."""
        if self._record is None:
            raise NotReady(self._why_not)
        return self._record

    def record_for(self, drawn_by: str) -> CalibrationRecord:
        """The record that decides a request: the canary's, if that is drawn, or the active one.

        Args:
            drawn_by: As :meth:`Canary.decides` takes it; empty: the active one decides.
        """
        canary = self._canary
        if canary is not None and drawn_by and canary.decides(drawn_by):
            return canary.record
        return self.record()

    @property
    def canary(self) -> Canary | None:
        """The canary; None: the active calibration decides all requests."""
        return self._canary

    async def add_follower(
        self,
        follower: Callable[[CalibrationRecord], None],
        of_canaries: Callable[[CalibrationRecord], None] | None = None,
    ) -> None:
        """Call ``follower`` on a thread with the active record, and with each later one.

        A later record decides only after the call has returned.

        Args:
            follower: It.
            of_canaries: Called likewise with the records of canaries.
        """
        self._followers.append(follower)
        if self._record is not None:
            await self._prepare(follower, self._record)
        if of_canaries is not None:
            self._canary_followers.append(of_canaries)
            if self._canary is not None:
                await self._prepare(of_canaries, self._canary.record)

    async def swap(self, record: CalibrationRecord) -> None:
        """Sort the record's scores and index its queries on a thread, then replace it."""
        await self._make_ready(record, self._followers)
        self._record = record
        for parts in (self._sub_pools, self._grouped, self._groups):
            parts.clear()
        self._metrics.calibration_rows.set(record.calibration.n)
        made = datetime.fromisoformat(record.created_at).timestamp()
        self._metrics.calibration_timestamp.set(made)
        shift = record.evidence.get("shift", {})
        self._metrics.calibration_shift.set(shift["size_change"] if shift.get("alert") else 0.0)

    async def set_canary(self, canary: Canary | None) -> None:
        """Let a canary decide its share, prepared as :meth:`swap` does; None: none decides."""
        before = self._canary
        if canary is not None and (before is None or before.record is not canary.record):
            await self._make_ready(canary.record, self._canary_followers)
        self._canary = canary
        self._metrics.canary_share.set(0.0 if canary is None else canary.share)

    async def _make_ready(
        self, record: CalibrationRecord, followers: Iterable[Callable[[CalibrationRecord], None]]
    ) -> None:
        for population in record.populations:
            await self._prepare(Calibration.sort_scores, population.calibration)
            await self._prepare(_index_queries, population.calibration)
        for follower in followers:
            await self._prepare(follower, record)

    async def _prepare(self, work: Callable[[PartT], None], given: PartT) -> None:
        await asyncio.get_running_loop().run_in_executor(self._swapping, work, given)

    def refuse(self, reason: str) -> None:
        """Set the reason why a stored record cannot be used."""
        self._why_not = reason

    async def calibration(
        self,
        record: CalibrationRecord,
        names: Pool,
        group: str | None = None,
        *,
        population: int = 0,
    ) -> GroupThreshold:
        """The rows whose threshold applies, computed on a thread and cached.

        A computation whose caller leaves runs to its end, for the next caller.

        Args:
            record: The record that decides.
            names: The candidates among which the set is chosen, in the order of the pool.
            group: The request's group from ``Grouping``; None where it has none.
            population: The place of the rows in the record.

        Raises:
            Overloaded: It is not cached, and too many others are being computed.
        """
        calibration = await self.sub_pool(record, names, population=population)
        if not record.has_groups:
            return GroupThreshold(calibration=calibration, group=None)
        place = (record.id, names, population)
        rows = await self._grouped.get(place, lambda: GroupedRows(calibration))
        plan = rows.plan(group)
        return await self._groups.get((place, plan), lambda: _sorted_group(rows, plan))

    async def sub_pool(
        self, record: CalibrationRecord, names: Pool, *, population: int = 0
    ) -> Calibration:
        """The record's rows for a smaller pool, whatever their groups, computed in the same way.

        Raises:
            Overloaded: As :meth:`calibration`.
        """
        rows = record.populations[population].calibration
        if names == rows.pool:
            return rows
        return await self._sub_pools.get(
            (record.id, names, population),
            lambda: _sorted(rows.restrict(names)),
        )


class _PartCache(Generic[KeyT, PartT]):
    """LRU cache of what threads compute: each part once, however many callers wait for it."""

    def __init__(self, threads: Executor, max_parts: int, max_pending: int) -> None:
        self._threads = threads
        self._max_pending = max_pending
        self._parts: LRUCache[KeyT, asyncio.Future[PartT]] = LRUCache(max_parts)
        self._pending: set[asyncio.Future[PartT]] = set()

    async def get(self, key: KeyT, compute: Callable[[], PartT]) -> PartT:
        """The part under the key, else what ``compute`` returns on a thread.

        Raises:
            Overloaded: The part is not cached, and too many are being computed.
        """
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = self._start(compute)
        try:
            return await asyncio.shield(part)
        except Exception:
            if self._parts.get(key) is part:
                del self._parts[key]
            raise

    def clear(self) -> None:
        """Remove all parts."""
        self._parts.clear()

    def _start(self, compute: Callable[[], PartT]) -> asyncio.Future[PartT]:
        if len(self._pending) >= self._max_pending:
            raise Overloaded(f"{self._max_pending} thresholds are being computed already")
        part = asyncio.get_running_loop().run_in_executor(self._threads, compute)
        self._pending.add(part)
        part.add_done_callback(self._pending.discard)
        return part


def _sorted_group(rows: GroupedRows, plan: RowPlan) -> GroupThreshold:
    applied = rows.serving(plan)
    applied.calibration.sort_scores()
    return applied


def _sorted(calibration: Calibration) -> Calibration:
    calibration.sort_scores()
    return calibration


def _index_queries(calibration: Calibration) -> None:
    """Hash the fingerprints and the groups off the event loop."""
    _ = calibration.queries, calibration.group_names


_BITS: Final = 53  # of a double in [0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A calibration that decides a share of the requests beside the active one.

    Which requests it decides follows from a keyed hash of the request's session or, without one, of
    its decision's id. So the turns of a session stay together, all gateways of a store agree, a
    larger share keeps the sessions of a smaller one, and the draw looks neither at the query nor at
    anything that depends on it. The requests of each of the two calibrations are then drawn like
    all requests: the certificate of each decision is that of the calibration that it names, as if
    this one were the only one.

    A client sees in the certificate which calibration decides its session. If it goes on with the
    sessions of one of the two alone, it chooses its calibration, and by what it has seen before:
    its requests are then no longer drawn like the rows.

    Attributes:
        record: The calibration.
        share: Of the requests, in (0, 1).
        key: Secret of the draw, which the store keeps: from a name, no client can tell which
            calibration will decide its session.
    """

    record: CalibrationRecord
    share: float
    key: bytes

    def decides(self, drawn_by: str) -> bool:
        """Whether it decides a request; a draw of its own, whatever the shadow sample draws.

        Args:
            drawn_by: The request's session, with its caller, or the id of its decision.
        """
        seed = hashlib.blake2b(self.key + self.record.id.encode(), digest_size=32).digest()
        digest = hashlib.blake2b(drawn_by.encode(), key=seed, person=b"canary", digest_size=8)
        number = int.from_bytes(digest.digest()) >> (64 - _BITS)
        return number * 2.0**-_BITS < self.share
