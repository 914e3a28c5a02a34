"""Graders that call no model: comparison of normal forms, and of mathematics.

A verdict of None means "could not be graded", never "wrong".
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol, Self

from app.judging.math_pool import MathPool
from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.errors import InputError
from racer_core.records.questions import Question

MATH_DEADLINE_S: Final = 10.0  # an ordinary comparison takes milliseconds


class Grader(Protocol):
    """Grades the answers of one run; open it first."""

    paid: bool  # a verdict costs a call, so it is stored
    failures: Counter[str]  # reason -> answers that could not be graded

    async def __aenter__(self) -> Self:
        """Open."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...

    async def check(self, question: Question) -> None:
        """Raise InputError if no answer to the question could be graded."""
        ...

    async def correct(self, question: Question, answer: str) -> bool | None:
        """Whether the answer is correct; None if it could not be graded."""
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
        """Require a reference with a normal form."""
        check_reference(_reference(question), self._kind)

    async def correct(self, question: Question, answer: str) -> bool | None:
        """Compare normal forms; never None."""
        return grade(answer, _reference(question), self._kind)


class MathGrader:
    """Compares in child processes, which are replaced if an answer takes too long."""

    paid = False

    def __init__(self, deadline_s: float = MATH_DEADLINE_S) -> None:
        self._pool = MathPool(deadline_s)
        self.failures = Counter[str]()

    async def __aenter__(self) -> Self:
        check_reference("1", Grade.MATH)  # fails early if the library is missing
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def check(self, question: Question) -> None:
        """Require a reference that parses as mathematics."""
        response = await self._pool.request({"reference": _reference(question)})
        if response is None or "error" in response:
            raise InputError(
                response["error"] if response else "the reference takes too long to read"
            )

    async def correct(self, question: Question, answer: str) -> bool | None:
        """Compare as mathematics; None if the comparison did not end in time."""
        response = await self._pool.request({"reference": _reference(question), "answer": answer})
        if response is None:
            self.failures["took_too_long"] += 1
            return None
        return response["correct"]


def _reference(question: Question) -> str:
    if question.reference is None:
        raise InputError('no "reference" to grade against')
    return question.reference
