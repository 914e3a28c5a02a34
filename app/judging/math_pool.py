"""Process pool of math workers: normal forms and grading of mathematics in sandboxed processes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final, Self

from racer_core.aggregation.grading import Grade, check_reference
from racer_core.sandbox import SandboxedProcess

log = logging.getLogger(__name__)

DEADLINE_S: Final = 1.0  # for parsing one answer, which usually takes milliseconds
MAX_WORKERS: Final = 4  # one vote has three answers, as a rule, and leaves a worker to the others
MESSAGE_BYTES: Final = 2**22  # a normal form may be much longer than its text
_WARM_UP: Final = {"text": "1"}

_Reply = dict[str, Any]


class MathPool:
    """Workers for mathematics, each of which does one task at a time.

    The first task starts the first worker. While no worker is idle another one is started, up to
    ``max_workers``: a task that takes long holds one worker and delays no other task. A task that
    finds all workers busy waits for the first of them, at most ``deadline_s`` for every
    ``max_workers`` tasks before it. A worker survives a task that misses its deadline
    (:mod:`app.judging.math_worker`).

    Args:
        deadline_s: Time limit for one task, in seconds.
        max_workers: Most processes at once.
        message_bytes: Maximum length of a reply.
    """

    def __init__(
        self,
        deadline_s: float,
        *,
        max_workers: int = MAX_WORKERS,
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        self._deadline_s = deadline_s
        self._max_workers = max_workers
        self._message_bytes = message_bytes
        self._is_closed = False
        self._workers: set[SandboxedProcess] = set()
        self._idle: list[SandboxedProcess] = []
        self._waiting: deque[asyncio.Future[SandboxedProcess | None]] = deque()
        self._count = 0  # of workers that run or are being started
        self._tasks: set[asyncio.Task[Any]] = set()  # starts and exchanges

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # raises before the first request if a library is missing
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        for worker in self._workers:
            worker.kill()  # ends its exchange, whose thread then closes the process
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._idle:
            await asyncio.to_thread(worker.close)

    async def form(self, text: str) -> str | None:
        """The normal form of an answer; None if it is no mathematics or takes too long to read."""
        reply = await self.request({"text": text})
        return None if reply is None else reply.get("form")

    async def request(self, task: dict[str, str]) -> _Reply | None:
        """Have one task done; None if it did not end in time or its reply is too long.

        If the caller is cancelled, the task runs to its end: the worker is used again only after a
        whole reply. Otherwise the reply would be read as that to the next task.
        """
        worker = await self._take()
        if worker is None:
            return None
        exchange = asyncio.create_task(self._exchange(worker, task))
        self._tasks.add(exchange)
        exchange.add_done_callback(self._tasks.discard)
        reply = await asyncio.shield(exchange)
        return None if reply is None or "failed" in reply else reply

    async def _take(self) -> SandboxedProcess | None:
        """An idle worker; None if none could be started."""
        worker = self._idle.pop() if self._idle else None
        self._keep_one_idle()
        if worker is not None:
            return worker
        turn: asyncio.Future[SandboxedProcess | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and (worker := turn.result()) is not None:
                self._release(worker)
            raise

    async def _exchange(self, worker: SandboxedProcess, task: dict[str, str]) -> _Reply | None:
        reply = await asyncio.to_thread(worker.request, task)
        if reply is None:  # the process is closed
            self._workers.discard(worker)
            self._count -= 1
            self._keep_one_idle()
        else:
            self._release(worker)
        return reply

    def _release(self, worker: SandboxedProcess | None) -> None:
        """Pass a worker, or the news that there is none, to the first task that waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise the caller was cancelled
                turn.set_result(worker)
                self._keep_one_idle()
                return
        if worker is not None:
            self._idle.append(worker)

    def _keep_one_idle(self) -> None:
        if not self._idle and self._count < self._max_workers and not self._is_closed:
            self._count += 1
            start = asyncio.create_task(self._start())
            self._tasks.add(start)
            start.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        """Start a worker, and pass it on once it has loaded its library."""
        worker = None
        try:
            worker = await asyncio.to_thread(self._open)
            self._workers.add(worker)
            if self._is_closed:
                worker.kill()
            if await asyncio.to_thread(worker.request, _WARM_UP) is None:
                self._workers.discard(worker)
                worker = None
        except OSError:  # no memory or no descriptor for a process
            log.exception("a math worker cannot be started: answers have no normal form")
        if worker is None:
            self._count -= 1
        self._release(worker)

    def _open(self) -> SandboxedProcess:
        return SandboxedProcess(
            "app.judging.math_worker",
            [str(self._deadline_s)],
            message_bytes=self._message_bytes,
        )
