"""OpenAI-compatible endpoints: chat completions, text completions and responses.

Responses are stateless: each request has the whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, EVENTS, KEYED, content, errors
from app.api.respond import ParsedRequest, respond
from app.route_table import JsonBody, Routes
from app.routing import query
from app.services import Services
from app.wire.candidate_payload import request_fields
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.request_limits import check_fields, texts
from app.wire.responses import Responses
from app.wire.schemas import (
    ChatRequest,
    CompletionRequest,
    DeploymentChatRequest,
    RacerOptions,
    ResponsesRequest,
)

routes = Routes("openai")

CHAT_BODY: Final = JsonBody(ChatRequest)


@routes.add(
    "POST",
    "/v1/chat/completions",
    role="data",
    body=CHAT_BODY,
    is_traced=True,
    summary="Chat completion by a calibrated set of candidates",
    responses=errors(*KEYED, *BODY, *CALLS) | content(EVENTS),
)
async def chat_completions(request: Request, services: Services) -> Response:
    """`model: "auto"` routes; a candidate's name bypasses routing."""
    body, raw = await CHAT_BODY.read(request, services.settings.limits)
    return await _chat(request, services, body, raw, body.model)


DEPLOYMENT_BODY: Final = JsonBody(DeploymentChatRequest)


@routes.add(
    "POST",
    "/openai/deployments/{model_id:path}/chat/completions",
    role="data",
    body=DEPLOYMENT_BODY,
    is_traced=True,
    summary="Chat completion at the path of Azure's clients",
    responses=errors(*KEYED, *BODY, *CALLS) | content(EVENTS),
)
async def deployment_chat_completions(request: Request, services: Services) -> Response:
    """As `/v1/chat/completions` for the model in the path; `api-version` is not read."""
    body, raw = await DEPLOYMENT_BODY.read(request, services.settings.limits)
    return await _chat(request, services, body, raw, request.path_params["model_id"])


async def _chat(
    request: Request, services: Services, body: ChatRequest, raw: Mapping[str, Any], model: str
) -> Response:
    settings = services.settings
    fields = request_fields(raw, Chat.path, allowed=settings.limits.extra_fields)
    if body.stream_options is not None and model in settings.pool:
        fields["stream_options"] = body.stream_options
    check_fields(fields, settings.limits)
    parsed = ParsedRequest(
        api_format=Chat(
            n=fields.get("n") or 1,
            include_usage=bool((body.stream_options or {}).get("include_usage")),
        ),
        model=model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda application: query.of_body(
            fields, Chat.path, services.conditions.read(fields), settings, application
        ),
    )
    return await respond(request, services, parsed)


COMPLETION_BODY: Final = JsonBody(CompletionRequest)


@routes.add(
    "POST",
    "/v1/completions",
    role="data",
    body=COMPLETION_BODY,
    is_traced=True,
    summary="Text completion by a calibrated set of candidates",
    responses=errors(*KEYED, *BODY, *CALLS) | content(EVENTS),
)
async def completions(request: Request, services: Services) -> Response:
    """Routing needs one text as the prompt; a named candidate accepts any prompt of its server."""
    settings = services.settings
    body, raw = await COMPLETION_BODY.read(request, settings.limits)
    fields = request_fields(raw, Completions.path, allowed=settings.limits.extra_fields)
    if body.model in settings.pool and body.stream_options is not None:
        fields["stream_options"] = body.stream_options
    check_fields(fields, settings.limits)
    parsed = ParsedRequest(
        api_format=Completions(
            n=texts(body.prompt) * (fields.get("n") or 1),
            include_usage=bool((body.stream_options or {}).get("include_usage")),
        ),
        model=body.model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda application: query.of_body(
            fields,
            Completions.path,
            services.conditions.read(fields, Completions.path),
            settings,
            application,
        ),
    )
    return await respond(request, services, parsed)


RESPONSE_BODY: Final = JsonBody(ResponsesRequest)


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
    fields = request_fields(raw, Responses.path, allowed=settings.limits.extra_fields)
    check_fields(fields, settings.limits)
    parsed = ParsedRequest(
        api_format=Responses(),
        model=body.model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda application: query.of_body(
            fields,
            Responses.path,
            services.conditions.read(fields, Responses.path),
            settings,
            application,
        ),
    )
    return await respond(request, services, parsed)
