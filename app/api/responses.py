"""POST /v1/responses: OpenAI-compatible responses, stateless.

Each request has the whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, EVENTS, KEYED, content, errors
from app.api.request_limits import check_fields
from app.api.respond import ParsedRequest, respond
from app.route_table import JsonBody, Routes
from app.routing import query
from app.services import Services
from app.wire import candidate_payload
from app.wire.responses import Responses
from app.wire.schemas import InputItem, Message, RacerOptions, ResponsesRequest
from racer_core.errors import InputError

routes = Routes("openai")

RESPONSE_BODY: Final = JsonBody(ResponsesRequest)

# Fields of stateful requests -> values that are accepted: no state is stored between requests.
_STATEFUL: Final[Mapping[str, tuple[object, ...]]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "store": (None, False),
}
_PARTS: Final = {"input_text": "text", "output_text": "text", "input_image": "image_url"}


@routes.add(
    "POST",
    "/v1/responses",
    role="data",
    body=RESPONSE_BODY,
    is_traced=True,
    summary="Response by a calibrated set of candidates",
    responses=errors(*KEYED, *BODY, *CALLS) | content(EVENTS),
)
async def responses(request: Request, services: Services) -> Response:
    """Candidates must serve this API themselves, as vLLM does."""
    settings = services.settings
    body, raw = await RESPONSE_BODY.read(request, settings.limits)
    for name, possible in _STATEFUL.items():
        if raw.get(name) not in possible:
            raise InputError(
                f"{name!r} needs stored conversations, and the gateway stores none: send the "
                "whole conversation as `input`",
                param=name,
            )
    fields = {
        **candidate_payload.passed_through(raw, allowed=settings.limits.extra_fields),
        "store": False,
    }
    check_fields(fields, settings.limits)
    messages = _messages(body)
    parsed = ParsedRequest(
        api_format=Responses(),
        model=body.model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda: query.of_messages(
            messages, fields, services.conditions.read(fields, Responses.path), settings
        ),
    )
    return await respond(request, services, parsed)


def _messages(body: ResponsesRequest) -> Sequence[Message]:
    """The conversation as chat messages, for the router only."""
    system = [Message(role="system", content=body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return [*system, Message(role="user", content=body.input)]
    return [*system, *map(_message, body.input)]


def _message(item: InputItem) -> Message:
    if item.role is None:  # a call, its result, reasoning
        return Message(role="tool" if item.type.endswith("_output") else "assistant")
    if not isinstance(item.content, list):
        return Message(role=item.role, content=item.content)
    parts = [{**part, "type": _kind(part.get("type"))} for part in item.content]
    return Message(role=item.role, content=parts)


def _kind(kind: object) -> str:
    """The chat API's name for a kind of content part."""
    return _PARTS.get(kind, "other") if isinstance(kind, str) else "other"
