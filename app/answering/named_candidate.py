"""Pass-through: requests that name a candidate call it directly, without routing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

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
    spend: Callable[[int], None] = lambda _: None  # takes the tokens at the end


class NamedCandidateService:
    """Calls candidates by name: there is no set, hence no certificate and no decision."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._longest_s = settings.limits.deadline_s
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}

    async def answer(self, request: NamedCandidateRequest) -> dict[str, Any]:
        """One candidate's whole answer. Raises UpstreamError."""
        name, api_format = request.name, request.api_format
        payload = candidate_payload(request.fields, self._candidates[name], api_format.path)
        with _charging_if_cancelled(request.fields, request.spend):
            reply = await self._fleet.ask(
                name,
                api_format,
                payload,
                deadline=self._deadline(request.timeout_s),
                caller=request.caller,
            )
        request.spend(answer_tokens(request.fields, reply))
        return api_format.named(reply.body, name)

    async def stream(self, request: NamedCandidateRequest) -> BackgroundStream:
        """One candidate's stream. Raises UpstreamError if it fails before its first piece."""
        stream = BackgroundStream(self._events(request, self._deadline(request.timeout_s)))
        await stream.started()
        return stream

    async def embeddings(
        self,
        name: str,
        fields: Mapping[str, Any],
        spend: Callable[[int], None],
        caller: str = GATEWAY,
    ) -> dict[str, Any]:
        """The embeddings of one candidate. Raises UpstreamError."""
        payload = {**fields, "model": self._candidates[name].served_as}
        with _charging_if_cancelled(fields, spend):
            answer = await self._fleet.forward(
                name, "embeddings", payload, deadline=self._deadline(None), caller=caller
            )
        usage = parsing.counts(answer.get("usage"), parsing.CHAT_USAGE)
        spend(usage.get("total_tokens", prompt_tokens(fields)))
        return {**answer, "model": name}

    async def _events(
        self, request: NamedCandidateRequest, deadline: float
    ) -> AsyncGenerator[bytes]:
        name, api_format = request.name, request.api_format
        payload = api_format.streamed(
            candidate_payload(request.fields, self._candidates[name], api_format.path)
        )
        meter, writer = TokenMeter(api_format, request.fields), api_format.renamed(name)
        with meter.charging(request.spend):
            async with self._fleet.stream(
                name, api_format, payload, deadline=deadline, caller=request.caller
            ) as stream:
                while pieces := await stream.read():
                    events = list[bytes]()
                    for piece in pieces:
                        meter.count(piece)
                        events += writer.feed(piece)
                    if events:
                        yield b"".join(events)
        yield writer.end()

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
