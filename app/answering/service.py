"""The chat service: the story of one request, ``route -> call -> merge -> record``.

Each stage is one module: ``request_router``, ``dispatch``, ``merge``, ``decision_log``. A live
stream is called and recorded in ``streaming``. Nothing here knows the web framework.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from app.answering.answer_forms import AnswerReader
from app.answering.cost_meter import Costs
from app.answering.decision_log import DecisionLog
from app.answering.dispatch import Dispatcher
from app.answering.evidence import EvidenceChecks
from app.answering.fan_out import FanOutResult
from app.answering.merge import Merger
from app.answering.outcome import Outcome
from app.answering.repeats import Repeats, keep, repeated, repeated_events
from app.answering.request import InferenceRequest, RequestState
from app.answering.request_router import RequestRouter
from app.answering.rounds import UsualLatencies
from app.answering.shadow_calls import ShadowCalls
from app.answering.spending import Spending
from app.answering.streaming import OpenStream, Streaming, repeated_stream, whole_stream
from app.errors import UpstreamError
from app.judging.evaluator import Evaluator
from app.monitoring.coverage import Coverage
from app.monitoring.decisions.record import RequestEnd
from app.monitoring.monitor import Monitor
from app.routing.request import RiskLevels, Routing, RoutingRequest
from app.same_answer.routing import SameAnswerRouting
from app.settings import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.upstream.fleet import Fleet
from racer_core.aggregation.stacked import StackedVote


class ChatService:
    """Answers requests of every API format with sets of candidates."""

    def __init__(
        self,
        *,
        settings: Settings,
        routing: Routing,
        fleet: Fleet,
        reader: AnswerReader,
        monitor: Monitor | None,
        stacked: StackedVote | None,
        same_answer: SameAnswerRouting,
        metrics: Metrics,
        evidence: EvidenceChecks,
        shadow_calls: ShadowCalls,
        coverage: Coverage,
        repeats: Repeats | None = None,
        costs: Costs | None = None,
        spending: Spending | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._spending = spending
        self._evaluator = Evaluator(settings, fleet)
        self._decision_log = DecisionLog(
            monitor=monitor,
            metrics=metrics,
            tracer=tracer,
            store_queries=settings.watching.store_queries,
            group_by=settings.group_by,
            shadow_calls=shadow_calls,
            costs=costs,
            coverage=coverage,
        )
        latencies = UsualLatencies()
        self._router = RequestRouter(
            settings=settings,
            routing=routing,
            monitor=monitor,
            reader=reader,
            stacked=stacked,
            decision_log=self._decision_log,
            same_answer=same_answer,
            latencies=latencies,
            costs=costs,
        )
        self._dispatcher = Dispatcher(
            settings, routing, fleet, evidence=evidence, latencies=latencies, spending=spending
        )
        self._merger = Merger(self._evaluator, tracer)
        self._streaming = Streaming(self._dispatcher, self._decision_log, settings)
        self._repeats = repeats  # None: no answers are cached

    async def check(self) -> None:
        """Ask the evaluators before serving. Raises as :meth:`Evaluator.check`."""
        await self._evaluator.check()

    async def answer(self, request: InferenceRequest) -> Outcome:
        """Route the request, call the set at once, merge the answers.

        Raises:
            Abstained: The set is empty and ``on_abstain`` is ``error``.
            BudgetExceeded: Its calls may cost more than is left of a budget.
            UpstreamError: No selected candidate answered.
        """
        if self._spending is not None:
            request = self._spending.eased(request)
        state = await self._router.route(request)
        if self._spending is not None:
            state = self._spending.limited(state)
        if self._repeats is not None:
            state, cached = self._repeats.find(state, is_stream=False)
            if cached is not None:
                return self._decision_log.record_decision(repeated(state, cached), request)
        if self._spending is not None:
            await self._spending.reserve(state)
        return await self._answer(state, FanOutResult())

    async def _answer(self, state: RequestState, results: FanOutResult) -> Outcome:
        """Call, merge and record: one record for each decision, however the request ends."""
        try:
            await self._dispatcher.call(state, results)
            outcome = await self._merger.merge(state, results)
        except UpstreamError:
            self._decision_log.record_unanswered(state, results, RequestEnd.FAILED)
            raise
        except asyncio.CancelledError:
            self._decision_log.record_cancelled(state, results)
            raise
        outcome = self._decision_log.record(state, results, outcome)
        if state.slot is not None:
            keep(state, outcome)
        return outcome

    async def stream(self, request: InferenceRequest) -> OpenStream:
        """Answer as a stream. One selected candidate streams live; several are merged first.

        So does a named reference that is called alone, after other candidates or at once.

        Raises:
            RacerError: As :meth:`answer`, until the first event.
        """
        if self._spending is not None:
            request = self._spending.eased(request)
        state = await self._router.route(request)
        if request.leader:
            state = state.led_by_the_best()
        if self._spending is not None:
            state = self._spending.limited(state)
        if self._repeats is not None:
            state, cached = self._repeats.find(state, is_stream=True)
            if cached is not None:
                outcome = self._decision_log.record_decision(repeated(state, cached), request)
                return repeated_stream(outcome, repeated_events(state, cached, outcome))
        if self._spending is not None:
            await self._spending.reserve(state)
        if not state.called:
            return whole_stream(state, await self._answer(state, FanOutResult()))
        results = FanOutResult()
        if state.only is not None:
            stream = await self._streaming.live(state, state.only, results)
            if stream is not None:
                return stream
            if state.rounds is None:
                state = await self._with_replacements(state, results)
        return await self._streaming.merged(state, results, partial(self._answer, state, results))

    async def decide(self, request: RoutingRequest) -> Outcome:
        """Route only: no candidate is called."""
        return self._decision_log.record_decision(await self._router.decide(request), request)

    async def levels(self, request: RoutingRequest) -> RiskLevels:
        """The set at every alpha. No candidate is called; nothing is recorded or counted."""
        return await self._router.levels(request)

    async def _with_replacements(self, state: RequestState, results: FanOutResult) -> RequestState:
        """The request without its only candidate, which gave no answer.

        The surviving pool's set is called instead. Where that is empty, a blank of the only
        candidate is still returned.

        Raises:
            UpstreamError: The candidate's failure, where no other candidate may be called.
        """
        try:
            names = await self._dispatcher.replacements(state, results)
        except asyncio.CancelledError:
            self._decision_log.record_unanswered(state, results, RequestEnd.CANCELLED)
            raise
        if not names and results.failures:
            self._decision_log.record_unanswered(state, results, RequestEnd.FAILED)
            raise next(iter(results.failures.values()))
        return replace(state, replacements=tuple(names))
