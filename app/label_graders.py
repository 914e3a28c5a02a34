"""Who says whether an answer is right without asking anybody: normal forms, and mathematics.

None stands for "could not be graded", which is never read as "wrong".
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, Self

from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.errors import InputError
from racer_core.records.questions import Question

MATH_DEADLINE_S: Final = 10  # an ordinary comparison takes milliseconds


class Grader(Protocol):
    """Grades the answers of one run; open it first."""

    paid: bool  # a verdict costs a call, so that it is worth keeping
    failures: Counter[str]  # why answers could not be graded, and how many

    async def __aenter__(self) -> Self:
        """Begin."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """End what was begun."""
        ...

    async def check(self, question: Question) -> None:
        """Raise InputError when nobody's answer to the question could be graded."""
        ...

    async def correct(self, question: Question, answer: str) -> bool | None:
        """Whether the answer is right; None when that cannot be said."""
        ...


class TextGrader:
    """Compares normal forms, in this process."""

    paid = False

    def __init__(self, kind: Grade) -> None:
        self._kind = kind
        self.failures = Counter[str]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def check(self, question: Question) -> None:
        """The reference must have a normal form."""
        check_reference(_reference(question), self._kind)

    async def correct(self, question: Question, answer: str) -> bool | None:
        """Never None."""
        return grade(answer, _reference(question), self._kind)


class MathGrader:
    """Asks a child process, which does not survive an endless answer and is then replaced."""

    paid = False

    def __init__(self, deadline_s: int = MATH_DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._child: Process | None = None
        self._lock = asyncio.Lock()
        self.failures = Counter[str]()

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # the library is missing: say so before anyone is asked
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.wait()

    async def check(self, question: Question) -> None:
        """The reference must be mathematics."""
        said = await self._ask({"reference": _reference(question)})
        if said is None or "error" in said:
            raise InputError(said["error"] if said else "the reference takes too long to read")

    async def correct(self, question: Question, answer: str) -> bool | None:
        """None when the comparison did not end in time."""
        said = await self._ask({"reference": _reference(question), "answer": answer})
        if said is None:
            self.failures["took_too_long"] += 1
            return None
        return said["correct"]

    async def _ask(self, task: Mapping[str, str]) -> dict[str, Any] | None:
        async with self._lock:
            child = self._child or await self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            with suppress(ConnectionError):  # it has ended; the end of its output says so
                child.stdin.write(json.dumps(task).encode() + b"\n")
                await child.stdin.drain()
            said = await child.stdout.readline()
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
            "app.label_math",
            str(self._deadline_s),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        return self._child


def _reference(question: Question) -> str:
    if question.reference is None:
        raise InputError('no "reference" to grade against')
    return question.reference
