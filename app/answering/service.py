"""The whole story of a request: route, call the set, merge, certify. No framework types."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from app.answering import answer_forms, fan_out
from app.answering.answer_forms import AnswerReader
from app.answering.evaluator import Evaluator, Ratings
from app.answering.fan_out import FanOutResult
from app.answering.outcome import Outcome, routing_headers, used
from app.answering.overrides import Overrides
from app.answering.request import InferenceRequest, RequestState
from app.answering.token_usage import TokenMeter, answer_tokens, prompt_tokens
from app.answering.vote import Vote
from app.concurrency.background_stream import BackgroundStream
from app.errors import Abstained, NoAnswerError, UpstreamError
from app.ids import Ids
from app.monitoring.decision_record import RequestEnd
from app.monitoring.monitor import Monitor
from app.routing.certificate import Certificate
from app.routing.decision import CertifiedDecision
from app.routing.reasons import Reason
from app.routing.risk_levels import RiskLevels
from app.routing.service import RoutingRequest, RoutingService
from app.settings import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.upstream.fleet import Fleet
from app.upstream.reply import Reply
from app.wire import sse
from app.wire.candidate_payload import candidate_payload
from app.wire.format import ApiFormat
from racer_core.aggregation.stacked import StackedVote
from racer_core.types import Aggregate

REFUSAL: Final = (
    "No model of the pool is likely to answer this correctly, so none answers. "
    "Rephrase the question, or ask for a smaller risk."
)
FIRST_BYTE_WAIT_S: Final = 0.2  # a stream's headers wait, so that early failure keeps its status


class ChatService:
    """Answers requests of every surface."""

    def __init__(
        self,
        settings: Settings,
        routing: RoutingService,
        fleet: Fleet,
        reader: AnswerReader,
        monitor: Monitor,
        stacked: StackedVote | None,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._tracer = tracer
        self._stacked = stacked
        self._routing = routing
        self._fleet = fleet
        self._reader = reader
        self._monitor = monitor
        self._evaluator = Evaluator(settings, fleet)
        self._overrides = Overrides(settings)
        self._ids = Ids()
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}

    async def check(self) -> None:
        """Ask the evaluators before serving. Raises as :meth:`Evaluator.check`."""
        await self._evaluator.check()

    async def answer(self, request: InferenceRequest) -> Outcome:
        """Route, call the set at once, merge what arrived.

        Raises:
            Abstained: Nobody was selected and ``on_abstain`` is ``error``.
            UpstreamError: No selected candidate answered.
        """
        return await self._told(await self._turn(request), FanOutResult())

    async def decide(self, ask: RoutingRequest) -> Outcome:
        """Route only: no candidate is called."""
        started = time.monotonic()
        deadline = self._deadline(ask.options.timeout, started)
        routed = await self._routed(ask, deadline)
        outcome = Outcome(
            decision_id=f"chatcmpl-{self._ids.fresh()}",
            routed=routed,
            certificate=routed.certificate,
            overhead_ms=(time.monotonic() - started) * 1e3,
        )
        return self._remembered(outcome, ask)

    async def levels(self, ask: RoutingRequest) -> RiskLevels:
        """What every alpha would select; nobody is called, nothing is remembered or counted."""
        levels = await self._routing.levels(ask, self._deadline(ask.options.timeout))
        return replace(levels, routed=levels.routed.because(*self._monitor.stale))

    async def stream(self, request: InferenceRequest) -> tuple[BackgroundStream, dict[str, str]]:
        """Events and headers. One selected candidate streams live; several are merged first."""
        state = await self._turn(request)
        if request.leader and len(state.selected) > 1:
            led = state.routed.calling(state.selected[:1], Reason.LEADER)
            state = replace(state, routed=led)
        match state.selected:
            case () if state.shadow_rate is None:
                outcome = await self._told(state, FanOutResult())
                return BackgroundStream(_whole(outcome, request.api_format)), outcome.headers
            case (only,) if state.shadow_rate is None:
                pump = BackgroundStream(self._live(state, only))
                try:
                    await pump.started()
                except UpstreamError as exc:
                    return await self._instead(state, only, exc)
                headers = routing_headers(
                    state.decision_id, state.routed, state.routed.certificate.header
                )
                return pump, {**headers, "x-racer-served-by": only}
            case _:
                return await self._merged_pump(state, FanOutResult())

    async def _instead(
        self, state: RequestState, failed: str, exc: UpstreamError
    ) -> tuple[BackgroundStream, dict[str, str]]:
        """What the surviving pool selects, where the only selected candidate failed at once."""
        results = FanOutResult(failures={failed: exc})
        try:
            names = await self._instead_of(state, results)
        except asyncio.CancelledError:
            self._left_off(state, results, RequestEnd.CANCELLED)
            raise
        if not names:
            self._left_off(state, results, RequestEnd.FAILED)
            raise exc
        return await self._merged_pump(replace(state, instead=tuple(names)), results)

    async def _merged_pump(
        self, state: RequestState, results: FanOutResult
    ) -> tuple[BackgroundStream, dict[str, str]]:
        pump = BackgroundStream(self._merged(state, results))
        await pump.started(FIRST_BYTE_WAIT_S)
        return pump, routing_headers(state.decision_id, state.routed, "pending")

    async def _turn(self, request: InferenceRequest) -> RequestState:
        """Route a request, and apply what may override the threshold's set."""
        started = time.monotonic()
        deadline = self._deadline(request.options.timeout, started)
        routed = await self._routed(request, deadline)
        decision_id = request.api_format.id_prefix + self._ids.fresh()
        kind = answer_forms.kind_of(
            self._settings.aggregation.equality, request.query.text, request.fields
        )
        try:
            routed = self._overrides.applied(request, routed, kind)
        except Abstained:
            failed = Outcome(
                decision_id=decision_id,
                routed=routed,
                certificate=routed.certificate,
                ended=RequestEnd.FAILED,
            )
            self._note(failed, request)
            raise
        self._trace(decision_id, routed, routed.certificate)
        shadow = self._monitor.sampled(decision_id, routed.fingerprint, routed.certificate.reasons)
        return RequestState(
            request=request,
            decision_id=decision_id,
            routed=routed,
            vote=Vote(
                rule=self._settings.aggregation,
                kind=kind,
                reader=self._reader,
                stacked=self._stacked,
                scores=routed.vote_scores,
                members=routed.decision.selected,
                deadline=deadline,
                everyone=shadow or request.options.explain,
            ),
            started=started,
            deadline=deadline,
            shadow_rate=self._settings.watching.shadow_rate if shadow else None,
        )

    async def _routed(self, ask: RoutingRequest, deadline: float) -> CertifiedDecision:
        """Route, and see what the watcher knows: of the calibration, and of this query."""
        routed = (await self._routing.route(ask, deadline)).because(*self._monitor.stale)
        repeated = self._monitor.repeated(routed.fingerprint, routed.certificate.reasons)
        return replace(routed, repeated=True) if repeated else routed

    def _deadline(self, timeout_s: float | None, started: float | None = None) -> float:
        most = self._settings.limits.deadline_s
        begun = time.monotonic() if started is None else started
        return begun + (most if timeout_s is None else min(timeout_s, most))

    async def _told(self, state: RequestState, results: FanOutResult) -> Outcome:
        """The answer, remembered once, however it ends; ``got`` takes what candidates gave."""
        try:
            outcome = await self._answered(state, results)
        except UpstreamError:
            self._left_off(state, results, RequestEnd.FAILED)
            raise
        except asyncio.CancelledError:
            state.request.spend(len(results.cancelled) * prompt_tokens(state.request.fields))
            self._left_off(state, results, RequestEnd.CANCELLED)
            raise
        _charge(state, results, outcome)
        return self._remembered(outcome, state.request)

    def _left_off(self, state: RequestState, results: FanOutResult, ended: RequestEnd) -> None:
        """Remember a decision that came to no answer, and charge the answers that were there."""
        outcome = self._outcome(state, results, ended=ended)
        _charge(state, results, outcome)
        self._note(outcome, state.request)

    def _outcome(
        self,
        state: RequestState,
        results: FanOutResult,
        answer: Mapping[str, Any] | None = None,
        ratings: Ratings | None = None,
        **more: Any,
    ) -> Outcome:
        """What the candidates came to; ``answer`` is what is returned, before it is stamped."""
        api_format, options = state.request.api_format, state.request.options
        answers = tuple(
            results.replies[name]
            for name in dict.fromkeys((*state.selected, *results.replies))  # best first
            if name in results.replies
        )
        ratings = ratings or Ratings()
        body: dict[str, Any] = {}
        if answer is not None:
            merged: Aggregate | None = more.get("merged")
            body = api_format.stamped(
                answer,
                decision_id=state.decision_id,
                model=answer["model"] if merged is None else merged.winner,
                usage=None if options.usage == "winner" else used(answers, ratings),
            )
        return Outcome(
            decision_id=state.decision_id,
            routed=state.routed,
            certificate=state.routed.certificate.because(*_failed(state, results)),
            body=body,
            answers=answers,
            ratings=ratings,
            failures={name: exc.kind for name, exc in results.failures.items()},
            cancelled=tuple(results.cancelled),
            unasked=tuple(results.unasked),
            shadow_rate=state.shadow_rate,
            explain=options.explain,
            **more,
        )

    async def _answered(self, state: RequestState, results: FanOutResult) -> Outcome:
        called = time.monotonic()
        if state.called:
            await self._collect_all(state, results)
        waited = time.monotonic() - called
        if not state.selected:
            return self._refusal(state, results, waited)
        if not results.replies:
            raise _nobody_answered(results.failures)
        with self._aggregating(len(results.replies)):
            return await self._merge(state, results, waited)

    async def _collect_all(self, state: RequestState, results: FanOutResult) -> None:
        """The set's answers; where one failed that could matter, those of the surviving pool's."""
        await self._collect(state, state.called, results)
        failed = [name for name in results.failures if name in state.selected]
        if failed and state.instead is None and not state.vote.settled(results):
            await self._collect(state, await self._instead_of(state, results), results)

    def _refusal(self, state: RequestState, results: FanOutResult, waited: float) -> Outcome:
        """Nobody was selected. Whoever was called for a sample is counted, and says nothing."""
        refusal = state.request.api_format.refusal(state.decision_id, REFUSAL)
        overhead_ms = (time.monotonic() - state.started - waited) * 1e3
        return self._outcome(state, results, refusal, overhead_ms=overhead_ms)

    async def _instead_of(self, state: RequestState, results: FanOutResult) -> list[str]:
        """Whom the surviving pool's set adds, as far as the limit on calls goes."""
        if self._settings.routing.observe is not None:  # no other traffic than without the router
            return []
        surviving = await self._routing.without(state.routed, state.request, results.failures)
        known = {*results.replies, *results.failures}
        left = max(0, self._settings.limits.fan_out - len(known))
        return [name for name in surviving if name not in known][:left]

    async def _collect(
        self, state: RequestState, names: Sequence[str], results: FanOutResult
    ) -> None:
        api_format = state.request.api_format

        async def call(name: str) -> Reply:
            payload = candidate_payload(
                state.request.fields, self._candidates[name], api_format.path
            )
            return await self._fleet.ask(name, api_format, payload, deadline=state.deadline)

        await fan_out.fan_out(names, call=call, vote=state.vote, into=results)

    async def _merge(self, state: RequestState, results: FanOutResult, waited: float) -> Outcome:
        request, vote = state.request, state.vote
        voters = _voters(state, results)
        medoids = await vote.cluster(results, voters)
        ratings = await self._evaluator.rate(
            request.query.text,
            {name: results.replies[name].text for name in voters},
            state.routed.group,
            results.forms,
            deadline=state.deadline,
        )
        merged = vote.elect(results, voters, ratings, medoids)
        return self._outcome(
            state,
            results,
            results.replies[merged.winner].body,
            ratings,
            merged=merged,
            overhead_ms=(time.monotonic() - state.started - waited - ratings.seconds) * 1e3,
        )

    async def _live(self, state: RequestState, name: str) -> AsyncGenerator[bytes]:
        """One candidate's events as they come; the ``racer`` object rides on the last one."""
        api_format = state.request.api_format
        payload = api_format.streamed(
            candidate_payload(state.request.fields, self._candidates[name], api_format.path)
        )
        overhead_ms = (time.monotonic() - state.started) * 1e3
        live = api_format.live(decision_id=state.decision_id, model=name)
        meter = TokenMeter(api_format, state.request.fields)
        spoke = False
        try:
            with meter.charging(state.request.spend):
                async with (
                    self._fleet.stream(
                        name, api_format, payload, deadline=state.deadline
                    ) as pieces,
                    contextlib.aclosing(pieces) as closing,
                ):
                    async for piece in closing:
                        meter.saw(piece)
                        for event in live.feed(piece):
                            spoke = True
                            yield event
            outcome = self._of_live(state, name, live.usage, overhead_ms)
            ending = live.close(outcome.as_json())
        except UpstreamError as exc:
            if spoke:  # else somebody may be asked instead
                self._left_off(state, FanOutResult(failures={name: exc}), RequestEnd.FAILED)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._left_off(state, FanOutResult(cancelled=[name]), RequestEnd.CANCELLED)
            raise
        self._remembered(outcome, state.request)
        for event in ending:
            yield event

    def _of_live(
        self, state: RequestState, name: str, usage: Mapping[str, int], overhead_ms: float
    ) -> Outcome:
        seconds = time.monotonic() - state.started
        return Outcome(
            decision_id=state.decision_id,
            routed=state.routed,
            certificate=state.routed.certificate,
            answers=(Reply(candidate=name, body={}, said=(), usage=usage, seconds=seconds),),
            merged=Aggregate(winner=name, text="", votes={}),
            overhead_ms=overhead_ms,
        )

    async def _merged(self, state: RequestState, results: FanOutResult) -> AsyncGenerator[bytes]:
        """Comments while the set answers, then the winner's answer as events."""
        task = asyncio.create_task(self._told(state, results))
        waiting = f"{len(state.called)} candidates are answering"
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._settings.limits.comment_every_s)
                if not task.done():
                    yield sse.comment(waiting)
            outcome = task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async for event in _whole(outcome, state.request.api_format):
            yield event

    def _remembered(self, outcome: Outcome, ask: RoutingRequest) -> Outcome:
        self._note(outcome, ask)
        self._metrics.overhead_seconds.observe(outcome.overhead_ms / 1e3)
        self._trace(outcome.decision_id, outcome.routed, outcome.certificate)
        return outcome

    def _note(self, outcome: Outcome, ask: RoutingRequest) -> None:
        query = ask.query.text if self._settings.watching.store_queries else None
        self._monitor.note(outcome.note(ask.caller.name, query))

    def _trace(self, decision_id: str, routed: CertifiedDecision, certificate: Certificate) -> None:
        if self._tracer is not None:
            self._tracer.decided(
                decision_id=decision_id,
                alpha=certificate.alpha,
                selected=routed.decision.selected,
                holds=certificate.holds,
                reasons=certificate.reasons,
            )

    def _aggregating(self, answers: int) -> contextlib.AbstractContextManager[object]:
        if self._tracer is None:
            return contextlib.nullcontext()
        return self._tracer.aggregate(answers)


