"""Pass-through: requests that name a candidate call it directly, without routing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.access.budgets import Reservation
from app.answering.cost_meter import CostMeter, Costs, RequestCost
from app.answering.spending import Spending
from app.answering.token_usage import TokenMeter, answer_tokens, prompt_tokens
from app.concurrency.background_stream import BackgroundStream
from app.settings import Settings
from app.upstream.fleet import GATEWAY, Fleet
from app.wire import parsing
from app.wire.candidate_payload import candidate_payload
from app.wire.format import ApiFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCandidateRequest:
    """A request to one candidate by its name."""

    name: str
    api_format: ApiFormat
    fields: Mapping[str, Any]
    timeout_s: float | None = None
    caller: str = GATEWAY  # the name of the API key
    session: Callable[[], str | None] = lambda: None  # the id of its session
    spend: Callable[[int], None] = lambda _: None  # takes the tokens at the end
    reservation: Reservation | None = None  # of what it may cost; None: it has no budget


class NamedCandidateService:
    """Calls candidates by name: there is no set, hence no certificate and no decision."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        costs: Costs | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._spending = spending
        self._fleet = fleet
        self._costs = costs
        self._longest_s = settings.limits.deadline_s
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}
        self._with_replicas = {each.name for each in settings.candidates if each.base_urls}

    async def answer(
        self, request: NamedCandidateRequest
    ) -> tuple[dict[str, Any], RequestCost | None]:
        """One candidate's whole answer, and its cost where it has a price.

        Raises:
            BudgetExceeded: The call may cost more than is left of a budget.
            UpstreamError: The candidate gave no usable answer.
        """
        name, api_format = request.name, request.api_format
        payload = candidate_payload(request.fields, self._candidates[name], api_format.path)
        meter = None if self._costs is None else self._costs.meter(request.fields)
        if self._spending is not None:
            await self._spending.reserve_call(
                name, request.fields, api_format.path, meter, request.reservation
            )
        try:
            with _charging_if_cancelled(request.fields, request.spend):
                reply = await self._fleet.ask(
                    name,
                    api_format,
                    payload,
                    deadline=self._deadline(request.timeout_s),
                    caller=request.caller,
                    session=self._session_of(request),
                    meter=meter,
                )
            if meter is not None:
                meter.answered(reply)
        finally:
            cost = None if meter is None else self._booked(meter, request.reservation)
        request.spend(answer_tokens(request.fields, reply))
        return api_format.named(reply.body, name), cost

    async def stream(self, request: NamedCandidateRequest) -> BackgroundStream:
        """One candidate's stream. Raises as :meth:`answer`, until its first piece."""
        stream = BackgroundStream(self._events(request, self._deadline(request.timeout_s)))
        await stream.started()
        return stream

    async def embeddings(
        self,
        name: str,
        fields: Mapping[str, Any],
        spend: Callable[[int], None],
        caller: str = GATEWAY,
        reservation: Reservation | None = None,
    ) -> tuple[dict[str, Any], RequestCost | None]:
        """The embeddings of one candidate, and their cost. Raises as :meth:`answer`."""
        payload = {**fields, "model": self._candidates[name].served_as}
        meter = None if self._costs is None else self._costs.meter(fields)
        if self._spending is not None:
            await self._spending.reserve_call(name, fields, "embeddings", meter, reservation)
        try:
            with _charging_if_cancelled(fields, spend):
                answer = await self._fleet.forward(
                    name,
                    "embeddings",
                    payload,
                    deadline=self._deadline(None),
                    caller=caller,
                    meter=meter,
                )
            if meter is not None:
                meter.embedded(name, answer)
        finally:
            cost = None if meter is None else self._booked(meter, reservation)
        usage = parsing.counts(answer.get("usage"), parsing.CHAT_USAGE)
        spend(usage.get("total_tokens", prompt_tokens(fields)))
        return {**answer, "model": name}, cost

    async def _events(
        self, request: NamedCandidateRequest, deadline: float
    ) -> AsyncGenerator[bytes]:
        name, api_format = request.name, request.api_format
        payload = api_format.streamed(
            candidate_payload(request.fields, self._candidates[name], api_format.path)
        )
        costs = None if self._costs is None else self._costs.meter(request.fields)
        if self._spending is not None:
            await self._spending.reserve_call(
                name, request.fields, api_format.path, costs, request.reservation
            )
        ended = None if costs is None else partial(costs.streamed, name)
        meter = TokenMeter(api_format, request.fields, ended)
        writer = api_format.renamed(name)
        try:
            with meter.charging(request.spend):
                async with self._fleet.stream(
                    name,
                    api_format,
                    payload,
                    deadline=deadline,
                    caller=request.caller,
                    session=self._session_of(request),
                    meter=costs,
                ) as stream:
                    while pieces := await stream.read():
                        events = list[bytes]()
                        for piece in pieces:
                            meter.count(piece)
                            events += writer.feed(piece)
                        if events:
                            yield b"".join(events)
        finally:
            if costs is not None:
                self._booked(costs, request.reservation)
        yield writer.end()

    def _session_of(self, request: NamedCandidateRequest) -> str | None:
        """The session, by which one of several replicas is chosen."""
        return request.session() if request.name in self._with_replicas else None

    def _booked(self, meter: CostMeter, reservation: Reservation | None) -> RequestCost:
        """Count what a request has cost."""
        assert self._costs is not None
        cost = meter.cost()
        self._costs.book(cost, application=None, pool=None)
        if reservation is not None:
            reservation.settle(cost.total.amount)
        return cost

    def _deadline(self, timeout_s: float | None) -> float:
        longest_s = self._longest_s
        return time.monotonic() + (longest_s if timeout_s is None else min(timeout_s, longest_s))


@contextlib.contextmanager
def _charging_if_cancelled(
    fields: Mapping[str, Any], spend: Callable[[int], None]
) -> Generator[None]:
    """Charge the prompt of a call that is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        spend(prompt_tokens(fields))
        raise
