"""``racer label``: every candidate answers every question, and the answers are graded.

A candidate that fails leaves its question unlabelled: "wrong" would be a lie, and not even a
conservative one. What was answered is kept, so that running again asks for nothing twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import LabellingIncomplete
from app.settings import Candidate, Secrets, Settings
from app.tools.labelling.files import LabelFiles
from app.tools.labelling.graders import Grader
from app.tools.labelling.grading import GradingOptions, make_grader
from app.tools.labelling.labeller import CallCounts, Labeller
from app.tools.labelling.remote_labelling import (
    LabelledQuestion,
    PartialLabels,
    PendingQuestion,
    RemoteLabeller,
)
from racer_core.errors import InputError, RowsError
from racer_core.records.questions import Question

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellingReport:
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
    grading: GradingOptions,
    *,
    settings: Settings,
    secrets: Secrets,
    concurrency: int,
    progress: Progress,
    spread: RemoteLabeller | None = None,
) -> LabellingReport:
    """Label every question that has no row yet.

    The first interrupt (Ctrl-C) asks nothing new and waits for what is under way, which is paid
    for; the second waits for nothing. Where questions are spread, the first waits for nothing.

    Args:
        questions: What to ask, each query once.
        source: Where they are from, for messages.
        out: Rows are appended here, and in the questions' order once all are there; unfinished
            answers are kept in a file beside it.
        grading: Who says what is right.
        settings: Whom to ask, with which parameters.
        secrets: Their keys.
        concurrency: Questions under way at once; every candidate gets at most so many calls.
        progress: Called with a stage, how many questions are done, and of how many.
        spread: Asks somewhere else; None asks here.

    Raises:
        Unlabelled: Candidates or the grading failed for some questions.
        InputError: The files or references are wrong; nobody was asked.
        SettingsError: The judge is.
    """
    checker, judge = make_grader(grading, settings, secrets)
    conditions = conditions_of(settings, grading, judge)
    asyncio.run(_check(checker, questions, source))
    with LabelFiles(out, settings.pool, conditions, settings.limits.query_chars) as files:
        labelling = _LabellingRun(questions, files, progress)
        if spread is None:
            grader, _ = make_grader(grading, settings, secrets)  # one belongs to one event loop
            asyncio.run(labelling.here(settings, secrets, grader, concurrency))
        else:
            labelling.elsewhere(spread, conditions)
        if not labelling.unlabelled:
            files.put_in_order(questions)
    report = LabellingReport(
        questions=len(questions),
        labelled=len(questions) - labelling.unlabelled,
        calls=labelling.tally.calls,
        interrupted=labelling.interrupted,
    )
    if labelling.unlabelled and not labelling.interrupted:
        raise LabellingIncomplete(
            f"{labelling.unlabelled} of {len(questions)} questions are not labelled "
            f"({'; '.join(labelling.tally.causes())}): run the same command again, which asks only "
            "for what is missing"
        )
    return report


def conditions_of(
    settings: Settings, grading: GradingOptions, judge: Candidate | None
) -> dict[str, Any]:
    """What makes rows comparable."""
    return {
        "candidates": [_shown(candidate) for candidate in settings.candidates],
        "grade": grading.kind,
        "judge": _shown(judge) if judge else None,
    }


class _LabellingRun:
    """One run: what happened, and what is left."""

    def __init__(self, questions: Sequence[Question], files: LabelFiles, show: Progress) -> None:
        self._files = files
        self._pending = [each for each in questions if not files.is_labelled(each)]
        self._total = len(questions)
        self._done = self._total - len(self._pending)
        self._show = show
        self.tally = CallCounts()
        self.unlabelled = len(self._pending)
        self.interrupted = False
        show("labelling", self._done, self._total)

    async def here(
        self, settings: Settings, secrets: Secrets, grader: Grader, concurrency: int
    ) -> None:
        """Ask from this process."""
        shared = iter(self._pending)  # by all workers: each question is taken once

        async def work(asker: Labeller) -> None:
            for question in shared:
                self._finish(question, await asker.label(question, self._files))
                if self.interrupted:
                    return

        async with grader, Labeller(settings, secrets, grader) as asker:
            count = min(concurrency, len(self._pending))
            workers = [asyncio.create_task(work(asker)) for _ in range(count)]
            if workers:
                with self._interruptible(workers):
                    await _all_or_first_error(workers)
            self.tally.add(asker.take())

    def elsewhere(self, spread: RemoteLabeller, conditions: dict[str, Any]) -> None:
        """Ask from other processes, and write what comes back."""
        if not self._pending:
            return
        try:
            for found in spread([self._known(each) for each in self._pending], conditions):
                self._keep(found)
        except KeyboardInterrupt:
            self.interrupted = True

    def _known(self, question: Question) -> PendingQuestion:
        said = dict(self._files.answers(question))
        judged = {
            text: self._files.verdict(question, text) for text in said.values() if text is not None
        }
        verdicts = {text: verdict for text, verdict in judged.items() if verdict is not None}
        return PendingQuestion(question=question, notes=PartialLabels(said, verdicts))

    def _keep(self, found: LabelledQuestion) -> None:
        question = found.question
        for name, text in found.notes.said.items():
            if name not in self._files.answers(question):
                self._files.add_answer(question, name, text)
        for text, verdict in found.notes.verdicts.items():
            if self._files.verdict(question, text) is None:
                self._files.add_verdict(question, text, verdict)
        self.tally.add(found.tally)
        self._finish(question, found.correct)

    def _finish(self, question: Question, correct: Sequence[str] | None) -> None:
        if correct is not None:
            self._files.add_row(question, correct)
            self.unlabelled -= 1
        self._done += 1
        self._show("labelling", self._done, self._total)

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
    async with grader:
        for question in questions:
            try:
                await grader.check(question)
            except InputError as exc:
                found.append(f"line {question.place}: {exc}")
    if found:
        raise RowsError(source, found)


def _shown(candidate: Candidate) -> dict[str, Any]:
    """What makes answers comparable; an address may change."""
    return {
        "name": candidate.name,
        "model": candidate.model or candidate.name,
        "parameters": candidate.parameters,
    }
