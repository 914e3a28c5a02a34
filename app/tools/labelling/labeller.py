"""Labeller: calls every candidate with one question, grades the answers and has them rated.

Every answer, verdict and confidence is stored at once, because it was paid for.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from app.errors import UpstreamError
from app.settings import Candidate, Secrets, Settings
from app.telemetry.metrics import Metrics
from app.tools.labelling.answer import Answer
from app.tools.labelling.confidences import MAX_FAILURES_IN_A_ROW as GIVEN_UP_AFTER
from app.tools.labelling.confidences import ConfidenceRecorder, RatingCounts
from app.tools.labelling.files import LabelFiles
from app.tools.labelling.judge import CAP_REACHED
from app.tools.labelling.request_grading import RequestGrader
from app.upstream.fleet import Fleet
from app.wire.candidate_payload import candidate_payload, request_fields
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.format import ApiFormat
from app.wire.request_limits import check_fields
from app.wire.responses import Responses
from racer_core.records.questions import Question
from racer_core.records.request import conversation_of, request_path
from racer_core.records.writer import messages

MAX_FAILURES_IN_A_ROW: Final = 20  # then a candidate is not called again in this run


@dataclass(slots=True)
class CallCounts:
    """Counts of calls and failures."""

    calls: int = 0  # to candidates
    failures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])  # by name
    ungraded: Counter[str] = field(default_factory=Counter[str])
    given_up: set[str] = field(default_factory=set[str])
    ratings: RatingCounts = field(default_factory=RatingCounts)

    def causes(self) -> Iterator[str]:
        """Why questions are left unlabelled, as text."""
        for name, kinds in sorted(self.failures.items()):
            for kind, count in sorted(kinds.items()):
                yield f"{name} failed {_times(count)}: {kind}"
        for name in sorted(self.given_up):
            yield f"{name} was given up after {MAX_FAILURES_IN_A_ROW} failures in a row"
        for name in sorted(self.ratings.given_up):
            yield f"the evaluator {name} was given up after {GIVEN_UP_AFTER} failures in a row"
        for kind, count in sorted(self.ungraded.items()):
            cure = ", which --judge-calls or --judge-cost sets" if kind == CAP_REACHED else ""
            yield f"grading failed {_times(count)}: {kind}{cure}"


class Labeller:
    """Labels questions, several at once. Open it before use; grader and recorder before it.

    Args:
        settings: The candidates and their decoding parameters.
        secrets: API keys of the candidates.
        grader: Decides which answers are correct.
        recorder: Has the answers rated by evaluators; None if no evaluator is asked.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        grader: RequestGrader,
        recorder: ConfidenceRecorder | None = None,
    ) -> None:
        self._settings = settings
        self._fleet = Fleet(settings, secrets, metrics=Metrics())
        self._grader = grader
        self._recorder = recorder
        self._failures_in_a_row: Counter[str] = Counter()
        self._counts = CallCounts()

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fleet.__aexit__()

    def counts(self) -> CallCounts:
        """The counts so far."""
        ratings = RatingCounts() if self._recorder is None else self._recorder.counts
        return replace(self._counts, ungraded=Counter(self._grader.failures), ratings=ratings)

    async def label(self, question: Question, store: LabelFiles) -> tuple[str, ...] | None:
        """Return the candidates with a correct answer; None if the question is not finished."""
        calls = (self._call(question, each, store) for each in self._settings.candidates)
        if not all(await asyncio.gather(*calls)):
            return None
        answers = store.answers(question)
        # Equal answers are graded once.
        distinct = {
            (each.text, each.is_tool_calls): each
            for each in answers.values()
            if each.text is not None
        }
        verdicts = await asyncio.gather(
            *(self._grade(question, each, store) for each in distinct.values())
        )
        texts = [text for text, _ in distinct]
        if None in verdicts or not await self._rate(question, list(dict.fromkeys(texts)), store):
            return None
        right = {key for key, verdict in zip(distinct, verdicts, strict=True) if verdict}
        return tuple(
            name for name, each in answers.items() if (each.text, each.is_tool_calls) in right
        )

    async def _call(self, question: Question, candidate: Candidate, store: LabelFiles) -> bool:
        """Make sure that the candidate's answer is stored; return whether it is."""
        name = candidate.name
        if name in store.answers(question):
            return True
        if self._failures_in_a_row[name] >= MAX_FAILURES_IN_A_ROW:
            self._counts.given_up.add(name)
            return False
        request = replayed(question, self._settings)
        self._counts.calls += 1
        try:
            reply = await self._fleet.ask(
                name,
                request.api_format,
                candidate_payload(request.fields, candidate, request.api_format.path),
                deadline=time.monotonic() + self._settings.fleet.attempts * candidate.timeout_s,
            )
            reply.check_not_empty()
        except UpstreamError as exc:
            if exc.is_of_request and question.decision_id is not None:
                # As in the sample: without such rows it would depend on what candidates take.
                store.add_answer(question, name, Answer(text=None))
                return True
            self._counts.failures.setdefault(name, Counter())[exc.kind] += 1
            self._failures_in_a_row[name] += 1
            return False
        self._failures_in_a_row[name] = 0
        store.add_answer(question, name, Answer(text=reply.answer, call=reply.call_record))
        return True

    async def _grade(self, question: Question, answer: Answer, store: LabelFiles) -> bool | None:
        stored = store.verdict(question, answer.verdict_key)
        if stored is not None:
            return stored
        verdict = await self._grader.correct(question, answer)
        if verdict is not None and self._grader.paid:
            store.add_verdict(question, answer.verdict_key, verdict)
        return verdict

    async def _rate(self, question: Question, texts: list[str], store: LabelFiles) -> bool:
        """Have every planned evaluator rate the answers; return whether each was asked."""
        recorder = self._recorder
        if recorder is None:
            return True
        query = routed_question(question, self._settings)

        async def rate(evaluator: str) -> bool:
            missing = [
                text
                for text in texts
                if not recorder.plan.is_complete(store.confidences(question, evaluator, text))
            ]
            if not missing:
                return True
            rated = await recorder.rate(evaluator, query, missing)
            for text, values in (rated or {}).items():
                store.add_confidences(question, evaluator, text, values)
            return rated is not None

        evaluators = recorder.plan.evaluators(question.group)
        return all(await asyncio.gather(*map(rate, evaluators)))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# Replay of questions: the request that candidates are sent, by the code that serves requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """A question as a request.

    Attributes:
        api_format: The API of candidates to which it goes.
        fields: The fields of its body that every candidate is sent.
    """

    api_format: ApiFormat
    fields: Mapping[str, Any]


def replayed(question: Question, settings: Settings) -> ReplayedRequest:
    """The request of a question; of a query, a chat of plain turns and nothing else.

    Raises:
        InputError: The gateway would refuse the request.
    """
    request = question.request
    if request is None:
        fields = {"messages": messages(question.earlier, question.query)}
        return ReplayedRequest(api_format=Chat(), fields=fields)
    path = request_path(request)
    fields = request_fields(request, path, allowed=settings.limits.extra_fields)
    check_fields(fields, settings.limits)
    n = fields.get("n")
    choices = n if isinstance(n, int) and n > 0 else 1
    formats: Mapping[str, ApiFormat] = {
        Chat.path: Chat(n=choices),
        Completions.path: Completions(n=choices),
        Responses.path: Responses(),
    }
    return ReplayedRequest(api_format=formats[path], fields=fields)


def routed_question(question: Question, settings: Settings) -> str:
    """The text that the router reads, which an evaluator is shown when serving."""
    request = replayed(question, settings)
    conversation = conversation_of(request.fields, request.api_format.path)
    group = question.group
    text = conversation.text(settings.text_of(group), settings.leave_out_of(group))
    return text[: settings.limits.query_chars]
