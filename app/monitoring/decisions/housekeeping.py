"""Housekeeping of monitoring, every minute: drift flush, realised risk, retention."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Self

from app.errors import StoreError
from app.monitoring.decisions.store import DecisionStore
from app.settings.monitoring import MonitoringSettings
from app.utc import SteadyClock

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
BUDGET_ROUNDS: Final = 5  # counting the requests of a day reads more than the other work


class Housekeeping:
    """A background task while it is open.

    Args:
        settings: The retention limits.
        decision_store: What is pruned.
        flush_drift: Adds pending values to the drift state; blocks.
        settle_drift: Lets decisions up to a time no longer wait for labels; blocks.
        show_risk: Shows the realised risk; blocks.
        fit_budget: Fits the sampling rates to the traffic; blocks.
        clock: After a step of it no decision is deleted for its age.
    """

    def __init__(
        self,
        *,
        settings: MonitoringSettings,
        decision_store: DecisionStore,
        flush_drift: Callable[[], None],
        settle_drift: Callable[[str], None],
        show_risk: Callable[[], None],
        fit_budget: Callable[[], None],
        clock: SteadyClock | None = None,
    ) -> None:
        self._clock = clock or SteadyClock()
        self._settings = settings
        self._decision_store = decision_store
        self._flush_drift = flush_drift
        self._settle_drift = settle_drift
        self._show_risk = show_risk
        self._fit_budget = fit_budget
        self._rounds = 0
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def reconfigure(self, settings: MonitoringSettings) -> None:
        """Keep to other limits, and fit the sampling rates in the next round."""
        self._settings = settings
        self._rounds = BUDGET_ROUNDS - 1

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="housekeeping of decisions")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._closing.is_set():
            await self._decision_store.run(self._run_once)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._closing.wait()

    def _run_once(self) -> None:
        self._rounds += 1
        if self._rounds % BUDGET_ROUNDS == 0:
            self._fit_budget()
        self._flush_drift()
        try:
            self._show_risk()
            limits = self._settings
            keep_days = limits.keep_days if self._clock.is_steady else None
            past = self._decision_store.past_limits(keep_days, limits.keep_rows)
            if past is None:
                return
            self._settle_drift(past)  # deleted, they could not count as missing
            while not self._closing.is_set() and self._decision_store.prune(past):
                pass
        except StoreError as exc:
            log.warning("old decisions are not deleted, nor is the risk shown: %s", exc)
