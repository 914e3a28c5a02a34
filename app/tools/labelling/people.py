"""Grading by people: answers wait at a desk until a person at the page says whether they are right.

The page does not show which candidate gave an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from app.errors import NotFound
from app.settings import Settings
from app.tools.labelling.labeller import replayed
from racer_core.calibration.threshold import fewest_rows
from racer_core.errors import InputError
from racer_core.records.questions import Question

KIND: Final = "page"  # of grading, in the files of `racer label`
_CLOSED: Final = "the command has ended: its labels are in the file of rows"


@dataclass(slots=True)
class _Waiting:
    """A question whose answers wait, by the names under which they are shown."""

    request: Mapping[str, Any]
    task: str | None
    texts: dict[str, str] = field(default_factory=dict[str, str])
    verdicts: dict[str, asyncio.Future[bool | None]] = field(
        default_factory=dict[str, "asyncio.Future[bool | None]"]
    )


class LabelDesk:
    """The answers that wait for a verdict. Used by one event loop.

    Args:
        settings: How questions are sent, and the risk level that the rows are for.
        announce: Called when the first answer waits.
    """

    def __init__(self, settings: Settings, announce: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._announce = announce
        self._waiting: dict[str, _Waiting] = {}
        self._is_announced = False
        self._is_closed = False
        self.done = self.total = 0  # questions

    def show(self, done: int, total: int) -> None:
        """Take how many questions have a row, and of how many."""
        self.done, self.total = done, total

    async def verdict(self, question: Question, answer: str) -> bool | None:
        """A person's verdict on an answer; None if there will be none."""
        if self._is_closed:
            return None
        key = _key(question)
        waiting = self._waiting.get(key)
        if waiting is None:
            fields = replayed(question, self._settings).fields
            waiting = self._waiting[key] = _Waiting(fields, question.task)
        name = f"answer {len(waiting.texts) + 1}"
        waiting.texts[name] = answer
        found = waiting.verdicts[name] = asyncio.get_running_loop().create_future()
        if not self._is_announced:
            self._is_announced = True
            self._announce()
        try:
            return await found
        finally:
            is_over = all(each.done() for each in waiting.verdicts.values())
            if is_over and self._waiting.get(key) is waiting:
                del self._waiting[key]

    def as_json(self, limit: int) -> dict[str, Any]:
        """What waits, in the form of ``GET /shadow/waiting``."""
        alpha = self._settings.routing.alpha
        data = [
            {
                "decision_id": key,
                "application": None,
                "request": each.request,
                "answers": each.texts,
                "classes": {},
                "correct": {},
            }
            for key, each in list(self._waiting.items())[:limit]
        ]
        progress = {
            "application": None,
            "waiting": self.total - self.done,
            "labelled": self.done,
            "alpha": alpha,
            "needed": fewest_rows(alpha),
        }
        return {"data": data, "waiting": progress["waiting"], "applications": [progress]}

    def label(self, key: str, correct: Mapping[str, bool]) -> int:
        """Take the verdicts on all answers to a question; returns how many questions are left.

        Raises:
            NotFound: The question does not wait.
            InputError: Some of its answers have no verdict.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            raise NotFound(_CLOSED if self._is_closed else "it is labelled already")
        if correct.keys() != waiting.texts.keys():
            raise InputError("`correct` must name every answer of the question", param="correct")
        for name, verdict in correct.items():
            if not waiting.verdicts[name].done():
                waiting.verdicts[name].set_result(verdict)
        del self._waiting[key]
        return self.total - self.done - 1

    def give_up(self) -> None:
        """End the wait for verdicts."""
        self._is_closed = True
        for each in self._waiting.values():
            for verdict in each.verdicts.values():
                if not verdict.done():
                    verdict.set_result(None)


class PeopleGrader:
    """A grader that asks people.

    Args:
        desk: Where they are asked; None only checks questions.
    """

    paid = True  # a verdict took a person's time, so it is stored

    def __init__(self, desk: LabelDesk | None) -> None:
        self._desk = desk
        self.failures = Counter[str]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def check(self, question: Question) -> None:
        """People can grade any answer."""

    async def correct(self, question: Question, answer: str) -> bool | None:
        """A person's verdict."""
        return None if self._desk is None else await self._desk.verdict(question, answer)


def in_random_order(questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions, so that those that are labelled first are a random part of them.

    The order is the same each time.
    """
    return tuple(sorted(questions, key=_key))


def without_references(questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions for people: what a reference says is not looked at."""
    return tuple(replace(each, reference=None) for each in questions)


def _key(question: Question) -> str:
    return hashlib.sha256(question.identity.encode()).hexdigest()[:32]
