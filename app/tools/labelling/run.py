"""Labelling run of `racer label`: every candidate answers every question, answers are graded.

Evaluators rate the answers if the command names them.

If a candidate fails, its question stays unlabelled: the label "wrong" would be false, and not even
conservative. Answers are stored, so that the next run repeats no call. By another grade, judge or
reference, stored answers are graded anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import LabellingIncomplete
from app.routing.conditions import ConditionReader
from app.routing.query import NO_CANDIDATE, needs_of_body
from app.settings import Candidate, Secrets, Settings
from app.tools.labelling.answer import Answer
from app.tools.labelling.confidences import (
    ConfidenceRecorder,
    RatingCounts,
    RatingOptions,
    RatingPlan,
    rating_plan,
)
from app.tools.labelling.files import LabelFiles
from app.tools.labelling.grading import GradingOptions, make_grader
from app.tools.labelling.labeller import CallCounts, Labeller, replayed
from app.tools.labelling.people import LabelDesk
from app.tools.labelling.request_grading import RequestGrader
from app.tools.labelling.summary import RowsSummary, summarise
from app.tools.labelling.workers import Workers
from racer_core.errors import InputError, RowsError
from racer_core.records.questions import Question

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellingReport:
    """Result of a run."""

    questions: int
    labelled: int  # questions that have a row now
    calls: int  # to candidates, in this run
    reused: int  # answers that the questions brought, in this run
    regraded: int  # rows whose stored answers were graded anew, in this run
    interrupted: bool
    rows: RowsSummary  # of the questions that have a row
    failed_calls: Mapping[str, int]  # of each candidate, in this run
    ratings: RatingCounts | None = None  # of this run; None if no evaluator was asked

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        rated = (
            {}
            if self.ratings is None
            else {"evaluator_calls": self.ratings.calls, "failed_ratings": self.ratings.failed}
        )
        return {
            "questions": self.questions,
            "labelled": self.labelled,
            "calls": self.calls,
            **({"reused": self.reused} if self.reused else {}),
            **({"regraded": self.regraded} if self.regraded else {}),
            **rated,
            "candidates": {
                name: {**each.as_json(), "failed_calls": self.failed_calls[name]}
                for name, each in self.rows.candidates.items()
            },
            **self.rows.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForecast:
    """The most calls that a run will make."""

    candidates: int
    evaluators: int  # fewer where candidates give the same text


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
    rating: RatingOptions | None = None,
    announce: Callable[[CallForecast], None] | None = None,
    on_incomplete: Callable[[LabellingReport], None] | None = None,
    through: tuple[Settings, Secrets] | None = None,
    serving: AbstractAsyncContextManager[object] | None = None,
) -> LabellingReport:
    """Label every question that has no row yet.

    The first interrupt (Ctrl-C) starts no further call and waits for the pending ones, which are
    paid for; the second ends at once.

    Args:
        questions: The questions; copies of one have different numbers.
        source: Name of their file, for messages.
        out: Rows are appended to this file, and put into the questions' order at the end;
            unfinished answers are stored in a file beside it.
        grading: How answers are graded.
        settings: The candidates and their decoding parameters.
        secrets: API keys of the candidates.
        concurrency: Questions processed at once, hence the most calls at once to a candidate.
        progress: Called with a stage, how many questions have a row, and of how many.
        rating: The evaluators that rate the answers; None for no ratings.
        announce: Called with the most calls to make, before the first.
        on_incomplete: Called with the report before LabellingIncomplete is raised.
        through: How candidates are called through a gateway; None calls them as ``settings`` says.
        serving: The page where people grade; None: they do not.

    Raises:
        LabellingIncomplete: Candidates, the grading or evaluators failed for some questions.
        InputError: The files or references are wrong; no candidate was called.
        SettingsError: The judge or an evaluator is unknown, or an evaluator cannot rate.
        UpstreamError: An evaluator cannot be reached; no candidate was called.
    """
    checker, judge = make_grader(grading, settings, secrets)
    plan = rating_plan(rating, settings)
    conditions = _conditions(settings, grading, judge)
    asyncio.run(_check(checker, questions, source, settings))
    with LabelFiles(
        out,
        pool=settings.pool,
        conditions=conditions,
        digests=_digests(settings),
        plan=plan,
        evaluators=plan.identities(settings),
    ) as files:
        regraded = files.regrade(questions)
        for each in questions:
            if each.is_lost and not files.is_labelled(each):
                files.add_lost_row(each)
        labelling = _LabellingRun(questions, files, plan, progress, grading.desk)
        labelling.reuse_recorded(_digests(settings), settings.pool, trusts_labels=checker.paid)
        if announce is not None:
            announce(labelling.forecast(settings.pool))
        # A grader belongs to one event loop.
        calls, keys = through or (settings, secrets)
        grader, _ = make_grader(grading, calls, keys)
        asyncio.run(labelling.label(calls, keys, grader, concurrency, serving or nullcontext()))
        if not labelling.unlabelled:
            files.put_in_order(questions)
        summary = summarise(files.rows_of(questions), settings.pool)
    report = LabellingReport(
        questions=len(questions),
        labelled=len(questions) - labelling.unlabelled,
        calls=labelling.counts.calls,
        reused=labelling.reused,
        regraded=regraded,
        interrupted=labelling.interrupted,
        rows=summary,
        failed_calls={
            name: labelling.counts.failures.get(name, Counter[str]()).total()
            for name in settings.pool
        },
        ratings=labelling.counts.ratings if plan.models else None,
    )
    if labelling.unlabelled and not labelling.interrupted:
        if on_incomplete is not None:
            on_incomplete(report)
        raise LabellingIncomplete(
            f"{labelling.unlabelled} of {len(questions)} questions are not labelled "
            f"({'; '.join(labelling.counts.causes())}): run the same command again, which makes "
            "only the missing calls"
        )
    return report


def _conditions(
    settings: Settings, grading: GradingOptions, judge: Candidate | None
) -> dict[str, Any]:
    """The conditions under which rows are comparable."""
    return {
        "candidates": [_identity(candidate) for candidate in settings.candidates],
        "reasoning_markers": settings.aggregation.reasoning_markers,
        "grade": grading.kind,
        "judge": _identity(judge) if judge else None,
    }


class _LabellingRun:
    """State of one run: counts, and the questions that are left."""

    def __init__(
        self,
        questions: Sequence[Question],
        files: LabelFiles,
        plan: RatingPlan,
        show: Progress,
        desk: LabelDesk | None,
    ) -> None:
        self._files = files
        self._plan = plan
        self._pending = [each for each in questions if not files.is_labelled(each)]
        self._total = len(questions)
        self._failed = 0  # questions that were tried in vain
        self._show = show
        self.counts = CallCounts()
        self.unlabelled = len(self._pending)
        self._desk = desk
        self._workers = Workers() if desk is None else Workers(desk.give_up)
        self.reused = 0
        self._show_progress()

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped by Ctrl-C."""
        return self._workers.interrupted

    def reuse_recorded(
        self,
        digests: Callable[[Question], Mapping[str, str]],
        pool: Sequence[str],
        *,
        trusts_labels: bool,
    ) -> None:
        """Take the answers of candidates that would be sent what they were sent for them.

        Args:
            digests: What each candidate would be sent for a question, but for its query.
            pool: The candidates.
            trusts_labels: The labels of such answers stand, since grading again would cost calls.
        """
        for question in self._pending:
            stored = self._files.answers(question)
            now: Mapping[str, str] = digests(question) if question.recorded else {}
            reused = {
                name: each
                for name in pool
                if name not in stored
                and (each := question.recorded.get(name)) is not None
                and each.condition == now[name]
            }
            verdicts: dict[str, set[bool | None]] = {}
            for name, each in reused.items():
                answer = Answer(text=each.text, call=each.call)
                self._files.add_answer(question, name, answer)
                verdicts.setdefault(answer.verdict_key, set()).add(each.is_correct)
            self.reused += len(reused)
            for key, found in verdicts.items() if trusts_labels else ():
                # Equal answers have one verdict; different labels of them are graded again.
                if len(found) == 1 and (verdict := found.pop()) is not None:
                    self._files.add_verdict(question, key, verdict)

    def forecast(self, pool: Sequence[str]) -> CallForecast:
        """The most calls that are left: those without a stored answer or rating."""
        calls = ratings = 0
        for question in self._pending:
            answers = self._files.answers(question)
            absent = len(pool) - len(answers)
            calls += absent
            texts = {each.text for each in answers.values() if each.text is not None}
            for evaluator in self._plan.evaluators(question.group):
                rated = (self._files.confidences(question, evaluator, text) for text in texts)
                ratings += absent + sum(not self._plan.is_complete(each) for each in rated)
        return CallForecast(candidates=calls, evaluators=ratings)

    async def label(
        self,
        settings: Settings,
        secrets: Secrets,
        grader: RequestGrader,
        concurrency: int,
        serving: AbstractAsyncContextManager[object],
    ) -> None:
        """Label the pending questions, several at once."""
        shared = iter(self._pending)  # by all workers, so that each question is taken once

        async def work(labeller: Labeller) -> None:
            for question in shared:
                self._finish(question, await labeller.label(question, self._files))
                if self.interrupted:
                    return

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving)
            await stack.enter_async_context(grader)
            recorder = None
            if self._plan.models and self._pending:
                recorder = ConfidenceRecorder(self._plan, settings, secrets)
                await stack.enter_async_context(recorder)
                await recorder.check()
            labeller = Labeller(settings, secrets, grader, recorder)
            await stack.enter_async_context(labeller)
            count = min(concurrency, len(self._pending))
            await self._workers.run(work(labeller) for _ in range(count))
            self.counts = labeller.counts()

    def _finish(self, question: Question, correct: Sequence[str] | None) -> None:
        if correct is not None:
            self._files.add_row(question, correct)
            self.unlabelled -= 1
        else:
            self._failed += 1
        self._show_progress()

    def _show_progress(self) -> None:
        """Show how many questions have a row; those that were tried in vain have none."""
        if self._desk is not None:
            self._desk.show(self._total - self.unlabelled, self._total)
        failed = f", {self._failed} failed" if self._failed else ""
        self._show(f"labelling{failed}", self._total - self.unlabelled, self._total)


