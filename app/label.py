"""``racer label``: every candidate answers every question, and the answers are graded.

A candidate that fails leaves its question unlabelled: "wrong" would be a lie, and not even a
conservative one. What was answered is kept, so that running again asks for nothing twice.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from app.errors import SettingsError, UpstreamError
from app.fleet.fleet import Fleet
from app.label_files import LabelFiles
from app.label_graders import Grader, MathGrader, TextGrader
from app.label_judge import Judge, judge_at
from app.payload import candidate_payload
from app.settings import Candidate, Secrets, Settings
from app.surfaces.chat import Chat
from app.telemetry import Telemetry
from racer_core.aggregation.grading import Grade
from racer_core.errors import InputError, RacerError, RowsError
from racer_core.records.questions import Question
from racer_core.records.writer import messages

MAX_FAILURES_IN_A_ROW: Final = 20  # then a candidate is not asked again in this run
Progress = Callable[[str, int, int], None]


class Unlabelled(RacerError):
    """Some questions have no row yet; the message says why, and how to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How answers are graded: by a ``Grade``, or by a judge with its name or address."""

    kind: str
    judge: str | None = None  # a candidate's name, or a URL
    judge_model: str | None = None  # at that URL
    judge_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did."""

    questions: int
    labelled: int  # all that have a row now
    calls: int  # of candidates, in this run
    interrupted: bool

    def as_json(self) -> dict[str, int]:
        """The fields that are printed."""
        return {"questions": self.questions, "labelled": self.labelled, "calls": self.calls}


def run(
    questions: Sequence[Question],
    source: str,
    out: Path,
    grading: Grading,
    *,
    settings: Settings,
    secrets: Secrets,
    concurrency: int,
    progress: Progress,
) -> Report:
    """Label every question that has no row yet.

    The first interrupt (Ctrl-C) asks nothing new and waits for what is under way, which is paid
    for; the second waits for nothing.

    Args:
        questions: What to ask, each query once.
        source: Where they are from, for messages.
        out: Rows are appended here; unfinished answers are kept in a file beside it.
        grading: Who says what is right.
        settings: Whom to ask, with which parameters.
        secrets: Their keys.
        concurrency: Questions under way at once; every candidate gets at most so many calls.
        progress: Called with a stage, how many questions are done, and of how many.

    Raises:
        Unlabelled: Candidates or the grading failed for some questions.
        InputError: The files or references are wrong; nobody was asked.
        SettingsError: The judge is.
    """
    grader, judge = _grader(grading, settings, secrets)
    conditions = {
        "candidates": [_shown(candidate) for candidate in settings.candidates],
        "grade": grading.kind,
        "judge": _shown(judge) if judge else None,
    }
    limit = settings.limits.query_chars

    async def labelled() -> _Labelling:
        fleet = Fleet(settings, secrets, Telemetry())
        async with grader, fleet:
            await _check(grader, questions, source)
            with LabelFiles(out, settings.pool, conditions, limit) as files:
                labelling = _Labelling(settings, fleet, grader, files)
                await labelling.run(questions, concurrency, progress)
                return labelling

    done = asyncio.run(labelled())
    report = Report(
        questions=len(questions),
        labelled=len(questions) - done.unlabelled,
        calls=done.calls,
        interrupted=done.interrupted,
    )
    if done.unlabelled and not done.interrupted:
        raise Unlabelled(
            f"{done.unlabelled} of {len(questions)} questions are not labelled "
            f"({'; '.join(done.causes())}): run the same command again, which asks only for what "
            "is missing"
        )
    return report


