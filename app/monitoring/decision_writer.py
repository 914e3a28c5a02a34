"""Writes decisions in the background: a request never waits for the store.

Notes wait in memory and are written together, in one transaction on a thread. When more wait than
the limit allows, new ones are dropped and counted: answering goes before remembering.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from app.errors import StoreError
from app.monitoring.decision_record import DecisionRecord

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
BATCH = 500
GATHER_S = 0.5  # how long notes gather before they are written together
RETRY_S = 1.0  # after the store could not be written


class DecisionWriter:
    """A bounded queue and the task that empties it.

    Args:
        write: Takes a batch, on a thread; after a :class:`StoreError` it gets the same batch again.
        dropped: Told how many notes were lost.
        limit: How many may wait.
        gather_s: How long notes gather, unless somebody asks for one.
    """

    def __init__(
        self,
        write: Callable[[Sequence[DecisionRecord]], None],
        dropped: Callable[[int], None],
        *,
        limit: int = MAX_WAITING,
        gather_s: float = GATHER_S,
    ) -> None:
        self._write = write
        self._dropped = dropped
        self._limit = limit
        self._gather_s = gather_s
        self._waiting: deque[DecisionRecord] = deque()
        self._unwritten: set[str] = set()  # waiting, or being written now
        self._arrived, self._hurry = asyncio.Event(), asyncio.Event()
        self._written = asyncio.Condition()
        self._fault: StoreError | None = None  # why the last batch could not be written
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="journal")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what waits; give up what the store refuses now."""
        self._closing = True
        for event in (self._arrived, self._hurry):
            event.set()
        if self._task is not None:
            await self._task

    def add(self, note: DecisionRecord) -> None:
        """Remember a decision soon."""
        if len(self._unwritten) >= self._limit:
            self._dropped(1)
            return
        self._waiting.append(note)
        self._unwritten.add(note.decision_id)
        self._arrived.set()

    async def written(self, decision_id: str) -> None:
        """Return once this decision no longer waits.

        Raises:
            StoreError: It cannot be written now.
        """
        while decision_id in self._unwritten:
            if self._fault is not None:
                raise type(self._fault)(f"decisions cannot be written now: {self._fault}")
            self._hurry.set()
            async with self._written:
                await self._written.wait()

    async def _run(self) -> None:
        while not self._closing or self._waiting:
            await self._arrived.wait()
            # A transaction costs much more than a row: under load, too, each one gathers.
            if len(self._waiting) < BATCH and not self._closing:
                await _happens(self._hurry, self._gather_s)
            self._hurry.clear()
            if self._waiting:  # else it is closed, unused
                await self._write_batch()
            if self._fault is not None and self._closing:
                self._give_up()
            elif self._fault is not None:
                await asyncio.sleep(RETRY_S)
            if not self._waiting and not self._closing:
                self._arrived.clear()

    async def _write_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            await asyncio.to_thread(self._write, batch)
        except StoreError as exc:
            if self._fault is None:
                log.exception("decisions cannot be written; they wait")
            self._fault = exc
            self._waiting.extendleft(reversed(batch))
        except Exception:
            log.exception("%d decisions are lost", len(batch))
            self._lose(batch)
        else:
            self._fault = None
            self._unwritten.difference_update(note.decision_id for note in batch)
        async with self._written:
            self._written.notify_all()

    def _give_up(self) -> None:
        log.error("%d decisions are lost: the store cannot be written", len(self._waiting))
        self._lose([*self._waiting])
        self._waiting.clear()

    def _lose(self, notes: Sequence[DecisionRecord]) -> None:
        self._dropped(len(notes))
        self._unwritten.difference_update(note.decision_id for note in notes)


async def _happens(event: asyncio.Event, within_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