def _digests(settings: Settings) -> Callable[[Question], Mapping[str, str]]:
    """The digests of what each candidate is sent for a question, but for its query."""
    reader = ConditionReader(settings.candidates)

    def read(question: Question) -> Mapping[str, str]:
        request = replayed(question, settings)
        return reader.read(request.fields, request.api_format.path).digests

    return read


async def _check(
    grader: RequestGrader, questions: Sequence[Question], source: str, settings: Settings
) -> None:
    """Refuse requests that are not served, and references that no answer could match.

    No call was made before.
    """
    problems: list[str] = []
    conditions = ConditionReader(settings.candidates).configured
    async with grader:
        for question in questions:
            if question.is_lost:
                continue
            try:
                request = replayed(question, settings)
                query = needs_of_body(request.fields, request.api_format.path, conditions)
                # A sampled request stays a row: without it the rows would not be drawn at random.
                if question.decision_id is None and not query.able(settings.candidates):
                    raise InputError(NO_CANDIDATE)
                await grader.check(question)
            except InputError as exc:
                problems.append(f"line {question.place}: {exc}")
    if problems:
        raise RowsError(source, problems)


def _identity(candidate: Candidate) -> dict[str, Any]:
    """The fields that make answers comparable; the address may change."""
    return {
        "name": candidate.name,
        "model": candidate.model or candidate.name,
        "parameters": candidate.parameters,
        **({"renames": candidate.renames} if candidate.renames else {}),
    }
