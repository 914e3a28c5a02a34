"""POST /v1/completions: OpenAI-compatible text completions."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, EVENTS, KEYED, content, errors
from app.api.request_limits import check_fields, texts
from app.api.respond import ParsedRequest, respond
from app.route_table import JsonBody, Routes
from app.routing import query
from app.routing.conditions import Conditions
from app.routing.query import Query
from app.services import Services
from app.settings import Settings
from app.wire import candidate_payload
from app.wire.completions import Completions
from app.wire.schemas import CompletionRequest, RacerOptions
from racer_core.errors import InputError

routes = Routes("openai")

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
    fields = candidate_payload.passed_through(raw, allowed=settings.limits.extra_fields)
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
        query=lambda: _query(body, services.conditions.read(fields, Completions.path), settings),
    )
    return await respond(request, services, parsed)


def _query(body: CompletionRequest, conditions: Conditions, settings: Settings) -> Query:
    match body.prompt:
        case str(prompt) | [str(prompt)]:
            return query.of_prompt(prompt, conditions, settings)
        case _:
            raise InputError(
                "routing needs one text: send one prompt per request, and not as tokens",
                param="prompt",
            )
