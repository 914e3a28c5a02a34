"""Shared part of the inference endpoints: routed or named candidate, JSON or event stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.access.api_keys import Caller
from app.answering.named_candidate import NamedCandidateRequest
from app.answering.request import InferenceRequest
from app.api.models import unknown_model
from app.concurrency.background_stream import BackgroundStream
from app.concurrency.client_disconnect import ClientDisconnected, unless_disconnected
from app.errors import Forbidden
from app.routing.applications import HEADER as APPLICATION_HEADER
from app.routing.applications import Membership
from app.routing.conditions import ROW_PATH
from app.routing.query import Query
from app.services import Services
from app.settings import AUTO
from app.telemetry.metrics import Metrics
from app.wire import bodies, error_envelope
from app.wire.format import ApiFormat
from app.wire.schemas import RacerOptions
from racer_core.errors import InputError

SESSION_HEADER: Final = "x-session-id"

CLIENT_CLOSED_REQUEST: Final = 499  # nginx's status; only logs and metrics show it


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class ParsedRequest:
    """The parsed body of an inference request.

    Attributes:
        api_format: Wire format of the endpoint.
        model: ``auto``, ``auto/<pool>`` or the name of a candidate.
        fields: Fields of the body that candidates are sent.
        options: The ``racer`` field.
        stream: The client wants server-sent events.
        query: Makes the router's input for an application; not called where a candidate is named.
    """

    api_format: ApiFormat
    model: str
    fields: Mapping[str, Any]
    options: RacerOptions
    stream: bool
    query: Callable[[Membership | None], Query]


async def respond(http: HttpRequest, services: Services, parsed: ParsedRequest) -> Response:
    """Answer a request: ``auto`` and ``auto/<pool>`` route, a candidate's name bypasses routing."""
    auto, _, pool = parsed.model.partition("/")
    if auto == AUTO and (parsed.model == AUTO or pool in services.settings.pools):
        return await _routed(http, services, parsed, pool or None)
    check_candidate(http, services, parsed.model)
    ticket, spending = http.state.quota_ticket, services.spending
    named = NamedCandidateRequest(
        name=parsed.model,
        api_format=parsed.api_format,
        fields=parsed.fields,
        timeout_s=parsed.options.timeout,
        caller=caller_of(http).name,
        session=lambda: _session_of(http),
        spend=ticket.spend,
        reservation=None if spending is None else spending.open(ticket, caller_of(http).name),
    )
    served_by = {"x-racer-served-by": parsed.model}
    note_prompt(http, services, lambda: parsed.query(None))
    if parsed.stream:
        events = await unless_disconnected(http, services.named_candidates.stream(named))
        return _EventStream(
            events=events,
            api_format=parsed.api_format,
            headers=served_by,
            metrics=services.metrics,
        )
    answer, cost = await unless_disconnected(http, services.named_candidates.answer(named))
    note_answer(http, services, parsed.api_format, answer)
    if cost is not None:
        served_by["x-racer-cost"] = cost.header
    return bodies.json_response(answer, headers=served_by)


def candidates_of(http: HttpRequest, services: Services, model: str) -> tuple[str, ...]:
    """The candidates that the caller may call under a model's name, at least one.

    Raises:
        NotFound: There is no such model.
        Forbidden: The caller's key may call none of them.
    """
    settings = services.settings
    auto, _, pool = model.partition("/")
    if auto != AUTO or (pool and pool not in settings.pools):
        check_candidate(http, services, model)
        return (model,)
    allowed = caller_of(http).candidates
    names = settings.pools[pool].candidates if pool else settings.pool
    found = tuple(name for name in names if allowed is None or name in allowed)
    if not found:
        raise Forbidden(f"this key may call no candidate of {model!r}")
    return found


def check_candidate(http: HttpRequest, services: Services, candidate: str) -> None:
    """Check that a candidate exists and the caller may call it.

    Raises:
        NotFound: There is no such model.
        Forbidden: The caller's key may not call it.
    """
    if candidate not in services.settings.pool:
        raise unknown_model(candidate, services.settings.models)
    allowed = caller_of(http).candidates
    if allowed is not None and candidate not in allowed:
        raise Forbidden(f"this key may not call {candidate!r}")


