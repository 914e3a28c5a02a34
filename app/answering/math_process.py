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


class MathProcess:
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
            await _ended(self._child)

    async def form(self, text: str) -> str | None:
        """What an answer counts as; None where it is no mathematics, or takes too long to read."""
        said = await self.ask({"text": text})
        return None if said is None else said.get("form")

    async def ask(self, task: Mapping[str, str]) -> dict[str, Any] | None:
        """Have one task done; None when it did not end in time, or said too much.

        A child is kept only after a whole answer: what is left in the pipe would else be the
        answer to the next task.
        """
        async with self._lock:
            child = self._child or await self._started()
            try:
                return json.loads(await _answer(child, task))
            except (ConnectionError, ValueError):
                self._child = None
                await _ended(child)
                return None
            except asyncio.CancelledError:
                self._child = None
                _kill(child)
                raise

    async def _started(self) -> Process:
        # A session of its own: Ctrl-C reaches this process alone, which then ends the child.
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.answering.math_worker",
            str(self._deadline_s),
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
        return self._child


async def _answer(child: Process, task: Mapping[str, str]) -> bytes:
    """Raises ValueError where it is longer than a line may be."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(task).encode() + b"\n")
    await child.stdin.drain()
    return await child.stdout.readline()


async def _ended(child: Process) -> None:
    _kill(child)
    await child.communicate()  # reads what is left: a full pipe would never be seen to end


def _kill(child: Process) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        child.kill()
