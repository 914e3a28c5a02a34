"""Candidates asked by name, without routing: what is sent and answered passes through."""

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
from app.upstream.fleet import Fleet
from app.wire import parsing
from app.wire.candidate_payload import candidate_payload
from app.wire.format import ApiFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCandidateRequest:
    """One candidate asked by its name."""

    name: str
    api_format: ApiFormat
    fields: Mapping[str, Any]
    timeout_s: float | None = None
    spend: Callable[[int], None] = lambda _: None  # told the tokens in the end


class NamedCandidateService:
    """Asks candidates by name: there is no set, hence no certificate and no decision."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._longest_s = settings.limits.deadline_s
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}

    async def answer(self, asked: NamedCandidateRequest) -> dict[str, Any]:
        """One candidate's whole answer. Raises UpstreamError."""
        name, api_format = asked.name, asked.api_format
        payload = candidate_payload(asked.fields, self._candidates[name], api_format.path)
        with _charged_if_left(asked.fields, asked.spend):
            reply = await self._fleet.ask(
                name, api_format, payload, deadline=self._deadline(asked.timeout_s)
            )
        asked.spend(answer_tokens(asked.fields, reply))
        return api_format.named(reply.body, name)

    async def stream(self, asked: NamedCandidateRequest) -> BackgroundStream:
        """One candidate's stream. Raises UpstreamError where it fails before its first piece."""
        pump = BackgroundStream(self._events(asked, self._deadline(asked.timeout_s)))
        await pump.started()
        return pump

    async def embeddings(
        self, name: str, fields: Mapping[str, Any], spend: Callable[[int], None]
    ) -> dict[str, Any]:
        """Texts embedded by one candidate. Raises UpstreamError."""
        sent = {**fields, "model": self._candidates[name].served_as}
        with _charged_if_left(fields, spend):
            answer = await self._fleet.forward(
                name, "embeddings", sent, deadline=self._deadline(None)
            )
        counted = parsing.counts(answer.get("usage"), parsing.CHAT_USAGE)
        spend(counted.get("total_tokens", prompt_tokens(fields)))
        return {**answer, "model": name}

    async def _events(self, asked: NamedCandidateRequest, deadline: float) -> AsyncGenerator[bytes]:
        name, api_format = asked.name, asked.api_format
        payload = api_format.streamed(
            candidate_payload(asked.fields, self._candidates[name], api_format.path)
        )
        meter = TokenMeter(api_format, asked.fields)
        with meter.charging(asked.spend):
            async with (
                self._fleet.stream(name, api_format, payload, deadline=deadline) as pieces,
                contextlib.aclosing(pieces) as closing,
            ):
                async for piece in closing:
                    meter.saw(piece)
                    if api_format.is_wanted(piece):
                        yield api_format.event(api_format.named(piece, name))
        yield api_format.end

    def _deadline(self, timeout_s: float | None) -> float:
        most = self._longest_s
        return time.monotonic() + (most if timeout_s is None else min(timeout_s, most))


@contextlib.contextmanager
def _charged_if_left(fields: Mapping[str, Any], spend: Callable[[int], None]) -> Generator[None]:
    """Charge the prompt of a call that nobody waited for."""
    try:
        yield
    except asyncio.CancelledError:
        spend(prompt_tokens(fields))
        raise
