"""Streaming: answers as server-sent events, passed through live or after the merge."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.answering.decision_log import DecisionLog
from app.answering.dispatch import Dispatcher
from app.answering.fan_out import FanOutResult
from app.answering.outcome import Outcome, stream_headers, used
from app.answering.repeats import StreamRecording, keep
from app.answering.request import RequestState
from app.answering.token_usage import TokenMeter
from app.concurrency.background_stream import BackgroundStream
from app.errors import UpstreamError
from app.monitoring.decisions.record import RequestEnd
from app.settings import Settings
from app.upstream.reply import Reply
from app.wire.event_template import Piece, TextEvent, parsed
from app.wire.format import AnswerKind, ApiFormat
from racer_core.aggregation.reasoning import AnswerReader, ReasoningFilter
from racer_core.types import Aggregate

FIRST_EVENT_WAIT_S: Final = 0.2  # headers wait this long, so that early failures keep their status
MAX_PIECES: Final = 20_000  # of a sampled stream; of a longer one the candidate is called again
HELD_CHARS: Final = 256 * 2**10  # of a stream whose answer has not begun: bounds its memory

OpenStream = tuple[BackgroundStream, dict[str, str]]  # events, and the headers of the response
Answer = Callable[[], Coroutine[Any, Any, Outcome]]  # calls, merges and records


class Streaming:
    """Opens streams and records the live ones."""

    def __init__(
        self, dispatcher: Dispatcher, decision_log: DecisionLog, settings: Settings
    ) -> None:
        self._dispatcher = dispatcher
        self._decision_log = decision_log
        self._comment_every_s = settings.limits.comment_every_s
        self._reasoning = settings.aggregation.reasoning

    async def live(
        self, state: RequestState, name: str, results: FanOutResult
    ) -> OpenStream | None:
        """Pass the events of the only candidate through, once its answer has begun.

        Args:
            state: The request.
            name: The candidate.
            results: Takes its failure, or its blank answer, where its answer never begins.

        Returns:
            None where its answer never begins; nothing was recorded then.
        """
        stream = BackgroundStream(self._live_events(state, name, results))
        await _starts(stream)
        if results.has(name):
            return None
        return stream, {**stream_headers(state), "x-racer-served-by": name}

    async def merged(
        self, state: RequestState, results: FanOutResult, answer: Answer
    ) -> OpenStream:
        """Send comments while the candidates answer, then the merged answer.

        A named reference that is called alone, after other candidates, is passed through.

        Args:
            state: The request.
            results: Takes answers and failures.
            answer: Calls, merges and records it.

        Raises:
            UpstreamError: No candidate answered, within ``FIRST_EVENT_WAIT_S``.
        """
        if state.rounds is None:
            stream = BackgroundStream(self._merged_events(state, answer))
        else:
            stream = BackgroundStream(self._rounds_events(state, results, answer))
        await stream.started(FIRST_EVENT_WAIT_S)
        return stream, stream_headers(state)

    async def _live_events(
        self, state: RequestState, name: str, results: FanOutResult
    ) -> AsyncGenerator[bytes]:
        """One candidate's events as they come; the last one carries the ``racer`` object.

        Yields none where the answer is blank from its beginning to its end: ``results`` takes it.
        It does not change ``results`` otherwise: they are the answers of earlier rounds.
        """
        api_format = state.request.api_format
        started = time.monotonic()
        overhead_ms = (started - state.started - results.seconds) * 1e3
        writer = api_format.live(decision_id=state.decision_id, model=name)
        ended = None if state.meter is None else partial(state.meter.streamed, name)
        meter = TokenMeter(api_format, state.request.fields, ended)
        beginning = _Beginning(api_format, self._reasoning)
        sample = None if state.shadow_rate is None else list[dict[str, Any]]()
        slot = state.slot
        recording = None if slot is None else StreamRecording(slot.cache.settings.max_bytes)
        has_begun = False
        try:
            with meter.charging(state.request.spend):
                async with self._dispatcher.stream(state, name) as stream:
                    while pieces := await stream.read():
                        events = list[bytes]()
                        for piece in pieces:
                            meter.count(piece)
                            if sample is not None and len(sample) < MAX_PIECES:
                                sample.append(parsed(piece))
                            if recording is not None:
                                recording.add(piece)
                            for each in beginning.released(piece):
                                events += writer.feed(each)
                        if events:
                            has_begun = True
                            yield b"".join(events)
                if beginning.held:
                    reply = beginning.reply(name, time.monotonic() - started)
                    reply.check_not_empty()
                    meter.waive()
                    results.replies[name] = reply
                    results.forms[name] = None
                    results.seconds += reply.seconds
                    return
            reply = Reply(
                candidate=name,
                body={},
                choices=(),
                usage=writer.usage,
                seconds=time.monotonic() - started,
                kind=beginning.answer_kind,
            )
            outcome = _live_outcome(state, results, reply, overhead_ms)
            ending = writer.close(outcome.as_json(), _tokens(state, results, outcome))
        except UpstreamError as exc:
            if not has_begun:  # another candidate may be called instead
                results.failures[name] = exc
                results.seconds += time.monotonic() - started
                raise
            failed = results.joined(FanOutResult(failures={name: exc}))
            if state.rounds is not None:
                state.rounds.break_off(failed)
            self._decision_log.record_unanswered(state, failed, RequestEnd.FAILED)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            left = results.joined(FanOutResult(cancelled=[name]))
            self._decision_log.record_unanswered(state, left, RequestEnd.CANCELLED)
            raise
        passed = FanOutResult()
        if sample is not None:
            passed = beginning.answered(name, sample, reply.seconds)
        self._decision_log.record(state, results, outcome, passed)
        if recording is not None:
            keep(state, outcome, recording)
        yield b"".join(ending)

    async def _merged_events(self, state: RequestState, answer: Answer) -> AsyncGenerator[bytes]:
        task = asyncio.create_task(answer())
        async with contextlib.aclosing(self._comments(state, task)) as comments:
            async for comment in comments:
                yield comment
        async for event in _whole_events(task.result(), state.request.api_format):
            yield event

    async def _rounds_events(
        self, state: RequestState, results: FanOutResult, answer: Answer
    ) -> AsyncGenerator[bytes]:
        """Comments while rounds run; then the reference's stream, or the merged answer."""
        task = asyncio.create_task(self._dispatcher.call(state.leaving_reference(), results))
        try:
            async with contextlib.aclosing(self._comments(state, task)) as comments:
                async for comment in comments:
                    yield comment
        except (asyncio.CancelledError, GeneratorExit):
            self._decision_log.record_cancelled(state, results)
            raise
        task.result()
        name = state.only
        events = self._merged_events(state, answer)
        if name is not None:
            results.skipped.clear()  # it is called now
            stream = BackgroundStream(self._live_events(state, name, results))
            try:
                while not await _starts(stream, self._comment_every_s):
                    yield state.request.api_format.waiting(f"{name} is answering")
            except GeneratorExit:
                await stream.stop()
                raise
            if not results.has(name):
                events = stream.items(_raised)
        async with contextlib.aclosing(events) as closing:
            async for event in closing:
                yield event

    async def _comments(
        self, state: RequestState, task: asyncio.Task[Any]
    ) -> AsyncGenerator[bytes]:
        """Comments until a task is done; it is cancelled with them."""
        waiting = f"{len(state.called)} candidates are answering"
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._comment_every_s)
                if not task.done():
                    yield state.request.api_format.waiting(waiting)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def whole_stream(state: RequestState, outcome: Outcome) -> OpenStream:
    """The stream of a finished answer."""
    return BackgroundStream(_whole_events(outcome, state.request.api_format)), outcome.headers


