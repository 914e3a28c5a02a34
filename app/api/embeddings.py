"""POST /v1/embeddings: OpenAI-compatible embeddings of one candidate, without routing."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from app.api.openapi import BODY, CALLS, KEYED, errors
from app.api.respond import caller_of, check_candidate
from app.concurrency.client_disconnect import unless_disconnected
from app.errors import NotFound
from app.route_table import JsonBody, Routes
from app.services import Services
from app.settings import AUTO
from app.wire import bodies, candidate_payload
from app.wire.request_limits import check_fields
from app.wire.schemas import EmbeddingsRequest

routes = Routes("openai")

EMBEDDINGS_BODY: Final = JsonBody(EmbeddingsRequest)


@routes.add(
    "POST",
    "/v1/embeddings",
    role="data",
    body=EMBEDDINGS_BODY,
    is_traced=True,
    summary="Embeddings by the candidate that serves them",
    responses=errors(*KEYED, *BODY, *CALLS),
)
async def embeddings(request: Request, services: Services) -> Response:
    """`auto` is the candidate of the setting `embeddings`; others are called by name."""
    settings = services.settings
    body, raw = await EMBEDDINGS_BODY.read(request, settings.limits)
    name = settings.embeddings if body.model == AUTO else body.model
    if name is None:
        raise NotFound(
            "no candidate serves embeddings: name one, or set `embeddings` in the configuration",
            code="model_not_found",
            param="model",
        )
    check_candidate(request, services, name)
    fields = candidate_payload.passed_through(raw, allowed=settings.limits.extra_fields)
    check_fields(fields, settings.limits)
    ticket, spending = request.state.quota_ticket, services.spending
    key = caller_of(request).name
    reservation = None if spending is None else spending.open(ticket, key)
    answer, cost = await unless_disconnected(
        request,
        services.named_candidates.embeddings(name, fields, ticket.spend, key, reservation),
    )
    headers = {"x-racer-served-by": name}
    if cost is not None:
        headers["x-racer-cost"] = cost.header
    return bodies.json_response(answer, headers=headers)
