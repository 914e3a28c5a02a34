"""The active calibration: one reference, swapped whole, with its sub-pools computed on demand."""

from __future__ import annotations

import asyncio

from app.errors import NotReady
from app.store import Record
from app.telemetry import Telemetry
from racer_core.calibration.calibration import Calibration

_MAX_SUB_POOLS = 64


class ActiveCalibration:
    """What requests decide with. Readers take the record once and never see half a swap."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._record: Record | None = None
        self._why_not = "no calibration is active yet: upload labelled rows to POST /calibrate"
        self._sub_pools: dict[tuple[str, tuple[str, ...]], Calibration] = {}

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

    async def swap(self, record: Record) -> None:
        """Sort the record's scores on a thread, then replace the reference."""
        await asyncio.to_thread(_warm, record.calibration)
        self._record = record
        self._sub_pools.clear()
        self._telemetry.calibration_rows.set(record.calibration.n)

    def refuse(self, reason: str) -> None:
        """Remember why a stored record cannot be used."""
        self._why_not = reason

    async def sub_pool(self, record: Record, names: tuple[str, ...]) -> Calibration:
        """The record's rows for a smaller pool, recomputed on a thread and remembered."""
        if names == record.calibration.pool:
            return record.calibration
        key = (record.id, names)
        if key not in self._sub_pools:
            restricted = await asyncio.to_thread(_restricted, record.calibration, names)
            if len(self._sub_pools) >= _MAX_SUB_POOLS:
                self._sub_pools.pop(next(iter(self._sub_pools)), None)
            self._sub_pools[key] = restricted
        return self._sub_pools[key]


def _restricted(calibration: Calibration, names: tuple[str, ...]) -> Calibration:
    restricted = calibration.restrict(names)
    _warm(restricted)
    return restricted


def _warm(calibration: Calibration) -> None:
    """Sort once, off the event loop; afterwards any alpha is a look-up."""
    for score in calibration.offered:
        calibration.lambda_hat(calibration.options.alpha, score)
