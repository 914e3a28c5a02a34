"""POST /v1/chat/completions: the drop-in."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app import sse, translate, wire
from app.lifespan import OpenServices, Services
from app.openapi import json_body
from app.pump import Pump
from app.routes.models import unknown_model
from app.schemas import ChatRequest, RacerOptions
from app.service import Ask
from app.settings import AUTO
from racer_core.errors import RacerError

router = APIRouter(tags=["openai"])


@router.post(
    "/v1/chat/completions",
    summary="Chat completion by a calibrated set of candidates",
    openapi_extra=json_body(ChatRequest),
)
async def chat_completions(request: Request, services: OpenServices) -> Response:
    """`model: "auto"` routes; a candidate's name bypasses routing."""
    limit = services.settings.limits.body_bytes
    body, raw = await wire.read(request, ChatRequest, limit)
    fields = translate.passed_through(body, raw)
    if body.model == AUTO:
        return await _routed(body, fields, services)
    if body.model not in services.settings.pool:
        raise unknown_model(body.model, services.settings.pool)
    if body.stream:
        pump = await services.chat.pinned_stream(body.model, fields, body.stream_options)
        return _EventStream(pump, {"x-racer-served-by": body.model})
    answer = await services.chat.pinned(body.model, fields)
    return wire.json_response(answer, headers={"x-racer-served-by": body.model})


async def _routed(body: ChatRequest, fields: dict[str, object], services: Services) -> Response:
    ask = Ask(
        query=translate.to_query(
            body.messages,
            fields,
            services.settings.candidates,
            services.settings.limits.query_chars,
        ),
        options=body.racer or RacerOptions(),
        fields=fields,
        include_usage=bool((body.stream_options or {}).get("include_usage")),
    )
    if body.stream:
        pump, headers = await services.chat.stream(ask)
        return _EventStream(pump, headers)
    outcome = await services.chat.answer(ask)
    return wire.json_response({**outcome.body, "racer": outcome.as_json()}, headers=outcome.headers)


class _EventStream(StreamingResponse):
    """A pump's items; the pump is stopped even when the client left before the first."""

    def __init__(self, pump: Pump, headers: dict[str, str]) -> None:
        self._pump = pump
        super().__init__(
            pump.items(on_error=_error_event),
            media_type="text/event-stream",
            headers={**headers, "cache-control": "no-cache"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, then let go of every call that still runs."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pump.stop()


def _error_event(exc: Exception) -> bytes:
    """A stream that began can no longer change its status: it ends with an error event."""
    if isinstance(exc, RacerError):
        _, body = wire.envelope(exc)
    else:
        body = wire.error_body(
            "internal error; see the gateway's log", "api_error", code="internal_error"
        )
    return sse.event(body)
