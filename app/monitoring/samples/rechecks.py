"""Rechecks: a periodic task that submits samples to a checker again whose check was lost.

A check is lost when the gateway stops, its queue is full, or the checker fails. Every gateway reads
what still waits for a label, so that of several gateways the first labels it. A sample that stays
without a label is submitted after twice the time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol, Self

from app.errors import NotFound, StoreError
from app.monitoring.samples.checker import Checkers
from app.monitoring.samples.record import SampledDecision
from app.utc import ago

log = logging.getLogger(__name__)

EVERY_S: Final = 600.0


class UncheckedSamples(Protocol):
    """The samples that wait for a label."""

    async def unlabelled(self, application: str, before: str) -> Sequence[str]:
        """The decisions of an application that could be labelled, oldest first."""
        ...

    async def get(self, decision_id: str) -> SampledDecision:
        """One of them with its request. Raises NotFound."""
        ...


class Rechecks:
    """A background task while it is open. Close it before the checkers.

    Args:
        samples: The samples.
        checkers: Open checkers.
        every_s: Pause between two readings, and the age of a sample before its first recheck.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        samples: UncheckedSamples,
        checkers: Checkers,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._samples = samples
        self._checkers = checkers
        self._every_s = every_s
        self._clock = clock
        self._due: dict[str, tuple[float, float]] = {}  # decision -> when, and the next pause
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._checkers.applications:
            self._task = asyncio.create_task(self._run(), name="rechecks of samples")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run_once(self) -> None:
        """Submit the samples that are due. Raises StoreError."""
        before = ago(timedelta(seconds=self._every_s))
        waiting = set[str]()
        for application in self._checkers.applications:
            found = await self._samples.unlabelled(application, before)
            waiting.update(found)
            for decision_id in found:
                if not await self._submit(decision_id, application):
                    break  # the queue is full
        self._due = {name: each for name, each in self._due.items() if name in waiting}

    async def _submit(self, decision_id: str, application: str) -> bool:
        """Submit a sample if it is due; returns False if the checker's queue has no room."""
        at, pause_s = self._due.get(decision_id, (0.0, self._every_s))
        now = self._clock()
        if now < at or self._checkers.has(decision_id, application):
            return True
        try:
            sample = (await self._samples.get(decision_id)).sample
        except NotFound:  # past its retention
            return True
        if sample is None or sample.exchange is None:  # it cannot be decrypted
            return True
        if not self._checkers.submit(decision_id, application, sample.exchange):
            return False
        self._due[decision_id] = (now + pause_s, 2 * pause_s)
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self.run_once()
            except StoreError as exc:
                log.warning("samples without a label are not checked again now: %s", exc)
            except Exception:
                log.exception("samples without a label are not checked again now")
            await asyncio.sleep(self._every_s)