def _charge(state: RequestState, results: FanOutResult, outcome: Outcome) -> None:
    """Tell the tokens of the answers that are there, and of who weighed them."""
    fields = state.request.fields
    answers = [answer_tokens(fields, reply) for reply in results.replies.values()]
    state.request.spend(sum(answers) + outcome.ratings.usage.get("total_tokens", 0))


async def _whole(outcome: Outcome, api_format: ApiFormat) -> AsyncGenerator[bytes]:
    """A finished answer as a stream."""
    for event in api_format.whole_stream(outcome.body, outcome.as_json()):
        yield event


def _voters(state: RequestState, results: FanOutResult) -> list[str]:
    """Who votes: all who answered, but for those whom only a shadow sample called."""
    if state.shadow_rate is None:
        return list(results.replies)
    return [name for name in results.replies if name in state.selected] or list(results.replies)


def _failed(state: RequestState, results: FanOutResult) -> list[str]:
    """A reason for every candidate of the set that gave nothing."""
    failed = [name for name in results.failures if name in state.selected]
    if not failed:
        return []
    reason = Reason.OUTVOTED_FAILED if state.vote.settled(results) else Reason.CANDIDATE_FAILED
    return [reason.of(name) for name in failed]


def _nobody_answered(failures: Mapping[str, UpstreamError]) -> UpstreamError:
    """The common failure when all failed alike, so that the status says what a retry can do."""
    told = ", ".join(f"{name} ({exc.kind})" for name, exc in failures.items())
    message = f"no selected candidate answered: {told}"
    lasting = all(exc.lasting for exc in failures.values())
    first = next(iter(failures.values()))
    if {exc.kind for exc in failures.values()} == {first.kind}:
        return first.of_all(message, failures.values())
    return NoAnswerError(message, lasting=lasting)
