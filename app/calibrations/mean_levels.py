"""Mean levels: what the active calibration calls at every risk level, on average over its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from cachetools import LRUCache

from app.access.api_keys import Caller
from app.calibrations.evidence import curve, mean_sizes
from app.calibrations.served_level import ServedLevel, first_turns_of, served_level
from app.routing.active_calibration import ActiveCalibration
from app.routing.applications import Membership
from app.routing.groups import Grouping
from app.routing.request import alphas_for
from app.settings import DEFAULT, Settings
from racer_core.calibration.calibration import Calibration
from racer_core.types import Score

_MAX_KEPT: Final = 64
_SHOWN: Final = ("alpha", "feasible", "mean_size", "abstain", "risk_band")
_Level = dict[str, Any]
_Key = tuple[str, tuple[str, ...], str | None, float]  # record, pool, group and alpha in force


class MeanLevels:
    """Computes them once for each calibration, pool and group, one at a time.

    Args:
        active: The active calibration.
        grouping: Finds the group of a caller.
    """

    def __init__(self, active: ActiveCalibration, grouping: Grouping) -> None:
        self._active = active
        self._grouping = grouping
        self._kept: LRUCache[_Key, list[_Level]] = LRUCache(_MAX_KEPT)
        self._computing = asyncio.Lock()

    async def report(
        self,
        caller: Caller,
        application: Membership | None,
        served: float,
        *,
        allows_infeasible: bool,
    ) -> dict[str, Any]:
        """The levels that a caller may ask for, over the rows of first turns of its group.

        Args:
            caller: Bounds the candidates and alpha.
            application: That of its requests.
            served: The configured level of its requests.
            allows_infeasible: Whether levels without a finite threshold are served.

        Raises:
            NotReady: No calibration is active.
            Overloaded: Too many thresholds are being computed.
        """
        record = self._active.record()
        group = self._grouping.of_request("", None, caller.group, application)
        place = first_turns_of(record, group)
        pool = record.calibration.pool
        if (allowed := caller.candidates) is not None:
            pool = tuple(name for name in pool if name in allowed)
        threshold = await self._active.calibration(record, pool, group, population=place)
        alpha = min(served, caller.max_alpha or 1.0)
        rows = threshold.calibration
        levels = await self._levels((record.id, pool, threshold.group, alpha), rows)
        return {
            "calibration_id": record.id,
            "alpha": alpha,
            "score": rows.options.score,
            "risk_target": rows.options.risk_target,
            "group": threshold.group,
            "pool": pool,
            "n": rows.n,
            "levels": [
                each
                for each in levels
                if each["alpha"] <= (caller.max_alpha or 1.0)
                and (allows_infeasible or each["feasible"])
            ],
        }

    async def served(
        self, settings: Settings, application: str | None = None, reasons: Iterable[str] = ()
    ) -> ServedLevel:
        """The configured level of an application's requests, and the bound that holds for it.

        Args:
            settings: The configuration.
            application: The application; None: requests of none.
            reasons: Premises that failed since, such as alarms.

        Raises:
            NotReady, Overloaded: As :meth:`report`.
        """
        record = self._active.record()
        rows, place = record.calibration, 0
        if record.is_by_application:
            group = application or DEFAULT
            place = first_turns_of(record, group)
            pool = rows.pool
            found = await self._active.calibration(record, pool, group, population=place)
            rows = found.calibration
        return served_level(settings, record, application, rows=rows, place=place, reasons=reasons)

    async def _levels(self, key: _Key, rows: Calibration) -> list[_Level]:
        async with self._computing:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = await asyncio.to_thread(_mean_levels, rows, key[-1])
            return found


def _mean_levels(rows: Calibration, alpha: float) -> list[_Level]:
    """The levels half a percent apart; with the size of a fixed order, where rows offer it."""
    alphas = alphas_for(None, alpha)
    levels = [{name: each[name] for name in _SHOWN} for each in curve(rows, alphas)]
    if rows.options.score == Score.STATIC or Score.STATIC not in rows.offered:
        return levels
    sizes = mean_sizes(rows, alphas, Score.STATIC)
    return [each | {"fixed_order_size": size} for each, size in zip(levels, sizes, strict=True)]