class _Labelling:
    """One run: who failed how often, and what is left."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        grader: Grader,
        files: LabelFiles,
    ) -> None:
        self._candidates = settings.candidates
        self._attempts = settings.fleet.attempts
        self._fleet = fleet
        self._surface = Chat()
        self._grader = grader
        self._files = files
        self._failures: Counter[tuple[str, str]] = Counter()  # (candidate, kind)
        self._in_a_row: Counter[str] = Counter()
        self.calls = 0
        self.unlabelled = 0
        self.interrupted = False

    async def run(self, questions: Sequence[Question], concurrency: int, show: Progress) -> None:
        """Label what has no row yet."""
        pending = [each for each in questions if not self._files.is_labelled(each)]
        self.unlabelled = len(pending)
        total, done = len(questions), len(questions) - len(pending)
        show("labelling", done, total)
        shared = iter(pending)  # by all workers: each question is taken once

        async def work() -> None:
            nonlocal done
            for question in shared:
                await self._label(question)
                done += 1
                show("labelling", done, total)
                if self.interrupted:
                    return

        workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(pending)))]
        if workers:
            with self._interruptible(workers):
                await _all_or_first_error(workers)

    def causes(self) -> Iterator[str]:
        """Why questions are left, for people."""
        for (name, kind), count in sorted(self._failures.items()):
            yield f"{name} failed {_times(count)}: {kind}"
        for name, count in sorted(self._in_a_row.items()):
            if count >= MAX_FAILURES_IN_A_ROW:
                yield f"{name} was given up after {count} failures in a row"
        for kind, count in sorted(self._grader.failures.items()):
            yield f"grading failed {_times(count)}: {kind}"

    async def _label(self, question: Question) -> None:
        answered = await asyncio.gather(*(self._ask(question, each) for each in self._candidates))
        if not all(answered):
            return
        answers = self._files.answers(question)
        texts = dict.fromkeys(text for text in answers.values() if text is not None)
        verdicts = await asyncio.gather(*(self._grade(question, text) for text in texts))
        if None in verdicts:
            return
        right = {text for text, verdict in zip(texts, verdicts, strict=True) if verdict}
        self._files.add_row(question, [name for name, text in answers.items() if text in right])
        self.unlabelled -= 1

    async def _ask(self, question: Question, candidate: Candidate) -> bool:
        """Whether the candidate's answer is there, now or from an earlier run."""
        name = candidate.name
        if name in self._files.answers(question):
            return True
        if self._in_a_row[name] >= MAX_FAILURES_IN_A_ROW:
            return False
        # As the gateway sends it for a request that says nothing but its messages.
        fields = {"messages": messages(question.earlier, question.query)}
        self.calls += 1
        try:
            reply = await self._fleet.ask(
                name,
                self._surface,
                candidate_payload(fields, candidate, self._surface.path),
                deadline=time.monotonic() + self._attempts * candidate.timeout_s,
            )
        except UpstreamError as exc:
            self._failures[name, exc.kind] += 1
            self._in_a_row[name] += 1
            return False
        self._in_a_row[name] = 0
        self._files.add_answer(question, name, reply.said[0].text)
        return True

    async def _grade(self, question: Question, answer: str) -> bool | None:
        known = self._files.verdict(question, answer)
        if known is not None:
            return known
        verdict = await self._grader.correct(question, answer)
        if verdict is not None and self._grader.paid:
            self._files.add_verdict(question, answer, verdict)
        return verdict

    @contextmanager
    def _interruptible(self, workers: Sequence[asyncio.Task[None]]) -> Generator[None]:
        """The first Ctrl-C lets every worker finish its question, the second ends them."""

        def interrupt() -> None:
            if self.interrupted:
                for worker in workers:
                    worker.cancel()
            self.interrupted = True

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)


async def _all_or_first_error(workers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all; an error (a full disk) ends the others and is raised."""
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _check(grader: Grader, questions: Sequence[Question], source: str) -> None:
    """Refuse references that nobody could meet, before anybody is asked."""
    found: list[str] = []
    for question in questions:
        try:
            await grader.check(question)
        except InputError as exc:
            found.append(f"line {question.place}: {exc}")
    if found:
        raise RowsError(source, found)


def _grader(
    grading: Grading, settings: Settings, secrets: Secrets
) -> tuple[Grader, Candidate | None]:
    if grading.kind != "judge":
        if grading.judge is not None:
            raise SettingsError("--judge is for --grade judge alone")
        kind = Grade(grading.kind)
        return (MathGrader() if kind is Grade.MATH else TextGrader(kind)), None
    if grading.judge is None:
        raise SettingsError("--grade judge needs --judge: a candidate's name, or a URL")
    if grading.judge.startswith(("http://", "https://")):
        if grading.judge_model is None:
            raise SettingsError("a judge at a URL needs --judge-model, its name there")
        judge = judge_at(grading.judge, grading.judge_model)
        keys = {judge.name: SecretStr(grading.judge_key)} if grading.judge_key else {}
        return Judge(judge, settings, replace(secrets, candidate_keys=keys)), judge
    for candidate in settings.candidates:
        if candidate.name == grading.judge:
            return Judge(candidate, settings, secrets), candidate
    raise SettingsError(
        f"--judge {grading.judge}: neither a candidate ({', '.join(settings.pool)}) nor a URL"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shown(candidate: Candidate) -> dict[str, Any]:
    """What makes answers comparable; an address may change."""
    return {
        "name": candidate.name,
        "model": candidate.model or candidate.name,
        "parameters": candidate.parameters,
    }