def repeated_stream(outcome: Outcome, events: bytes) -> OpenStream:
    """The stream of an answer that was given before."""
    return BackgroundStream(_at_once(events)), outcome.headers


async def _at_once(events: bytes) -> AsyncGenerator[bytes]:
    yield events


async def _whole_events(outcome: Outcome, api_format: ApiFormat) -> AsyncGenerator[bytes]:
    yield b"".join(api_format.whole_stream(outcome.body, outcome.as_json()))


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

    def released(self, piece: Piece) -> Sequence[Piece]:
        """The pieces that can go out now; at most ``HELD_CHARS`` are held back."""
        if isinstance(piece, TextEvent):
            if self._is_over and self.kind is AnswerKind.ANSWER and piece.text:
                self._read(piece.template.choice, piece.text)
                return (piece,)
            piece = piece.parsed()
        texts = self._api_format.texts(piece)
        for name, text in texts.items():
            self._read(name, text)
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

    def _read(self, name: Hashable, text: str) -> None:
        if name not in self._readers:
            self._readers[name] = AnswerReader(self._reasoning, keeps_text=False)
        self._readers[name].feed(text)

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
    state: RequestState, results: FanOutResult, reply: Reply, overhead_ms: float
) -> Outcome:
    """The outcome of a request whose last answer passed through."""
    name = reply.candidate
    called = {name, *results.replies, *results.failures, *results.cancelled}
    skipped = [each for each in state.called if each not in called]
    passed = FanOutResult(replies={name: reply}, forms={name: None}, skipped=skipped)
    results = results.joined(passed)
    votes: Mapping[str, float] = {}
    if state.rounds is not None:
        state.rounds.report(results)
        votes = state.rounds.votes
    merged = Aggregate(winner=name, text="", votes=votes)
    return Outcome.of(state, results, merged=merged, overhead_ms=overhead_ms)


def _tokens(
    state: RequestState, results: FanOutResult, outcome: Outcome
) -> Mapping[str, int] | None:
    """Tokens of all calls; None where the last one's are those to report."""
    if state.request.options.usage == "winner" or not results.replies:
        return None
    return used(outcome.answers, outcome.ratings)


async def _starts(stream: BackgroundStream, timeout_s: float | None = None) -> bool:
    """Whether a candidate's stream begins or ends in this time; its failure is not raised."""
    try:
        return await stream.started(timeout_s)
    except UpstreamError:
        return True


def _raised(exc: Exception) -> bytes:
    raise exc
