"""Asks every candidate one question, and has the answers graded.

It knows nothing of files: what was paid for goes to whoever asked for it, as soon as it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from app.errors import UpstreamError
from app.settings import Candidate, Secrets, Settings
from app.telemetry.metrics import Metrics
from app.tools.labelling.graders import Grader
from app.upstream.fleet import Fleet
from app.wire.candidate_payload import candidate_payload
from app.wire.chat import Chat
from racer_core.records.questions import Question
from racer_core.records.writer import messages

MAX_FAILURES_IN_A_ROW: Final = 20  # then a candidate is not asked again in this run


class AnswerStore(Protocol):
    """What is known of unfinished questions."""

    def answers(self, question: Question) -> Mapping[str, str | None]:
        """What candidates have answered."""
        ...

    def verdict(self, question: Question, answer: str) -> bool | None:
        """What the judge has said about an answer; None when it has not."""
        ...

    def add_answer(self, question: Question, candidate: str, answer: str | None) -> None:
        """Keep a candidate's answer."""
        ...

    def add_verdict(self, question: Question, answer: str, correct: bool) -> None:
        """Keep what a judge has said."""
        ...


@dataclass(slots=True)
class CallCounts:
    """What happened to calls."""

    calls: int = 0  # of candidates
    failures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])  # by name
    ungraded: Counter[str] = field(default_factory=Counter[str])
    given_up: set[str] = field(default_factory=set[str])

    def add(self, other: CallCounts) -> None:
        """Count what happened elsewhere, too."""
        self.calls += other.calls
        for name, kinds in other.failures.items():
            self.failures.setdefault(name, Counter()).update(kinds)
        self.ungraded += other.ungraded
        self.given_up |= other.given_up

    def causes(self) -> Iterator[str]:
        """Why questions are left, for people."""
        for name, kinds in sorted(self.failures.items()):
            for kind, count in sorted(kinds.items()):
                yield f"{name} failed {_times(count)}: {kind}"
        for name in sorted(self.given_up):
            yield f"{name} was given up after {MAX_FAILURES_IN_A_ROW} failures in a row"
        for kind, count in sorted(self.ungraded.items()):
            yield f"grading failed {_times(count)}: {kind}"


class Labeller:
    """Labels questions, several at once. Open it before use, and the grader before it.

    Args:
        settings: Whom to ask, with which parameters.
        secrets: Their keys.
        grader: Who says what is right.
    """

    def __init__(self, settings: Settings, secrets: Secrets, grader: Grader) -> None:
        self._candidates = settings.candidates
        self._attempts = settings.fleet.attempts
        self._fleet = Fleet(settings, secrets, Metrics())
        self._api_format = Chat()
        self._grader = grader
        self._in_a_row: Counter[str] = Counter()
        self._tally = CallCounts()

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fleet.__aexit__()

    def take(self) -> CallCounts:
        """What happened since this was last called."""
        taken = self._tally
        taken.ungraded.update(self._grader.failures)
        self._grader.failures.clear()
        self._tally = CallCounts()
        return taken

    async def label(self, question: Question, notes: AnswerStore) -> tuple[str, ...] | None:
        """Who is right; None where an answer or a verdict is missing."""
        asked = (self._ask(question, each, notes) for each in self._candidates)
        if not all(await asyncio.gather(*asked)):
            return None
        answers = notes.answers(question)
        texts = dict.fromkeys(text for text in answers.values() if text is not None)
        verdicts = await asyncio.gather(*(self._grade(question, text, notes) for text in texts))
        if None in verdicts:
            return None
        right = {text for text, verdict in zip(texts, verdicts, strict=True) if verdict}
        return tuple(name for name, text in answers.items() if text in right)

    async def _ask(self, question: Question, candidate: Candidate, notes: AnswerStore) -> bool:
        """Whether the candidate's answer is there, now or from an earlier run."""
        name = candidate.name
        if name in notes.answers(question):
            return True
        if self._in_a_row[name] >= MAX_FAILURES_IN_A_ROW:
            self._tally.given_up.add(name)
            return False
        # As the gateway sends it for a request that says nothing but its messages.
        fields = {"messages": messages(question.earlier, question.query)}
        self._tally.calls += 1
        try:
            reply = await self._fleet.ask(
                name,
                self._api_format,
                candidate_payload(fields, candidate, self._api_format.path),
                deadline=time.monotonic() + self._attempts * candidate.timeout_s,
            )
        except UpstreamError as exc:
            self._tally.failures.setdefault(name, Counter())[exc.kind] += 1
            self._in_a_row[name] += 1
            return False
        self._in_a_row[name] = 0
        notes.add_answer(question, name, reply.said[0].text)
        return True

    async def _grade(self, question: Question, answer: str, notes: AnswerStore) -> bool | None:
        known = notes.verdict(question, answer)
        if known is not None:
            return known
        verdict = await self._grader.correct(question, answer)
        if verdict is not None and self._grader.paid:
            notes.add_verdict(question, answer, verdict)
        return verdict


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
