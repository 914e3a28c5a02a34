"""The parent's side of the process that reads mathematics."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from racer_core.aggregation.grading import Grade, check_reference

_LINE_BYTES: Final = 2**22  # a form may be much longer than its text


class MathChild:
    """Started by its first task, and again after one that took longer than its deadline.

    Args:
        deadline_s: Whole seconds for one task.
    """

    def __init__(self, deadline_s: int) -> None:
        self._deadline_s = deadline_s
        self._child: Process | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # the library is missing: say so before anyone is asked
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the process, if it runs."""
        if self._child is not None:
            self._child.kill()
            await self._child.wait()

    async def form(self, text: str) -> str | None:
        """What an answer counts as; None where it is no mathematics, or takes too long to read."""
        said = await self.ask({"text": text})
        return None if said is None else said.get("form")

    async def ask(self, task: Mapping[str, str]) -> dict[str, Any] | None:
        """Have one task done; None when it did not end in time."""
        async with self._lock:
            child = self._child or await self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                with suppress(ConnectionError):  # it has ended; the end of its output says so
                    child.stdin.write(json.dumps(task).encode() + b"\n")
                    await child.stdin.drain()
                said = await child.stdout.readline()
            except asyncio.CancelledError:
                child.kill()  # else the next task would be told what this one was to be told
                self._child = None
                raise
            if not said.endswith(b"\n"):
                await child.wait()
                self._child = None
                return None
            return json.loads(said)

    async def _started(self) -> Process:
        # A session of its own: Ctrl-C reaches this process alone, which then ends the child.
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.math_worker",
            str(self._deadline_s),
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        return self._child
