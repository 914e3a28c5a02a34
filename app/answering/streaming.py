"""Streaming: answers as server-sent events, passed through live or after the merge."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Final

from app.answering.decision_log import DecisionLog
from app.answering.dispatch import Dispatcher
from app.answering.fan_out import FanOutResult
from app.answering.outcome import Outcome, answer_reasons, stream_headers
from app.answering.request import RequestState
from app.answering.token_usage import TokenMeter
from app.concurrency.background_stream import BackgroundStream
from app.errors import UpstreamError
from app.monitoring.decision_record import RequestEnd
from app.settings import Settings
from app.upstream.reply import Reply
from app.wire import sse
from app.wire.format import AnswerKind, ApiFormat
from racer_core.aggregation.reasoning import AnswerReader, ReasoningFilter
from racer_core.types import Aggregate

FIRST_EVENT_WAIT_S: Final = 0.2  # headers wait this long, so that early failures keep their status
MAX_PIECES: Final = 20_000  # of a sampled stream; of a longer one the candidate is called again
HELD_CHARS: Final = 256 * 2**10  # of a stream whose answer has not begun: bounds its memory

OpenStream = tuple[BackgroundStream, dict[str, str]]  # events, and the headers of the response


class Streaming:
    """Opens streams and records the live ones."""

    def __init__(
        self, dispatcher: Dispatcher, decision_log: DecisionLog, settings: Settings
    ) -> None:
        self._dispatcher = dispatcher
        self._decision_log = decision_log
        self._comment_every_s = settings.limits.comment_every_s
        self._reasoning = settings.aggregation.reasoning

    async def live(self, state: RequestState, results: FanOutResult) -> OpenStream | None:
        """Pass the events of the only selected candidate through, once its answer has begun.

        Args:
            state: The request.
            results: Takes its failure, or its blank answer, where its answer never begins.

        Returns:
            None where its answer never begins; nothing was recorded then.
        """
        name = state.selected[0]
        stream = BackgroundStream(self._live_events(state, name, results))
        started = time.monotonic()
        try:
            await stream.started()
        except UpstreamError as exc:
            results.failures[name] = exc
        if name in results.failures or name in results.replies:
            results.seconds += time.monotonic() - started
            return None
        return stream, {**stream_headers(state), "x-racer-served-by": name}

    async def merged(
        self, state: RequestState, answer: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> OpenStream:
        """Send comments while the candidates answer, then the merged answer.

        Args:
            state: The request.
            answer: Calls, merges and records it.

        Raises:
            UpstreamError: No candidate answered, within ``FIRST_EVENT_WAIT_S``.
        """
        stream = BackgroundStream(self._merged_events(state, answer))
        await stream.started(FIRST_EVENT_WAIT_S)
        return stream, stream_headers(state)

    async def _live_events(
        self, state: RequestState, name: str, results: FanOutResult
    ) -> AsyncGenerator[bytes]:
        """One candidate's events as they come; the last one carries the ``racer`` object.

        Yields none where the answer is blank from its beginning to its end: ``results`` takes it.
        """
        api_format = state.request.api_format
        overhead_ms = (time.monotonic() - state.started) * 1e3
        writer = api_format.live(decision_id=state.decision_id, model=name)
        meter = TokenMeter(api_format, state.request.fields)
        beginning = _Beginning(api_format, self._reasoning)
        pieces_of_sample = None if state.shadow_rate is None else list[dict[str, Any]]()
        has_begun = False
        try:
            with meter.charging(state.request.spend):
                async with (
                    self._dispatcher.stream(state, name) as pieces,
                    contextlib.aclosing(pieces) as closing,
                ):
                    async for piece in closing:
                        meter.count(piece)
                        if pieces_of_sample is not None and len(pieces_of_sample) < MAX_PIECES:
                            pieces_of_sample.append(piece)
                        for each in beginning.released(piece):
                            for event in writer.feed(each):
                                has_begun = True
                                yield event
                if beginning.held:
                    reply = beginning.reply(name, time.monotonic() - state.started)
                    reply.check_not_empty()
                    meter.waive()
                    results.replies[name] = reply
                    results.forms[name] = None
                    return
            outcome = _live_outcome(state, name, writer.usage, overhead_ms, beginning.answer_kind)
            ending = writer.close(outcome.as_json())
        except UpstreamError as exc:
            if has_begun:  # else another candidate may be called instead
                failed = FanOutResult(failures={name: exc})
                self._decision_log.record_unanswered(state, failed, RequestEnd.FAILED)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            left = FanOutResult(cancelled=[name])
            self._decision_log.record_unanswered(state, left, RequestEnd.CANCELLED)
            raise
        self._decision_log.record_decision(outcome, state.request)
        if pieces_of_sample is not None:
            seconds = time.monotonic() - state.started
            answered = beginning.answered(name, pieces_of_sample, seconds)
            self._decision_log.sample(state, answered)
        for event in ending:
            yield event

    async def _merged_events(
        self, state: RequestState, answer: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> AsyncGenerator[bytes]:
        task = asyncio.create_task(answer())
        waiting = f"{len(state.called)} candidates are answering"
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._comment_every_s)
                if not task.done():
                    yield sse.comment(waiting)
            outcome = task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async for event in _whole_events(outcome, state.request.api_format):
            yield event


def whole_stream(state: RequestState, outcome: Outcome) -> OpenStream:
    """The stream of a finished answer."""
    return BackgroundStream(_whole_events(outcome, state.request.api_format)), outcome.headers


async def _whole_events(outcome: Outcome, api_format: ApiFormat) -> AsyncGenerator[bytes]:
    for event in api_format.whole_stream(outcome.body, outcome.as_json()):
        yield event


class _Beginning:
    """The pieces of a stream up to the first one with a part of an answer.

    Servers send the role first, and some models white space. Until the answer begins, the request
    can be answered by another candidate.
    """

    def __init__(self, api_format: ApiFormat, reasoning: ReasoningFilter) -> None:
        self._api_format = api_format
        self._reasoning = reasoning
        self._readers: dict[Hashable, AnswerReader] = {}  # of its texts
        self._has_other = False  # an answer beside its texts
        self.kind = AnswerKind.NOTHING  # of the answer so far, with its reasoning
        self.held: list[dict[str, Any]] = []
        self._held_chars = 0
        self._is_over = False

    def released(self, piece: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """The pieces that can go out now; at most ``HELD_CHARS`` are held back."""
        texts = self._api_format.texts(piece)
        for name, text in texts.items():
            if name not in self._readers:
                self._readers[name] = AnswerReader(self._reasoning, keeps_text=False)
            self._readers[name].feed(text)
        if self.kind is not AnswerKind.ANSWER or not (texts or self._has_other):
            kind = self._api_format.kind(piece)
            self.kind = max(self.kind, kind)
            self._has_other |= kind is AnswerKind.ANSWER and not texts
        if self._is_over:
            return (piece,)
        self.held.append(piece)
        self._held_chars += len(str(piece))
        if self.kind < AnswerKind.WITHHELD and self._held_chars < HELD_CHARS:
            return ()
        self._is_over = True
        pieces, self.held = self.held, []
        return pieces

    @property
    def answer_kind(self) -> AnswerKind:
        """How much of an answer there is without its reasoning."""
        has_answer = self._has_other or any(each.has_answer for each in self._readers.values())
        if self.kind is AnswerKind.ANSWER and not has_answer:
            return AnswerKind.WITHHELD
        return self.kind

    def answered(self, name: str, pieces: Sequence[dict[str, Any]], seconds: float) -> FanOutResult:
        """The answer of a finished stream; none of one that is long, or not of texts alone."""
        if (
            len(pieces) >= MAX_PIECES
            or self._has_other
            or self.answer_kind is not AnswerKind.ANSWER
        ):
            return FanOutResult()
        body = self._api_format.joined(pieces)
        choices = [
            each.without_reasoning(self._reasoning) for each in self._api_format.choices(body)
        ]
        reply = Reply.of(name, body, self._api_format, choices, seconds=seconds)
        return FanOutResult(replies={name: reply})

    def reply(self, name: str, seconds: float) -> Reply:
        """The answer of a finished stream that never began."""
        body = self._api_format.joined(self.held)
        return Reply.of(name, body, self._api_format, seconds=seconds)


def _live_outcome(
    state: RequestState,
    name: str,
    usage: Mapping[str, int],
    overhead_ms: float,
    kind: AnswerKind,
) -> Outcome:
    seconds = time.monotonic() - state.started
    reply = Reply(candidate=name, body={}, choices=(), usage=usage, seconds=seconds, kind=kind)
    results = FanOutResult(replies={name: reply})
    return Outcome(
        decision_id=state.decision_id,
        routed=state.routed,
        certificate=state.routed.certificate.with_reasons(*answer_reasons(state, results)),
        answers=(reply,),
        merged=Aggregate(winner=name, text="", votes={}),
        overhead_ms=overhead_ms,
        sampling_rate=state.sampling_rate,
        shadow_rate=state.shadow_rate,
        turn=state.turn,
    )
