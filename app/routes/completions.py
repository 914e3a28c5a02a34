"""POST /v1/completions: a prompt continued by a set of candidates."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app import payload, query, wire
from app.bounds import check_fields, texts
from app.lifespan import OpenServices
from app.openapi import BODY, CALLS, EVENTS, KEYED, content, errors, json_body
from app.query import Query
from app.routes.answering import Asked, respond
from app.schemas import CompletionRequest, RacerOptions
from app.settings import Settings
from app.surfaces.completions import Completions
from racer_core.errors import InputError

router = APIRouter(tags=["openai"])


@router.post(
    "/v1/completions",
    summary="Text completion by a calibrated set of candidates",
    responses=errors(*KEYED, *BODY, *CALLS) | content(EVENTS),
    openapi_extra=json_body(CompletionRequest),
)
async def completions(request: Request, services: OpenServices) -> Response:
    """Routing needs one text as the prompt; a named candidate takes whatever its server takes."""
    settings = services.settings
    body, raw = await wire.read(request, CompletionRequest, settings.limits.body_bytes)
    fields = payload.passed_through(raw)
    if body.model in settings.pool and body.stream_options is not None:
        fields["stream_options"] = body.stream_options
    check_fields(fields, settings.limits)
    asked = Asked(
        surface=Completions(
            n=texts(body.prompt) * (fields.get("n") or 1),
            include_usage=bool((body.stream_options or {}).get("include_usage")),
        ),
        model=body.model,
        fields=fields,
        options=body.racer or RacerOptions(),
        stream=bool(body.stream),
        query=lambda: _query(body, settings),
    )
    return await respond(request, services, asked)


def _query(body: CompletionRequest, settings: Settings) -> Query:
    match body.prompt:
        case str(prompt) | [str(prompt)]:
            return query.of_prompt(prompt, settings)
        case _:
            raise InputError(
                "routing reads one text: send one prompt a request, and not as tokens",
                param="prompt",
            )