async def _routed(
    http: HttpRequest, services: Services, parsed: ParsedRequest, pool: str | None
) -> Response:
    application = application_of(
        http, services, parsed.options.application, parsed.fields, parsed.api_format.path
    )
    caller, ticket, spending = caller_of(http), http.state.quota_ticket, services.spending
    if application is not None:
        http.state.application = application.name
    request = InferenceRequest(
        query=parsed.query(application),
        options=parsed.options,
        caller=caller,
        pool=pool,
        application=application,
        api_format=parsed.api_format,
        fields=parsed.fields,
        leader=parsed.options.stream == "leader",
        session=_session_of(http),
        cache_control=(
            None
            if services.chats.answer_caches is None
            else ",".join(http.headers.getlist("cache-control"))
        ),
        spend=ticket.spend,
        certified=partial(note_guarantee, http) if parsed.stream else None,
        reservation=None
        if spending is None
        else spending.open(ticket, caller.name, application, pool),
    )
    note_prompt(http, services, lambda: request.query)
    if parsed.stream:
        events, headers = await unless_disconnected(http, services.chat.stream(request))
        return _EventStream(
            events=events,
            api_format=parsed.api_format,
            headers=headers,
            metrics=services.metrics,
        )
    outcome = await unless_disconnected(http, services.chat.answer(request))
    note_answer(http, services, parsed.api_format, outcome.body)
    body = {**outcome.body, "racer": outcome.as_json()}
    return bodies.json_response(body, headers=outcome.headers)


def application_of(
    http: HttpRequest,
    services: Services,
    requested: str | None,
    fields: Mapping[str, Any],
    path: str = ROW_PATH,
) -> Membership | None:
    """The application of a request, which names it in its body or in a header, or does not.

    Raises:
        NotFound: There is no such application.
        Forbidden: The key belongs to another.
        InputError: The body and the header name different ones.
    """
    named = http.headers.get(APPLICATION_HEADER)
    if None not in (requested, named) and requested != named:
        raise InputError(
            f"racer.application and the header {APPLICATION_HEADER} name different applications",
            param="application",
        )
    requested = named if requested is None else requested
    found = services.applications.of_request(requested, caller_of(http), fields, path)
    if found is None or found.terms.turns == "separate" or _session_of(http) is not None:
        return found
    return replace(found, lacks_session=True)


def _session_of(http: HttpRequest) -> str | None:
    """The id of a request's session."""
    return http.headers.get(SESSION_HEADER) or None


def note_guarantee(http: HttpRequest, guarantee: str) -> None:
    """Leave what became of a stream's certificate for log and metrics: its header is older."""
    http.state.guarantee = guarantee


def note_prompt(http: HttpRequest, services: Services, query: Callable[[], Query]) -> None:
    """Leave the router's input for log and traces, if the configuration turns prompts on."""
    if services.settings.telemetry.log_prompts:
        # A named candidate accepts queries that cannot be routed.
        with contextlib.suppress(InputError):
            http.state.prompt = query().text


def note_answer(
    http: HttpRequest, services: Services, api_format: ApiFormat, body: Mapping[str, Any]
) -> None:
    """Leave an answer's text for log and traces, cut to ``query_chars``; streams leave none."""
    if services.settings.telemetry.log_prompts:
        text = api_format.answer_text(body)
        http.state.answer = text[: services.settings.limits.query_chars]


class _EventStream(StreamingResponse):
    """Server-sent events of a background stream, which is stopped when the client disconnects."""

    def __init__(
        self,
        *,
        events: BackgroundStream,
        api_format: ApiFormat,
        headers: Mapping[str, str],
        metrics: Metrics,
    ) -> None:
        self._events = events
        self._error_event = api_format.error_event
        self._metrics = metrics
        super().__init__(
            (),  # the events come from the background stream
            media_type="text/event-stream",
            headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def stream_response(self, send: Send) -> None:
        """Send the events; an error becomes the last one."""

        async def send_event(event: bytes) -> None:
            await send({"type": "http.response.body", "body": event, "more_body": True})

        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await self._events.send_to(
            send_event, lambda exc: self._error_event(*error_envelope.error_of(exc))
        )
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the stream ends or the client disconnects; then stop all calls."""
        scope["state"]["error_event"] = self._error_event
        try:
            await unless_disconnected(HttpRequest(scope, receive), self.stream_response(send))
        except ClientDisconnected:
            self._metrics.client_disconnects.inc()
        finally:
            await self._events.stop()


def caller_of(request: Request) -> Caller:
    """Return the caller of a request, as the access control middleware found it."""
    return request.scope["state"]["caller"]
