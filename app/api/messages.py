"""POST /v1/messages: Anthropic's Messages API, stateless; candidates are called by chat.

POST /v1/messages/count_tokens: the tokens of a prompt, by the candidates' own tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, EVENTS, KEYED, MESSAGES_ENVELOPE, content, errors
from app.api.respond import ParsedRequest, caller_of, candidates_of, respond
from app.concurrency.client_disconnect import unless_disconnected
from app.route_table import JsonBody, Routes
from app.routing import query
from app.services import Services
from app.wire import bodies
from app.wire.candidate_payload import request_fields
from app.wire.chat import Chat
from app.wire.messages.errors import REQUEST_ID_HEADER
from app.wire.messages.format import Messages
from app.wire.messages.request import VERSION_HEADER, chat_fields, shows_thinking
from app.wire.request_limits import check_fields
from app.wire.schemas import CountTokensRequest, MessagesRequest, RacerOptions
from racer_core.errors import InputError

routes = Routes("anthropic")

MESSAGES_BODY: Final = JsonBody(MessagesRequest)
COUNT_BODY: Final = JsonBody(CountTokensRequest)

# Versions whose events and answers are the same. The later one refuses some fields of requests that
# candidates understand; they are taken under both.
VERSIONS: Final = ("2023-06-01", "2026-10-21")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


@routes.add(
    "POST",
    "/v1/messages",
    role="data",
    body=MESSAGES_BODY,
    is_traced=True,
    summary="Message by a calibrated set of candidates",
    responses=errors(*KEYED, *BODY, *CALLS, envelope=MESSAGES_ENVELOPE) | content(EVENTS),
)
async def messages(request: Request, services: Services) -> Response:
    """Anthropic's Messages API. Candidates are sent chat requests, which rows of chat certify."""
    settings = services.settings
    _check_version(request)
    body, raw = await MESSAGES_BODY.read(request, settings.limits)
    fields = _fields(raw, services)
    request_id: str = request.state.request_id
    parsed = ParsedRequest(
        api_format=Messages(
            request_id=request_id,
            stop_sequences=body.stop_sequences or (),
            shows_thinking=shows_thinking(raw),
        ),
        model=body.model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda application: query.of_body(
            fields, Chat.path, services.conditions.read(fields), settings, application
        ),
    )
    response = await respond(request, services, parsed)
    response.headers[REQUEST_ID_HEADER] = request_id
    return response


@routes.add(
    "POST",
    "/v1/messages/count_tokens",
    role="data",
    body=COUNT_BODY,
    is_traced=True,
    summary="Tokens of a message's prompt",
    responses=errors(*KEYED, *BODY, *CALLS, envelope=MESSAGES_ENVELOPE),
)
async def count_tokens(request: Request, services: Services) -> Response:
    """The largest count of the candidates of `model`, by vLLM's `/tokenize`. No model runs."""
    settings = services.settings
    _check_version(request)
    body, raw = await COUNT_BODY.read(request, settings.limits)
    fields = _fields(raw, services)
    names = candidates_of(request, services, body.model)
    needs = query.needs_of_body(fields, Chat.path, services.conditions.configured)
    able = [name for name in needs.able(settings.candidates) if name in names]
    counting = services.token_counter.count(able or names, fields, caller_of(request).name)
    counts = await unless_disconnected(request, counting)
    answer = {"input_tokens": counts.largest, "racer": counts.as_json()}
    return bodies.json_response(answer, headers={REQUEST_ID_HEADER: request.state.request_id})


def _fields(raw: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """The fields of the chat request that candidates are sent."""
    limits = services.settings.limits
    fields = request_fields(chat_fields(raw), Chat.path, allowed=limits.extra_fields)
    check_fields(fields, limits)
    return fields


def _check_version(request: Request) -> None:
    """Refuse versions with other events. Later ones, which new clients send, are answered as ours.

    Raises:
        InputError: The header names none of these.
    """
    given = request.headers.get(VERSION_HEADER, VERSIONS[-1])
    if given in VERSIONS or (_DATE.fullmatch(given) and given > VERSIONS[-1]):
        return
    raise InputError(
        f"send the header {VERSION_HEADER}: {' or '.join(VERSIONS)}", param=VERSION_HEADER
    )
