"""The whole story of a request: route, call the set, merge, certify. No framework types."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app import sse, translate
from app.errors import Abstained, NoAnswerError, UpstreamError
from app.evaluator import Evaluator, Ratings
from app.outcome import Outcome, routing_headers
from app.pump import Pump
from app.reasons import CANDIDATE_FAILED, Reason
from app.routing import Routed, RoutingService
from app.schemas import RacerOptions
from app.settings import Settings
from app.translate import Query
from app.upstream import Reply, Upstream, finishes
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import aggregate
from racer_core.types import Aggregate, CandidateAnswer

log = logging.getLogger(__name__)

REFUSAL = (
    "No model of the pool is likely to answer this correctly, so none was asked. "
    "Rephrase the question, or ask for a smaller risk."
)
FIRST_BYTE_WAIT_S = 0.2  # a stream's headers wait so long, so that early failure keeps its status


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, translated."""

    query: Query
    options: RacerOptions
    fields: Mapping[str, Any]  # what candidates are sent
    include_usage: bool = False  # the client wants a usage chunk at the end of a stream


class ChatService:
    """Answers chat requests."""

    def __init__(
        self,
        settings: Settings,
        routing: RoutingService,
        upstream: Upstream,
        stacked: StackedVote | None,
    ) -> None:
        self._settings = settings
        self._stacked = stacked
        self._routing = routing
        self._upstream = upstream
        self._evaluator = Evaluator(settings, upstream)
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}

    async def check(self) -> None:
        """Ask the evaluators before serving. Raises as :meth:`Evaluator.check`."""
        await self._evaluator.check()

    async def answer(self, ask: Ask) -> Outcome:
        """Route, call the set at once, merge what arrived.

        Raises:
            Abstained: Nobody was selected and ``on_abstain`` is ``error``.
            UpstreamError: No selected candidate answered.
        """
        started = time.monotonic()
        decision_id, routed = await self._route(ask)
        if not routed.decision.selected:
            return _refusal(decision_id, routed, started)
        return await self._call_and_merge(ask, decision_id, routed, started)

    async def decide(self, query: Query, options: RacerOptions) -> Outcome:
        """Route only: no candidate is called."""
        started = time.monotonic()
        routed = await self._routing.route(query, options)
        return Outcome(
            decision_id=_new_id(),
            routed=routed,
            certificate=routed.certificate,
            body={},
            overhead_ms=(time.monotonic() - started) * 1e3,
        )

    async def pinned(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ask one candidate by name, without routing: there is no certificate."""
        payload = translate.candidate_payload(fields, self._candidates[name])
        reply = await self._upstream.ask(name, payload)
        return {**reply.body, "model": name}

    async def pinned_stream(
        self, name: str, fields: Mapping[str, Any], stream_options: Mapping[str, Any] | None
    ) -> Pump:
        """Stream one candidate by name."""
        options = {"stream_options": stream_options} if stream_options else {}
        pump = Pump(self._pass_through(name, {**fields, **options}))
        await pump.started()
        return pump

    async def stream(self, ask: Ask) -> tuple[Pump, dict[str, str]]:
        """Events and headers. One selected candidate streams live; several are merged first."""
        started = time.monotonic()
        decision_id, routed = await self._route(ask)
        match routed.decision.selected:
            case ():
                outcome = _refusal(decision_id, routed, started)
                pump = Pump(_whole(outcome, ask))
                headers = outcome.headers
            case (only,):
                pump = Pump(self._live(ask, only, decision_id, routed, started))
                await pump.started()
                headers = routing_headers(decision_id, routed, routed.certificate.header)
                headers["x-racer-served-by"] = only
            case _:
                pump = Pump(self._merged(ask, decision_id, routed, started))
                await pump.started(FIRST_BYTE_WAIT_S)
                headers = routing_headers(decision_id, routed, "pending")
        return pump, headers

    async def _route(self, ask: Ask) -> tuple[str, Routed]:
        routed = await self._routing.route(ask.query, ask.options)
        if routed.decision.abstained:
            match ask.options.on_abstain or self._settings.routing.on_abstain:
                case "error":
                    raise Abstained("the router abstained: no candidate is likely to be right")
                case "strongest":
                    routed = _strongest(routed)
                case "refuse":
                    pass
        return _new_id(), routed

    async def _call_and_merge(
        self, ask: Ask, decision_id: str, routed: Routed, started: float
    ) -> Outcome:
        selected = routed.decision.selected
        called = time.monotonic()
        replies, failures = await self._call(selected, ask.fields)
        waited = time.monotonic() - called
        if not replies:
            raise _nobody_answered(failures)
        texts = {reply.candidate: reply.text or "" for reply in replies}
        ratings = await self._evaluator.rate(ask.query.text, texts, ask.options.group)
        merged = self._merge(routed, texts, ratings)
        certificate = routed.certificate.because(
            *(f"{CANDIDATE_FAILED}:{name}" for name in failures)
        )
        winner = next(reply for reply in replies if reply.candidate == merged.winner)
        usage = translate.summed_usage(replies)
        usage |= {name: count + ratings.usage.get(name, 0) for name, count in usage.items()}
        body = {**winner.body, "id": decision_id, "model": winner.candidate}
        return Outcome(
            decision_id=decision_id,
            routed=routed,
            certificate=certificate,
            body=body if ask.options.usage == "winner" else {**body, "usage": usage},
            replies=tuple(replies),
            failures={name: exc.kind for name, exc in failures.items()},
            merged=merged,
            ratings=ratings,
            overhead_ms=(time.monotonic() - started - waited - ratings.seconds) * 1e3,
        )

    async def _call(
        self, selected: Sequence[str], fields: Mapping[str, Any]
    ) -> tuple[list[Reply], dict[str, UpstreamError]]:
        """Call everyone at once; a failure is noted and does not fail the others."""
        answers = await asyncio.gather(
            *(
                self._upstream.ask(
                    name, translate.candidate_payload(fields, self._candidates[name])
                )
                for name in selected
            ),
            return_exceptions=True,
        )
        replies: list[Reply] = []
        failures: dict[str, UpstreamError] = {}
        for name, answer in zip(selected, answers, strict=True):
            if isinstance(answer, Reply):
                replies.append(answer)
            elif isinstance(answer, UpstreamError):
                failures[name] = answer
            elif isinstance(answer, Exception):  # ours, but no reason to fail the others
                log.error("a call to %s failed unexpectedly", name, exc_info=answer)
                failures[name] = UpstreamError(f"{name} could not be asked")
            else:
                raise answer
        return replies, failures

    def _merge(self, routed: Routed, texts: Mapping[str, str], ratings: Ratings) -> Aggregate:
        scores = dict(zip(routed.decision.selected, routed.decision.scores, strict=True))
        rule = self._settings.aggregation
        return aggregate(
            [
                CandidateAnswer(
                    candidate=name, text=text, score=scores[name], weight=ratings.weights.get(name)
                )
                for name, text in texts.items()
            ],
            method=rule.method,
            weight=rule.weight,
            equality=rule.equality,
            temperature=rule.temperature,
            options=rule.options,
            stacked=self._stacked,
        )

    async def _live(
        self, ask: Ask, name: str, decision_id: str, routed: Routed, started: float
    ) -> AsyncGenerator[bytes]:
        """One candidate's chunks as they come; the ``racer`` object rides on the last one.

        The finishing chunk waits for the token counts that servers send after it.
        """
        fields = {**ask.fields, "stream_options": {"include_usage": True}}
        overhead_ms = (time.monotonic() - started) * 1e3
        usage: dict[str, Any] | None = None
        finish: dict[str, Any] | None = None
        async with contextlib.aclosing(self._chunks(name, fields)) as chunks:
            async for chunk in chunks:
                chunk |= {"id": decision_id, "model": name}
                usage = chunk.pop("usage", None) or usage
                if not chunk["choices"]:
                    continue  # the usage chunk: ours comes last, and only if it was asked for
                if finish is not None:  # several choices finish one by one
                    yield sse.event(finish)
                finish = chunk if finishes(chunk) else None
                if finish is None:
                    yield sse.event(chunk)
        if finish is None:
            raise UpstreamError(f"{name} stopped in mid-answer", kind="upstream_disconnected")
        seconds = time.monotonic() - started
        outcome = Outcome(
            decision_id=decision_id,
            routed=routed,
            certificate=routed.certificate,
            body={},
            replies=(Reply(candidate=name, body={"usage": usage}, seconds=seconds),),
            merged=Aggregate(winner=name, text="", votes={}),
            overhead_ms=overhead_ms,
        )
        if ask.include_usage:
            yield sse.event(finish)
            finish = {**finish, "choices": [], "usage": usage}
        yield sse.event({**finish, "racer": outcome.as_json()})
        yield sse.DONE

    async def _pass_through(self, name: str, fields: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(self._chunks(name, fields)) as chunks:
            async for chunk in chunks:
                yield sse.event({**chunk, "model": name})
        yield sse.DONE

    async def _chunks(self, name: str, fields: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        payload = translate.candidate_payload(fields, self._candidates[name]) | {"stream": True}
        async with (
            self._upstream.stream(name, payload) as chunks,
            contextlib.aclosing(chunks) as closing,
        ):
            async for chunk in closing:
                yield chunk

    async def _merged(
        self, ask: Ask, decision_id: str, routed: Routed, started: float
    ) -> AsyncGenerator[bytes]:
        """Comments while the set answers, then the winner's answer as chunks."""
        task = asyncio.create_task(self._call_and_merge(ask, decision_id, routed, started))
        waiting = f"{len(routed.decision.selected)} candidates are answering"
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._settings.limits.comment_every_s)
                if not task.done():
                    yield sse.comment(waiting)
            outcome = task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async for event in _whole(outcome, ask):
            yield event


