"""Calls to candidates and evaluators, with load balancing, circuit breakers and retries.

Every failure is an UpstreamError. No call outlives its deadline. A cancelled call closes its
connection, so that the server stops working on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

from app.concurrency.memory_budget import MemoryBudget
from app.concurrency.threads import SMALL_BYTES, off_loop
from app.errors import ModelMissing, UpstreamError, UpstreamTimeout
from app.json_output import dump_json
from app.settings import Secrets, Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import CallSpan, Tracer
from app.upstream.affinity import conversation_key
from app.upstream.circuit_breaker import ALL_CALLERS, STATES
from app.upstream.http_client import UpstreamAnswer, UpstreamClient
from app.upstream.replicas import Replica, Target, open_targets
from app.upstream.reply import Completion, Endpoint, Reply, completion
from app.upstream.retries import Retries, is_replica_fault, is_unreachable
from app.upstream.stream import CandidateStream
from app.wire import parsing
from app.wire.format import ApiFormat, Choice
from app.wire.token_bounds import BelievedCounts

log = logging.getLogger(__name__)

T = TypeVar("T")

GATEWAY: Final = ""  # the caller of calls that no API key causes

ModelAndUsage = tuple[object, Mapping[str, int]]  # as the answer reports them


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHealth:
    """The state of a replica."""

    place: int  # index among the candidate's replicas; its URL is not shown
    state: str  # "in", "probation" or "out"
    outstanding: int


class Fleet:
    """All candidates and evaluators. Open it before use, on the event loop that uses it."""

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        *,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._targets = open_targets(settings, secrets)
        self._candidates = settings.pool
        self._longest_s = settings.limits.deadline_s
        self._max_tokens = settings.limits.max_tokens
        self._reasoning = settings.aggregation.reasoning
        self._client = UpstreamClient(settings.fleet, settings.limits)
        self._health_checks = HealthChecks(self._client)
        self._retries = Retries(settings.fleet, random.Random())
        self._metrics = metrics
        self._tracer = tracer
        self._overstating = set[str]()  # targets that were warned of

    async def __aenter__(self) -> Self:
        for name in self._candidates:
            self._metrics.candidate_up.labels(name).set_function(partial(self._is_up, name))
            for state in STATES:
                count = partial(self._count, name, state)
                self._metrics.replicas.labels(name, state).set_function(count)
        self._metrics.buffered_bytes.set_function(lambda: self._client.buffers.used)
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._health_checks.close()
        await self._client.__aexit__(*error)

    def reconfigure(self, settings: Settings, secrets: Secrets) -> None:
        """Call what another configuration says; calls in flight go on as they began.

        The pool has the same candidates. Replicas whose settings are the same keep their circuit
        breakers and calls.
        """
        before, self._targets = self._targets, open_targets(settings, secrets, self._targets)
        self._max_tokens = settings.limits.max_tokens
        for target in before.values():
            for replica in target.replicas.all:
                if not self._is_used(target.name, replica):
                    self._health_checks.forget(replica)
                    self._client.forget(replica)

    async def ask(
        self,
        candidate: str,
        api_format: ApiFormat,
        payload: Mapping[str, Any],
        *,
        deadline: float,
        caller: str = GATEWAY,
        session: str | None = None,
        meter: CallMeter | None = None,
    ) -> Reply:
        """Call one candidate for a whole answer.

        Args:
            candidate: Its name.
            api_format: Encodes the request and reads the answer.
            payload: The request.
            deadline: A ``time.monotonic()``; one attempt has the candidate's own limit, too.
            caller: The name of the API key that causes the call.
            session: Id of its request's session, whose calls go to one replica.
            meter: Takes its attempts; None: they are not measured.

        Raises:
            UpstreamError: No usable answer; its ``kind`` says why.
        """
        started = time.monotonic()
        with self._open_call(
            candidate, api_format.path, payload, deadline, caller, session=session, meter=meter
        ) as call:
            body, choices = await self._read_answer(
                call,
                partial(self._body_and_choices, call, api_format),
                report=lambda parsed: (parsed[0].get("model"), api_format.usage(parsed[0])),
            )
        return Reply.of(
            candidate,
            body,
            api_format,
            choices,
            seconds=time.monotonic() - started,
            attempts=len(call.tried),
        )

    @asynccontextmanager
    async def stream(
        self,
        candidate: str,
        api_format: ApiFormat,
        payload: Mapping[str, Any],
        *,
        deadline: float,
        caller: str = GATEWAY,
        session: str | None = None,
        meter: CallMeter | None = None,
    ) -> AsyncGenerator[CandidateStream]:
        """Call one candidate for a stream. The context opens with the first piece.

        Until then failed attempts are repeated as in :meth:`ask`. Reading raises UpstreamError
        when the stream ends before the answer does. Arguments and errors as in :meth:`ask`.
        """
        with self._open_call(
            candidate, api_format.path, payload, deadline, caller, session=session, meter=meter
        ) as call:
            attempt, stream = await self._begin_stream(call, api_format)
            with attempt:
                yield stream

    async def complete(
        self,
        endpoint: Endpoint,
        payload: Mapping[str, Any],
        *,
        deadline: float,
        caller: str = GATEWAY,
    ) -> Completion:
        """Call an evaluator for a text completion. Raises as :meth:`ask`."""
        name = endpoint.target
        with self._open_call(name, "completions", payload, deadline, caller, endpoint) as call:
            return await self._read_answer(
                call,
                lambda data: completion(endpoint.name, call.read_json(data)),
                report=lambda done: (None, done.usage),
            )

    async def forward(
        self,
        candidate: str,
        path: str,
        payload: Mapping[str, Any],
        *,
        deadline: float,
        caller: str = GATEWAY,
        meter: CallMeter | None = None,
    ) -> dict[str, Any]:
        """Send a document and return the answered object. Raises as :meth:`ask`."""
        with self._open_call(candidate, path, payload, deadline, caller, meter=meter) as call:
            return await self._read_answer(call, call.read_json, report=_model_and_usage)

    def down(self, caller: str = GATEWAY) -> frozenset[str]:
        """Return the candidates to route around: all their replicas are ejected for this caller.

        Empty when all candidates are down: a call is then better than none.
        """
        down = frozenset(
            name for name in self._candidates if self._targets[name].replicas.are_out_for(caller)
        )
        return down if len(down) < len(self._candidates) else frozenset()

    def health(self) -> dict[str, list[ReplicaHealth]]:
        """Return the state of every replica, by candidate."""
        return {
            name: [
                ReplicaHealth(place=place, state=each.breaker.state, outstanding=each.outstanding)
                for place, each in enumerate(self._targets[name].replicas.all)
            ]
            for name in self._candidates
        }

    def _is_used(self, name: str, replica: Replica) -> bool:
        """Whether the configuration in force still has a replica."""
        return replica in self._targets[name].replicas.all

    def _is_up(self, name: str) -> float:
        return float(not self._targets[name].replicas.are_out)

    def _count(self, name: str, state: str) -> float:
        return sum(each.breaker.state == state for each in self._targets[name].replicas.all)

    def _body_and_choices(
        self, call: UpstreamCall, api_format: ApiFormat, data: bytes
    ) -> tuple[dict[str, Any], Sequence[Choice]]:
        """Parse a whole answer; runs on a thread where it is long."""
        body = call.counts.of(api_format.body(call.name, data))
        choices = api_format.choices(body)
        return body, [choice.without_reasoning(self._reasoning) for choice in choices]

    def _open_call(
        self,
        name: str,
        path: str,
        payload: Mapping[str, Any],
        deadline: float,
        caller: str,
        endpoint: Endpoint | None = None,
        session: str | None = None,
        meter: CallMeter | None = None,
    ) -> UpstreamCall:
        """Encode a payload; as a context, the call counts its bytes as buffered."""
        target, shown = self._targets[name], endpoint.name if endpoint else name
        conversation = None
        if target.replicas.keep_conversations:
            conversation = conversation_key(payload, path, caller=caller, session=session)
        return UpstreamCall(
            name=shown,
            caller=caller,
            target=target,
            path=path,
            model=payload.get("model"),
            data=dump_json(payload),
            timeout_s=endpoint.timeout_s if endpoint else target.timeout_s,
            is_timed_in_all=endpoint is not None,
            deadline=deadline,
            conversation=conversation,
            tried=[],
            buffers=self._client.buffers,
            counts=BelievedCounts(
                payload,
                path,
                {} if endpoint else target.renames,
                self._max_tokens,
                partial(self._overstated, shown),
            ),
            meter=meter,
        )

    def _overstated(self, name: str) -> None:
        """Count an answer whose token counts cannot be; the first of each target is logged."""
        self._metrics.overstatements.labels(name).inc()
        if name not in self._overstating:
            self._overstating.add(name)
            log.warning(
                "%s reports more tokens than its call can have used: the largest possible number "
                "is charged, and marked `estimated`; see racer_candidate_overstatements_total",
                name,
            )

    async def _read_answer(
        self, call: UpstreamCall, parse: Callable[[bytes], T], report: Callable[[T], ModelAndUsage]
    ) -> T:
        self._retries.record_call(call.target.name, call.caller)
        while True:
            try:
                with Attempt(call, self._end) as attempt:
                    answer = await self._begin(attempt)
                    if answer.is_stream:
                        raise parsing.invalid(call.name)
                    parsed = await off_loop(parse, await answer.read_all())
                    if call.span is not None:
                        call.span.set_response(*report(parsed))
                    return parsed
            except UpstreamError as exc:
                await self._prepare_retry(call, exc)

    async def _begin_stream(
        self, call: UpstreamCall, api_format: ApiFormat
    ) -> tuple[ExitStack, CandidateStream]:
        self._retries.record_call(call.target.name, call.caller)
        while True:
            try:
                with ExitStack() as opened:
                    answer = await self._begin(opened.enter_context(Attempt(call, self._end)))
                    stream = CandidateStream(call.name, api_format, answer, call.counts, call.span)
                    await stream.begin()
                    return opened.pop_all(), stream
            except UpstreamError as exc:
                await self._prepare_retry(call, exc)

    async def _prepare_retry(self, call: UpstreamCall, exc: UpstreamError) -> None:
        """Wait until a failed attempt may be repeated. Raises its error where it is not."""
        pause = self._pause_s(call, exc)
        if pause is None:
            raise exc
        self._metrics.retries.labels(call.name).inc()
        await asyncio.sleep(pause)

    def _pause_s(self, call: UpstreamCall, exc: UpstreamError) -> float | None:
        if not call.tried or self._is_skipped(call):
            return None
        return self._retries.pause_s(
            call.target.name,
            exc,
            caller=call.caller,
            attempt=len(call.tried),
            left_s=call.deadline - time.monotonic(),
            elsewhere=call.target.replicas.have_other_than(call.tried, call.caller),
        )

    def _is_skipped(self, call: UpstreamCall) -> bool:
        """Whether a target that is down for the caller is not called.

        True for an evaluator, and for a candidate while at least one other candidate is up.
        """
        name = call.target.name
        if not call.target.replicas.are_out_for(call.caller):
            return False
        return name not in self._candidates or name in self.down(call.caller)

    async def _begin(self, attempt: Attempt) -> UpstreamAnswer:
        """Send a call to one of the replicas."""
        call, target = attempt.call, attempt.call.target
        replica = await target.replicas.acquire(
            call.tried,
            caller=call.caller,
            deadline=call.deadline,
            even_if_out=lambda: not self._is_skipped(call),
            conversation=call.conversation,
        )
        attempt.replica = replica  # from here on it is released
        attempt.started = started = time.monotonic()
        call.tried.append(replica)
        call.span = span = self._begin_span(call, replica)
        if call.is_timed_in_all and len(call.tried) == 1:  # not while it waits for its slot
            call.deadline = min(call.deadline, started + call.timeout_s)
        attempt.limit_s = limit_s = min(call.timeout_s, call.deadline - started)
        if limit_s <= 0:
            raise UpstreamTimeout(f"{call.name} could not be called in time")
        attempt.answer = answer = await self._client.post(
            target,
            replica,
            call.path,
            call.data,
            limit_s=limit_s,
            may_reconnect=len(call.tried) == 1,
            trace=None if span is None else span.headers,
        )
        return answer

    def _end(self, attempt: Attempt, replica: Replica, exc: BaseException | None) -> None:
        """Record an attempt in metrics, traces and the replica's circuit breaker."""
        call, answer = attempt.call, attempt.answer
        call.target.replicas.release(replica)
        if answer is not None:
            answer.close()
        now = time.monotonic()
        outcome = "cancelled"
        if isinstance(exc, UpstreamError):
            outcome = exc.kind
            self._record_failure(call, replica, exc, attempt.limit_s)
        elif exc is None and answer is not None and answer.is_complete:
            outcome = "ok"
            replica.breaker.record_success(now)
        self._metrics.call_seconds_of(call.name).observe(now - attempt.started)
        self._metrics.calls_of(call.name, outcome).inc()
        if call.meter is not None and attempt.limit_s > 0:  # it was sent
            call.meter.attempted(call.name, now - attempt.started, exc)
        if call.span is not None:
            call.span.end(outcome)

    def _begin_span(self, call: UpstreamCall, replica: Replica) -> CallSpan | None:
        if self._tracer is None:
            return None
        return self._tracer.call(
            candidate=call.name,
            model=call.model,
            path=call.path,
            base_url=replica.base_url,
            attempt=len(call.tried),
        )

    def _record_failure(
        self, call: UpstreamCall, replica: Replica, exc: UpstreamError, limit_s: float
    ) -> None:
        had_full_time = limit_s >= min(call.target.timeout_s, self._longest_s) / 2
        if not is_replica_fault(exc, had_full_time=had_full_time):
            replica.breaker.record_answer()
            return
        if replica.breaker.record_failure(
            time.monotonic(),
            caller=call.caller,
            payload=hash(call.data),
            unreachable=is_unreachable(exc),
            timed_out=isinstance(exc, UpstreamTimeout),
        ):
            self._eject(call, replica, exc)

    def _eject(self, call: UpstreamCall, replica: Replica, exc: UpstreamError) -> None:
        target = call.target
        if not self._is_used(target.name, replica):
            return
        self._metrics.ejections.labels(target.name).inc()
        missing = call.model if isinstance(exc, ModelMissing) else None
        self._health_checks.watch(target, replica, None if missing is None else str(missing))
        if target.name in self._candidates:  # failures of evaluators are logged by their caller
            log.warning(
                "a replica of %s is out for %s after a failure (%s)%s",
                target.name,
                "all callers" if replica.is_out_for(ALL_CALLERS) else f"the key {call.caller}",
                exc.kind,
                "; it was the last one" if target.replicas.are_out else "",
            )


