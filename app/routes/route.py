"""POST /route: the decision and its certificate; costs no tokens unless asked to execute."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from app import translate, wire
from app.lifespan import OpenServices
from app.openapi import json_body
from app.schemas import Message, RacerOptions, RouteRequest
from app.service import Ask
from racer_core.errors import InputError

router = APIRouter(tags=["racer"])

_OPTIONS = set(RacerOptions.model_fields)


@router.post(
    "/route",
    summary="Choose the set for a query",
    openapi_extra=json_body(RouteRequest),
)
@router.post("/v1/route", include_in_schema=False)
async def route(request: Request, services: OpenServices) -> Response:
    """With `execute: true` also each candidate's answer, the votes and the aggregate."""
    body, raw = await wire.read(request, RouteRequest, services.settings.limits.body_bytes)
    messages = _messages(body)
    options = body.racer or RacerOptions(**{name: getattr(body, name) for name in _OPTIONS})
    fields = translate.passed_through(body, raw)
    query = translate.to_query(
        messages, fields, services.settings.candidates, services.settings.limits.query_chars
    )
    if not body.execute:
        outcome = await services.chat.decide(query, options)
        return wire.json_response(outcome.as_json(), headers=outcome.headers)
    sent = fields if body.query is None else {**fields, "messages": _as_messages(body.query)}
    outcome = await services.chat.answer(Ask(query=query, options=options, fields=sent))
    answers = {reply.candidate: reply.text for reply in outcome.replies}
    answer = outcome.body["choices"][0]["message"].get("content")
    return wire.json_response(
        {**outcome.as_json(), "answers": answers, "answer": answer}, headers=outcome.headers
    )


def _messages(body: RouteRequest) -> Sequence[Message]:
    if body.query is not None and not body.query.strip():
        raise InputError("query is empty", param="query")
    return body.messages or [Message(role="user", content=body.query)]


def _as_messages(query: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": query}]