async def _whole(outcome: Outcome, ask: Ask) -> AsyncGenerator[bytes]:
    """A finished answer as a stream; the last chunk carries the ``racer`` object."""
    *chunks, last = translate.completion_chunks(outcome.body)
    if ask.include_usage:
        chunks.append(last)
        last = {**last, "choices": list[Any](), "usage": outcome.body.get("usage")}
    for chunk in chunks:
        yield sse.event(chunk)
    yield sse.event({**last, "racer": outcome.as_json()})
    yield sse.DONE


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


def _refusal(decision_id: str, routed: Routed, started: float) -> Outcome:
    return Outcome(
        decision_id=decision_id,
        routed=routed,
        certificate=routed.certificate,
        body=translate.refusal_body(decision_id, int(time.time()), REFUSAL),
        overhead_ms=(time.monotonic() - started) * 1e3,
    )


def _strongest(routed: Routed) -> Routed:
    """Call the best candidate although the router abstained; the certificate says so."""
    best = routed.strongest
    return replace(
        routed,
        decision=replace(
            routed.decision, selected=(best,), scores=(routed.pool_scores.get(best, 0.0),)
        ),
        certificate=routed.certificate.because(Reason.ABSTAINED_STRONGEST),
    )


def _nobody_answered(failures: Mapping[str, UpstreamError]) -> UpstreamError:
    """The common failure when all failed alike, so that the status says what a retry can do."""
    told = ", ".join(f"{name} ({exc.kind})" for name, exc in failures.items())
    message = f"no selected candidate answered: {told}"
    lasting = all(exc.lasting for exc in failures.values())
    first = next(iter(failures.values()))
    if {exc.kind for exc in failures.values()} == {first.kind}:
        return type(first)(message, kind=first.kind)
    return NoAnswerError(message, lasting=lasting)
