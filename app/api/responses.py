"""POST /v1/responses: OpenAI-compatible responses, stateless.

Each request has the whole conversation.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, EVENTS, KEYED, content, errors
from app.api.respond import ParsedRequest, respond
from app.route_table import JsonBody, Routes
from app.routing import query
from app.services import Services
from app.wire.candidate_payload import request_fields
from app.wire.request_limits import check_fields
from app.wire.responses import Responses
from app.wire.schemas import RacerOptions, ResponsesRequest

routes = Routes("openai")

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
