"""Dispatch, the second stage: calls the set, and other candidates where it has no answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from app.answering.evidence import EvidenceChecks
from app.answering.fan_out import FanOutResult, fan_out
from app.answering.request import RequestState
from app.answering.rounds import UsualLatencies
from app.answering.spending import Spending
from app.routing.decision import ChosenBy
from app.routing.request import Routing
from app.settings import Settings
from app.upstream.fleet import Fleet
from app.upstream.reply import Reply
from app.upstream.stream import CandidateStream
from app.wire.candidate_payload import candidate_payload
from app.wire.format import AnswerKind


class Dispatcher:
    """Calls the candidates of a request."""

    def __init__(
        self,
        settings: Settings,
        routing: Routing,
        fleet: Fleet,
        *,
        evidence: EvidenceChecks,
        latencies: UsualLatencies,
        spending: Spending | None,
    ) -> None:
        self._routing = routing
        self._fleet = fleet
        self._evidence = evidence
        self._latencies = latencies
        self._spending = spending
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}
        self._max_calls = settings.limits.fan_out
        self._is_observing = settings.routing.observe is not None

    async def call(self, state: RequestState, results: FanOutResult) -> None:
        """Call the set, and replace what it lacks: an answer, or one that could decide the vote.

        Args:
            state: The request.
            results: Takes answers and failures as they arrive. Candidates in it are not called.
        """
        started = time.monotonic()
        results.skipped.clear()
        if state.rounds is not None:
            state.rounds.report(results)
        if state.called:
            names = [name for name in state.called if not results.has(name)]
            await self._fan_out(state, names, results)
            if state.replacements is None and _is_lacking(state, results):
                await self._fan_out(state, await self.replacements(state, results), results)
            if state.routed.chosen_by is ChosenBy.FALLBACK:
                await self._try_others(state, results)
        results.seconds += time.monotonic() - started

    async def _try_others(self, state: RequestState, results: FanOutResult) -> None:
        """Call the candidates after the fallback one by one, until one answers."""
        while not any(each.kind >= AnswerKind.REFUSAL for each in results.replies.values()):
            names = await self.replacements(state, results)
            if not names:
                return
            await self._fan_out(state, names, results)

    async def replacements(self, state: RequestState, results: FanOutResult) -> Sequence[str]:
        """The candidates that the surviving pool's set adds, within its limits and budgets."""
        if self._is_observing:  # no other traffic than without the router
            return []
        called = {*results.replies, *results.failures}
        surviving = self._spending and self._spending.replacements(state, called)
        if surviving is None:
            silent = {
                name
                for name in called
                if name in results.failures or results.is_unanswered_by((name,))
            }
            surviving = await self._routing.without(state.routed, state.request, silent)
        left = max(0, self._max_calls - len(called))
        names = [name for name in surviving if name not in called][:left]
        if self._spending is None:
            return names
        return await self._spending.affordable(state, names, len(results.replies))

    def stream(
        self, state: RequestState, name: str
    ) -> AbstractAsyncContextManager[CandidateStream]:
        """The stream of one candidate; see :meth:`Fleet.stream`."""
        api_format = state.request.api_format
        payload = api_format.streamed(self._payload(state, name))
        return self._fleet.stream(
            name,
            api_format,
            payload,
            deadline=state.deadline,
            caller=state.request.caller.name,
            session=state.request.session,
            meter=state.meter,
        )

    async def _fan_out(
        self, state: RequestState, names: Sequence[str], results: FanOutResult
    ) -> None:
        rounds, meter = state.rounds, state.meter

        async def call(name: str) -> Reply:
            reply = await self._fleet.ask(
                name,
                state.request.api_format,
                self._payload(state, name),
                deadline=state.deadline,
                caller=state.request.caller.name,
                session=state.request.session,
                meter=meter,
            )
            if meter is not None:
                meter.answered(reply)
            self._latencies.record(state.routed.application, name, reply.seconds)
            reply.check_not_empty()
            if rounds is not None and rounds.is_checked:
                rounds.arrived.add(name)
                verdict = await self._evidence.of_request(state.request, reply, state.deadline)
                rounds.check(name, verdict)
            return reply

        await fan_out(names, call=call, vote=state.vote, into=results)

    def _payload(self, state: RequestState, name: str) -> dict[str, Any]:
        request = state.request
        return candidate_payload(request.fields, self._candidates[name], request.api_format.path)


def _is_lacking(state: RequestState, results: FanOutResult) -> bool:
    """Whether the set gave no answer, or a failed member's answer could decide its vote."""
    if any(name in state.selected for name in results.failures):
        return not state.vote.settled(results)
    return results.is_unanswered_by(state.selected)
