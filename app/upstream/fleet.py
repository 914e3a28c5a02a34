"""Asks candidates and evaluators: of several replicas, and again where that helps.

A call fails with one UpstreamError, whatever happened. Nothing outlives its deadline, and whoever
stops waiting closes the connection: a server that nobody listens to stops working.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from app.concurrency.threads import off_loop
from app.errors import UpstreamError, UpstreamTimeout
from app.json_output import dump_json
from app.settings import Secrets, Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import CallSpan, Tracer
from app.upstream.circuit_breaker import STATES
from app.upstream.completions import Completion, Endpoint, completion
from app.upstream.failures import is_fault, is_unreachable
from app.upstream.health_checks import HealthChecks
from app.upstream.http_client import UpstreamAnswer, UpstreamClient
from app.upstream.replicas import Replica, Target
from app.upstream.reply import Reply
from app.upstream.retries import Retries
from app.upstream.stream import pieces_of
from app.upstream.targets import open_targets
from app.wire import parsing
from app.wire.format import ApiFormat

log = logging.getLogger(__name__)

T = TypeVar("T")

ReportedUsage = tuple[object, Mapping[str, int]]  # by a candidate: its model's name, and tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHealth:
    """How a replica stands."""

    place: int  # among its candidate's replicas, from 0: URLs are nobody's business
    state: str  # "in", "probation" or "out"
    outstanding: int


@dataclass(slots=True, kw_only=True)
class _Call:
    """One thing to be asked, over all its attempts."""

    name: str  # in errors and metrics
    target: Target
    path: str
    model: object  # as it is asked for
    data: bytes
    timeout_s: float
    deadline: float
    tried: list[Replica]
    span: CallSpan | None = None  # of the latest call


class Fleet:
    """Everybody who can be asked. Open it before use, on the loop where it is used."""

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._targets = open_targets(settings, secrets)
        self._candidates = settings.pool
        self._longest_s = settings.limits.deadline_s
        self._calls = UpstreamClient(settings.fleet, settings.limits)
        self._probes = HealthChecks(self._calls)
        self._retries = Retries(settings.fleet, random.Random())
        self._metrics = metrics
        self._tracer = tracer

    async def __aenter__(self) -> Self:
        for name in self._candidates:
            self._metrics.candidate_up.labels(name).set_function(partial(self._is_up, name))
            for state in STATES:
                count = partial(self._count, name, state)
                self._metrics.replicas.labels(name, state).set_function(count)
        self._metrics.buffered_bytes.set_function(lambda: self._calls.buffered_bytes)
        await self._calls.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._probes.close()
        await self._calls.__aexit__(*error)

    async def ask(
        self, candidate: str, api_format: ApiFormat, payload: Mapping[str, Any], *, deadline: float
    ) -> Reply:
        """Ask one candidate for a whole answer.

        Args:
            candidate: Its name.
            api_format: How it is asked, and how its answer is read.
            payload: What it is sent.
            deadline: A ``time.monotonic()``; one call has the candidate's own limit, too.

        Raises:
            UpstreamError: No usable answer; its ``kind`` says why.
        """
        started = time.monotonic()
        target = self._targets[candidate]
        with self._errand(target, api_format.path, payload, deadline) as errand:
            body = await self._whole(
                errand,
                partial(api_format.body, candidate),
                told=lambda body: (body.get("model"), api_format.usage(body)),
            )
        return Reply.of(
            candidate,
            body,
            api_format,
            seconds=time.monotonic() - started,
            attempts=len(errand.tried),
        )

    @asynccontextmanager
    async def stream(
        self, candidate: str, api_format: ApiFormat, payload: Mapping[str, Any], *, deadline: float
    ) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """Ask one candidate for a stream. The context opens with the first piece.

        Until then the call is made again as :meth:`ask` does. Iterating raises UpstreamError when
        the stream ends before the answer: a cut is not an end. Arguments and errors as above.
        """
        target = self._targets[candidate]
        with self._errand(target, api_format.path, payload, deadline) as errand:

            async def once() -> tuple[AsyncExitStack, AsyncGenerator[dict[str, Any]]]:
                async with AsyncExitStack() as call:
                    answer = await call.enter_async_context(self._call(errand))
                    rest = pieces_of(candidate, api_format, answer)
                    pieces = _with_first(await anext(rest), rest)
                    if errand.span is not None:
                        pieces = _overheard(pieces, errand.span, api_format)
                    return call.pop_all(), pieces

            call, pieces = await self._persistently(errand, once)
            async with call, contextlib.aclosing(pieces):
                yield pieces

    async def complete(
        self, endpoint: Endpoint, payload: Mapping[str, Any], *, deadline: float
    ) -> Completion:
        """Have a prompt continued. Raises as :meth:`ask`."""
        target = self._targets[endpoint.target]
        with self._errand(target, "completions", payload, deadline, endpoint) as errand:
            return await self._whole(
                errand, partial(completion, endpoint.name), told=lambda done: (None, done.usage)
            )

    async def forward(
        self, candidate: str, path: str, payload: Mapping[str, Any], *, deadline: float
    ) -> dict[str, Any]:
        """Send a document and return the object that is answered. Raises as :meth:`ask`."""
        with self._errand(self._targets[candidate], path, payload, deadline) as errand:
            return await self._whole(
                errand, partial(parsing.json_object, candidate), told=_told_of_document
            )

    def down(self) -> frozenset[str]:
        """Candidates that should be routed around: all their replicas are out.

        Empty when that is everybody: then it is better to try.
        """
        down = frozenset(name for name in self._candidates if self._targets[name].replicas.are_out)
        return down if len(down) < len(self._candidates) else frozenset()

    def health(self) -> dict[str, list[ReplicaHealth]]:
        """How every replica stands, by candidate."""
        return {
            name: [
                ReplicaHealth(place=place, state=each.circuit.state, outstanding=each.outstanding)
                for place, each in enumerate(self._targets[name].replicas.all)
            ]
            for name in self._candidates
        }

    def _is_up(self, name: str) -> float:
        return float(not self._targets[name].replicas.are_out)

    def _count(self, name: str, state: str) -> float:
        return sum(each.circuit.state == state for each in self._targets[name].replicas.all)

    @contextlib.contextmanager
    def _errand(
        self,
        target: Target,
        path: str,
        payload: Mapping[str, Any],
        deadline: float,
        endpoint: Endpoint | None = None,
    ) -> Generator[_Call]:
        """What is to be asked, as bytes that count until it is answered."""
        data = dump_json(payload)
        with self._calls.holding(data):
            yield _Call(
                name=endpoint.name if endpoint else target.name,
                target=target,
                path=path,
                model=payload.get("model"),
                data=data,
                timeout_s=endpoint.timeout_s if endpoint else target.timeout_s,
                deadline=deadline,
                tried=[],
            )

    async def _whole(
        self, errand: _Call, parse: Callable[[bytes], T], told: Callable[[T], ReportedUsage]
    ) -> T:
        async def once() -> T:
            async with self._call(errand) as answer:
                if answer.streams:
                    raise parsing.invalid(errand.name)
                parsed = await off_loop(parse, await answer.whole())
                if errand.span is not None:
                    errand.span.set_response(*told(parsed))
                return parsed

        return await self._persistently(errand, once)

    async def _persistently(self, errand: _Call, once: Callable[[], Awaitable[T]]) -> T:
        """Call until it succeeds, or until another call is not worth it."""
        self._retries.called()
        while True:
            try:
                return await once()
            except UpstreamError as exc:
                pause = self._pause_s(errand, exc)
                if pause is None:
                    raise
            self._metrics.retries.labels(errand.name).inc()
            await asyncio.sleep(pause)

    def _pause_s(self, errand: _Call, exc: UpstreamError) -> float | None:
        if not errand.tried or self._is_given_up(errand.target):
            return None
        return self._retries.pause_s(
            exc,
            attempt=len(errand.tried),
            left_s=errand.deadline - time.monotonic(),
            elsewhere=errand.target.replicas.have_other_than(errand.tried),
        )

    def _is_given_up(self, target: Target) -> bool:
        """Whether it is down, and there is somebody else to ask."""
        if not target.replicas.are_out:
            return False
        return target.name not in self._candidates or target.name in self.down()

    @asynccontextmanager
    async def _call(self, errand: _Call) -> AsyncGenerator[UpstreamAnswer]:
        """One call, counted: in metrics, and for or against the replica."""
        target = errand.target
        replica = await target.replicas.take(
            errand.tried, deadline=errand.deadline, even_if_out=not self._is_given_up(target)
        )
        errand.tried.append(replica)
        errand.span = span = self._begun(errand, replica)
        started = time.monotonic()
        limit_s = min(errand.timeout_s, errand.deadline - started)
        outcome = "cancelled"
        try:
            if limit_s <= 0:
                raise UpstreamTimeout(f"{errand.name} could not be asked in time")
            answer = await self._calls.post(
                target,
                replica,
                errand.path,
                errand.data,
                limit_s=limit_s,
                may_reconnect=len(errand.tried) == 1,
                trace=None if span is None else span.headers,
            )
            with contextlib.closing(answer):
                yield answer
            if answer.is_whole:
                outcome = "ok"
                replica.circuit.succeeded()
        except UpstreamError as exc:
            outcome = exc.kind
            self._blame(errand, replica, exc, limit_s)
            raise
        finally:
            target.replicas.give_back(replica)
            self._metrics.call_seconds.labels(errand.name).observe(time.monotonic() - started)
            self._metrics.calls.labels(errand.name, outcome).inc()
            if span is not None:
                span.end(outcome)

    def _begun(self, errand: _Call, replica: Replica) -> CallSpan | None:
        if self._tracer is None:
            return None
        return self._tracer.call(
            candidate=errand.name,
            model=errand.model,
            path=errand.path,
            base_url=replica.base_url,
            attempt=len(errand.tried),
        )

    def _blame(self, errand: _Call, replica: Replica, exc: UpstreamError, limit_s: float) -> None:
        patient = limit_s >= min(errand.target.timeout_s, self._longest_s) / 2
        if not is_fault(exc, patient=patient):
            replica.circuit.answered()
            return
        if replica.circuit.failed(
            time.monotonic(), payload=hash(errand.data), unreachable=is_unreachable(exc)
        ):
            self._note_out(errand.target, replica, exc)

    def _note_out(self, target: Target, replica: Replica, exc: UpstreamError) -> None:
        self._metrics.ejections.labels(target.name).inc()
        self._probes.watch(target, replica)
        if target.name in self._candidates:  # whoever asked an evaluator says so
            log.warning(
                "a replica of %s is out after a failure (%s)%s",
                target.name,
                exc.kind,
                "; it was the last one" if target.replicas.are_out else "",
            )


def _told_of_document(body: Mapping[str, Any]) -> ReportedUsage:
    return body.get("model"), parsing.counts(body.get("usage"), parsing.CHAT_USAGE)


async def _overheard(
    pieces: AsyncGenerator[dict[str, Any]], span: CallSpan, api_format: ApiFormat
) -> AsyncGenerator[dict[str, Any]]:
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            span.set_response(piece.get("model"), api_format.usage(piece))
            yield piece


async def _with_first(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]
) -> AsyncGenerator[dict[str, Any]]:
    async with contextlib.aclosing(rest):
        yield first
        async for piece in rest:
            yield piece
