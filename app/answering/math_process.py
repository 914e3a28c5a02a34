"""Client of the math worker: normal forms and grading of mathematics in a sandboxed process."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from app.concurrency.sandbox import SandboxedProcess
from racer_core.aggregation.grading import Grade, check_reference

DEADLINE_S: Final = 1  # for parsing one answer, which usually takes milliseconds
_MESSAGE_BYTES: Final = 2**22  # a normal form may be much longer than its text


class MathProcess:
    """One child process for mathematics, which does one task at a time.

    The first task starts the child. A task that does not end in time costs the child, and the next
    task starts another one.

    Args:
        deadline_s: Time limit for one task, in whole seconds.
    """

    def __init__(self, deadline_s: int) -> None:
        self._deadline_s = deadline_s
        self._process: SandboxedProcess | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # raises before the first request if a library is missing
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the child, if it runs."""
        if self._process is not None:
            await asyncio.to_thread(self._process.close)

    async def form(self, text: str) -> str | None:
        """The normal form of an answer; None if it is no mathematics or takes too long to read."""
        reply = await self.request({"text": text})
        return None if reply is None else reply.get("form")

    async def request(self, task: dict[str, str]) -> dict[str, Any] | None:
        """Have one task done; None if the child did not end it in time or its reply is too long.

        The child is used again only after a whole reply. Otherwise the rest of this reply, still
        in the pipe, would be read as the reply to the next task.
        """
        async with self._lock:
            process = self._process or self._start()
            exchange = asyncio.create_task(asyncio.to_thread(process.request, task))
            try:
                reply = await asyncio.shield(exchange)
            except BaseException:  # cancelled, as a rule
                self._process = None
                process.kill()  # ends the exchange, whose thread then closes the process
                raise
            if reply is None:
                self._process = None
            return reply

    def _start(self) -> SandboxedProcess:
        self._process = SandboxedProcess(
            "app.answering.math_worker", [str(self._deadline_s)], message_bytes=_MESSAGE_BYTES
        )
        return self._process
