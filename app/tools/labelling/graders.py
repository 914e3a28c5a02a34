"""Who says whether an answer is right without asking anybody: normal forms, and mathematics.

None stands for "could not be graded", which is never read as "wrong".
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol, Self

from app.answering.math_process import MathProcess
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
        self._child = MathProcess(deadline_s)
        self.failures = Counter[str]()

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # the library is missing: say so before anyone is asked
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._child.close()

    async def check(self, question: Question) -> None:
        """The reference must be mathematics."""
        said = await self._child.request({"reference": _reference(question)})
        if said is None or "error" in said:
            raise InputError(said["error"] if said else "the reference takes too long to read")

    async def correct(self, question: Question, answer: str) -> bool | None:
        """None when the comparison did not end in time."""
        said = await self._child.request({"reference": _reference(question), "answer": answer})
        if said is None:
            self.failures["took_too_long"] += 1
            return None
        return said["correct"]


def _reference(question: Question) -> str:
    if question.reference is None:
        raise InputError('no "reference" to grade against')
    return question.reference