def _model_and_usage(body: Mapping[str, Any]) -> ModelAndUsage:
    return body.get("model"), parsing.counts(body.get("usage"), parsing.CHAT_USAGE)


class HealthChecks:
    """Checks ejected replicas in the background, one task each, until they are readmitted."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def watch(self, target: Target, replica: Replica, missing: str | None = None) -> None:
        """Check a replica when its pause is over, and again until a check passes.

        The pause of an earlier ejection, which a success ended, may be longer than this one.
        A check passes only if the server lists the model that was missing.
        """
        if (earlier := self._tasks.get(replica)) is not None:
            earlier.cancel()
        task = asyncio.create_task(self._check(target, replica, missing))
        self._tasks[replica] = task
        task.add_done_callback(lambda _: self._forget(replica, task))

    def forget(self, replica: Replica) -> None:
        """End the check of a replica that is called no more."""
        if (task := self._tasks.get(replica)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel all checks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, target: Target, replica: Replica, missing: str | None) -> None:
        while (until := replica.breaker.out_until) is not None:
            if (left := until - time.monotonic()) > 0:
                await asyncio.sleep(left)
            elif await self._client.is_alive(target, replica, missing):
                replica.breaker.record_passed_check()
            else:
                replica.breaker.record_failed_check(time.monotonic())

    def _forget(self, replica: Replica, task: asyncio.Task[None]) -> None:
        if self._tasks.get(replica) is task:
            del self._tasks[replica]


# A call to a candidate or evaluator, and one attempt of it.


class CallMeter(Protocol):
    """Measures the calls of one request."""

    def attempted(self, candidate: str, seconds: float, exc: BaseException | None) -> None:
        """Take an attempt that ended.

        Args:
            candidate: Its candidate.
            seconds: Its duration, without the time that it waited to be sent.
            exc: What ended it; None: it was answered.
        """
        ...


@dataclass(slots=True, kw_only=True)
class UpstreamCall:
    """A call to a target, over all its attempts."""

    name: str  # in errors and metrics
    caller: str
    target: Target
    path: str
    model: object  # the requested model
    data: bytes
    timeout_s: float  # of an attempt, or of all of them
    is_timed_in_all: bool
    deadline: float
    conversation: bytes | None  # its key; None: a single turn, or one replica
    tried: list[Replica]
    buffers: MemoryBudget  # of large payloads and answers
    counts: BelievedCounts
    meter: CallMeter | None = None
    span: CallSpan | None = None  # of the latest attempt

    def __enter__(self) -> Self:
        """Count a large payload as buffered. Raises UpstreamError."""
        self.buffers.reserve(self._buffered)
        return self

    def __exit__(self, *_: object) -> None:
        self.buffers.release(self._buffered)

    def read_json(self, data: bytes) -> dict[str, Any]:
        """A whole answer of no API format. Raises UpstreamError."""
        return self.counts.of(parsing.sent(self.name, data))

    @property
    def _buffered(self) -> int:
        size = len(self.data)
        return size if size > SMALL_BYTES else 0


class Attempt:
    """One attempt of a call: a context in which it is sent and its answer read.

    A class, since generators as contexts cost more than the call itself.

    Args:
        call: The call.
        end: Records what came of it, once a replica was chosen; gets the exception that ended the
            context.
    """

    __slots__ = ("_end", "answer", "call", "limit_s", "replica", "started")

    started: float  # a ``time.monotonic()``
    limit_s: float

    def __init__(
        self, call: UpstreamCall, end: Callable[[Attempt, Replica, BaseException | None], None]
    ) -> None:
        self.call = call
        self.replica: Replica | None = None
        self.answer: UpstreamAnswer | None = None
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        if self.replica is not None:
            self._end(self, self.replica, exc)
