"""The active calibration: one reference, swapped whole, with parts of it computed on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from app.errors import NotReady
from app.grouping import GroupedRows, GroupThreshold, RowPlan
from app.store import Record
from app.telemetry import Telemetry
from racer_core.calibration.calibration import Calibration

_MAX_PARTS: Final = 64


Pool = tuple[str, ...]
KeyT = TypeVar("KeyT")
PartT = TypeVar("PartT")


class ActiveCalibration:
    """What requests decide with. Readers take the record once and never see half a swap."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._record: Record | None = None
        self._why_not = "no calibration is active yet: upload labelled rows to POST /calibrate"
        # By record, so that a swap never serves a part of another one.
        self._sub_pools = _Parts[tuple[str, Pool], Calibration]()
        self._grouped = _Parts[tuple[str, Pool], GroupedRows]()
        self._groups = _Parts[tuple[str, Pool, RowPlan], GroupThreshold]()
        self._followers: list[Callable[[Record], Awaitable[None]]] = []

    @property
    def ready(self) -> bool:
        """Whether queries can be routed."""
        return self._record is not None

    @property
    def why_not(self) -> str:
        """What an operator should do while it is not ready."""
        return self._why_not

    def record(self) -> Record:
        """The active record. Raises :class:`NotReady` before there is one."""
        if self._record is None:
            raise NotReady(self._why_not)
        return self._record

    async def tell(self, follower: Callable[[Record], Awaitable[None]]) -> None:
        """Call this with the active record, and with every later one before it decides."""
        self._followers.append(follower)
        if self._record is not None:
            await follower(self._record)

    async def swap(self, record: Record) -> None:
        """Sort the record's scores on a thread, then replace the reference."""
        await asyncio.to_thread(_warm, record.calibration)
        for follower in self._followers:
            await follower(record)
        self._record = record
        for parts in (self._sub_pools, self._grouped, self._groups):
            parts.clear()
        self._telemetry.calibration_rows.set(record.calibration.n)

    def refuse(self, reason: str) -> None:
        """Remember why a stored record cannot be used."""
        self._why_not = reason

    async def calibration(
        self, record: Record, names: Pool, group: str | None = None
    ) -> GroupThreshold:
        """The rows whose threshold applies, computed on a thread and remembered.

        What one caller no longer waits for is computed to its end, for the next.

        Args:
            record: The record that decides.
            names: The candidates among which is chosen, in the order of the pool.
            group: Of the request, as ``Grouping`` found it; None: none is known.
        """
        calibration = await self.sub_pool(record, names)
        if calibration.groups is None:
            return GroupThreshold(calibration=calibration, group=None)
        place = (record.id, names)
        rows = await self._grouped.get(place, lambda: GroupedRows(calibration))
        plan = rows.plan(group)
        return await self._groups.get((*place, plan), lambda: _warmed_group(rows, plan))

    async def sub_pool(self, record: Record, names: Pool) -> Calibration:
        """The record's rows for a smaller pool, whatever their groups, computed likewise."""
        calibration = record.calibration
        if names == calibration.pool:
            return calibration
        return await self._sub_pools.get(
            (record.id, names), lambda: _warmed(calibration.restrict(names))
        )


class _Parts(Generic[KeyT, PartT]):
    """What threads compute, by key: each once, the oldest dropped when there are too many."""

    def __init__(self) -> None:
        self._tasks: dict[KeyT, asyncio.Task[PartT]] = {}

    async def get(self, key: KeyT, make: Callable[[], PartT]) -> PartT:
        """What is known under the key, else what ``make`` makes on a thread."""
        if key not in self._tasks:
            if len(self._tasks) >= _MAX_PARTS:
                del self._tasks[next(iter(self._tasks))]
            self._tasks[key] = asyncio.create_task(asyncio.to_thread(make))
        try:
            return await asyncio.shield(self._tasks[key])
        except Exception:
            self._tasks.pop(key, None)
            raise

    def clear(self) -> None:
        """Forget all."""
        self._tasks.clear()


def _warmed_group(rows: GroupedRows, plan: RowPlan) -> GroupThreshold:
    applied = rows.serving(plan)
    _warm(applied.calibration)
    return applied


def _warmed(calibration: Calibration) -> Calibration:
    _warm(calibration)
    return calibration


def _warm(calibration: Calibration) -> None:
    """Sort once, off the event loop; afterwards any alpha is a look-up."""
    for score in calibration.offered:
        calibration.lambda_hat(calibration.options.alpha, score)
