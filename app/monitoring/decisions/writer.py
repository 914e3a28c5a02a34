"""Decision writer: the write-behind queue of decisions. No request waits for the store.

Decisions wait in memory and are written together, in one transaction on a thread. If the queue is
full, new decisions are dropped and counted: answering has priority over recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self

from app.errors import StoreError
from app.monitoring.decisions.record import DecisionRecord

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
BATCH: Final = 500
GATHER_S: Final = 0.5  # how long decisions wait for more of their batch
RETRY_S: Final = 1.0  # after the store could not be written


class DecisionWriter:
    """A bounded queue and the task that empties it.

    Args:
        write: Writes a batch, on a thread. After a :class:`StoreError` it gets the same batch
            again.
        on_drop: Called with the number of decisions that were lost.
        limit: Maximum length of the queue.
        gather_s: How long decisions wait for more of their batch, unless a caller of
            :meth:`written` waits for one.
    """

    def __init__(
        self,
        write: Callable[[Sequence[DecisionRecord]], None],
        on_drop: Callable[[int], None],
        *,
        limit: int = MAX_WAITING,
        gather_s: float = GATHER_S,
    ) -> None:
        self._write = write
        self._on_drop = on_drop
        self._limit = limit
        self._gather_s = gather_s
        self._queue: deque[DecisionRecord] = deque()
        self._unwritten: set[str] = set()  # ids in the queue or in the batch being written
        self._arrived, self._hurry = asyncio.Event(), asyncio.Event()
        self._batch_done = asyncio.Condition()
        self._fault: StoreError | None = None  # why the last batch could not be written
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="decision writer")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write the queue; decisions that the store refuses now are lost."""
        self._closing = True
        for event in (self._arrived, self._hurry):
            event.set()
        if self._task is not None:
            await self._task

    @property
    def waiting(self) -> int:
        """Decisions that are not written yet; from ``limit`` on new ones are dropped."""
        return len(self._unwritten)

    @property
    def fails(self) -> bool:
        """Whether the store could not be written at the last attempt."""
        return self._fault is not None

    def add(self, decision: DecisionRecord) -> None:
        """Queue a decision, or drop it if the queue is full. Never waits."""
        if len(self._unwritten) >= self._limit:
            self._on_drop(1)
            return
        self._queue.append(decision)
        self._unwritten.add(decision.decision_id)
        self._arrived.set()

    async def written(self, decision_id: str) -> None:
        """Wait until this decision is no longer in the queue; at once if it never was.

        Raises:
            StoreError: It cannot be written now.
        """
        while decision_id in self._unwritten:
            if self._fault is not None:
                raise type(self._fault)(f"decisions cannot be written now: {self._fault}")
            self._hurry.set()
            async with self._batch_done:
                await self._batch_done.wait()

    async def _run(self) -> None:
        while not self._closing or self._queue:
            await self._arrived.wait()
            # A transaction costs much more than a row, so batches are gathered under load too.
            if len(self._queue) < BATCH and not self._closing:
                await _wait_for(self._hurry, self._gather_s)
            self._hurry.clear()
            if self._queue:  # empty if the writer is closed unused
                await self._write_batch()
            if self._fault is not None and self._closing:
                self._give_up()
            elif self._fault is not None:
                await asyncio.sleep(RETRY_S)
            if not self._queue and not self._closing:
                self._arrived.clear()

    async def _write_batch(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        try:
            await asyncio.to_thread(self._write, batch)
        except StoreError as exc:
            if self._fault is None:
                log.exception("decisions cannot be written; they wait")
            self._fault = exc
            self._queue.extendleft(reversed(batch))
        except Exception:
            log.exception("%d decisions are lost", len(batch))
            self._drop(batch)
        else:
            self._fault = None
            self._unwritten.difference_update(each.decision_id for each in batch)
        async with self._batch_done:
            self._batch_done.notify_all()

    def _give_up(self) -> None:
        log.error("%d decisions are lost: the store cannot be written", len(self._queue))
        self._drop([*self._queue])
        self._queue.clear()

    def _drop(self, decisions: Sequence[DecisionRecord]) -> None:
        self._on_drop(len(decisions))
        self._unwritten.difference_update(each.decision_id for each in decisions)


async def _wait_for(event: asyncio.Event, at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
