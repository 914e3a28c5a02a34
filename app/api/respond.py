"""What the ways of asking do alike: choose who is asked, answer or stream, notice who left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.access.api_keys import caller_of
from app.answering.named_candidate import NamedCandidateRequest
from app.answering.request import InferenceRequest
from app.api.models import unknown_model
from app.concurrency.background_stream import BackgroundStream
from app.errors import Forbidden
from app.routing.query import Query
from app.services import Services
from app.settings import AUTO
from app.telemetry.metrics import Metrics
from app.wire import bodies, error_envelope
from app.wire.format import ApiFormat
from app.wire.schemas import RacerOptions
from racer_core.errors import InputError

T = TypeVar("T")

CLIENT_CLOSED_REQUEST: Final = 499  # nginx's status; only logs and metrics show it


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A body, read: what is asked of whom."""

    api_format: ApiFormat
    model: str
    fields: Mapping[str, Any]  # what candidates are sent
    options: RacerOptions
    stream: bool
    query: Callable[[], Query]  # what the router reads; not needed where a candidate is named


async def respond(http: HttpRequest, services: Services, asked: ParsedRequest) -> Response:
    """`auto` and `auto/<pool>` route; a candidate's name bypasses routing."""
    auto, _, pool = asked.model.partition("/")
    if auto == AUTO and (asked.model == AUTO or pool in services.settings.pools):
        return await _routed(http, services, asked, pool or None)
    if asked.model not in services.settings.pool:
        raise unknown_model(asked.model, services.settings.models)
    check_allowed(http, asked.model)
    named = NamedCandidateRequest(
        name=asked.model,
        api_format=asked.api_format,
        fields=asked.fields,
        timeout_s=asked.options.timeout,
        spend=http.state.quota.spend,
    )
    served_by = {"x-racer-served-by": asked.model}
    note_prompt(http, services, asked.query)
    if asked.stream:
        pump = await unless_left(http, services.direct.stream(named))
        return _EventStream(pump, asked.api_format, served_by, services.metrics)
    answer = await unless_left(http, services.direct.answer(named))
    note_answer(http, services, asked.api_format, answer)
    return bodies.json_response(answer, headers=served_by)


def check_allowed(http: HttpRequest, candidate: str) -> None:
    """Raises Forbidden unless the caller's key may call this candidate."""
    allowed = caller_of(http).candidates
    if allowed is not None and candidate not in allowed:
        raise Forbidden(f"this key may not call {candidate!r}")


async def _routed(
    http: HttpRequest, services: Services, asked: ParsedRequest, pool: str | None
) -> Response:
    request = InferenceRequest(
        query=asked.query(),
        options=asked.options,
        caller=caller_of(http),
        pool=pool,
        api_format=asked.api_format,
        fields=asked.fields,
        leader=asked.options.stream == "leader",
        session=http.headers.get("x-session-id"),
        spend=http.state.quota.spend,
    )
    note_prompt(http, services, lambda: request.query)
    if asked.stream:
        pump, headers = await unless_left(http, services.chat.stream(request))
        return _EventStream(pump, asked.api_format, headers, services.metrics)
    outcome = await unless_left(http, services.chat.answer(request))
    note_answer(http, services, asked.api_format, outcome.body)
    body = {**outcome.body, "racer": outcome.as_json()}
    return bodies.json_response(body, headers=outcome.headers)


def note_prompt(http: HttpRequest, services: Services, query: Callable[[], Query]) -> None:
    """Leave what the router reads for the log, if the operator wants prompts there."""
    if services.settings.telemetry.log_prompts:
        with contextlib.suppress(InputError):  # a named candidate takes what cannot be routed
            http.state.prompt = query().text


def note_answer(
    http: HttpRequest, services: Services, api_format: ApiFormat, body: Mapping[str, Any]
) -> None:
    """Leave an answer's text likewise, cut as prompts are; streams leave none."""
    if services.settings.telemetry.log_prompts:
        text = api_format.choices(body)[0].text or ""
        http.state.answer = text[: services.settings.limits.query_chars]


class ClientDisconnected(Exception):
    """The client closed the connection; whatever is answered now, nobody reads it."""


async def unless_left(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, but cancel it as soon as the client is gone. The body must have been read.

    Raises:
        ClientDisconnected: It was cancelled.
    """
    patience = asyncio.timeout(None)
    at_work = True

    def leave(_: asyncio.Task[None]) -> None:
        if at_work:
            patience.reschedule(0.0)  # it is over

    gone = asyncio.create_task(_left(http.receive))
    gone.add_done_callback(leave)
    try:
        async with patience:
            return await work
    except TimeoutError:
        if patience.expired():
            raise ClientDisconnected from None
        raise
    finally:
        at_work = False
        gone.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """A pump's items; the pump is stopped as soon as the client is gone."""

    def __init__(
        self,
        pump: BackgroundStream,
        api_format: ApiFormat,
        headers: Mapping[str, str],
        metrics: Metrics,
    ) -> None:
        self._pump = pump
        self._metrics = metrics
        super().__init__(
            pump.items(on_error=lambda exc: api_format.error_event(error_envelope.error_of(exc))),
            media_type="text/event-stream",
            headers={**headers, "cache-control": "no-cache"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end or until nobody listens, then let go of every call."""
        sending = asyncio.create_task(self.stream_response(send))
        gone = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            else:
                self._metrics.client_disconnects.inc()
        finally:
            for each in (sending, gone):
                each.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._pump.stop()
