"""POST /route: the routing decision and its certificate; no candidate is called by default.

POST /route/levels: the set at every alpha, as a basis for choosing one. GET /route/levels: the mean
over the calibration rows.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request as HttpRequest
from fastapi import Response

from app.answering.request import InferenceRequest
from app.api.openapi import BODY, CALLS, KEYED, errors
from app.api.respond import application_of, caller_of, note_answer, note_prompt
from app.concurrency.client_disconnect import unless_disconnected
from app.route_table import JsonBody, Routes
from app.routing import query
from app.routing.request import RoutingRequest
from app.services import Services
from app.wire import bodies, candidate_payload
from app.wire.chat import Chat
from app.wire.request_limits import check_fields
from app.wire.schemas import DecisionOptions, LevelsRequest, RouteRequest
from racer_core.errors import InputError

routes = Routes("racer")

ROUTE_BODY: Final = JsonBody(RouteRequest)
LEVELS_BODY: Final = JsonBody(LevelsRequest)

_OPTIONS = frozenset(DecisionOptions.model_fields)
_ROUTE_FIELDS = frozenset(RouteRequest.model_fields) - {"messages"}


@routes.add(
    "POST",
    "/route",
    role="data",
    alias="/v1/route",
    body=ROUTE_BODY,
    is_traced=True,
    summary="Choose the set for a query",
    responses=errors(*KEYED, *BODY, *CALLS),
)
async def route(request: HttpRequest, services: Services) -> Response:
    """With `execute: true` also each candidate's answer, the votes and the aggregate."""
    settings = services.settings
    body, raw = await ROUTE_BODY.read(request, settings.limits)
    fields = candidate_payload.passed_through(
        raw, _ROUTE_FIELDS, allowed=settings.limits.extra_fields
    )
    check_fields(fields, settings.limits)
    if body.query is not None:
        fields |= _as_messages(body.query)
    options = body.racer or DecisionOptions(**{name: getattr(body, name) for name in _OPTIONS})
    caller = caller_of(request)
    application = application_of(request, services, options.application, fields)
    routed_query = query.of_body(
        fields, Chat.path, services.conditions.read(fields), settings, application
    )
    note_prompt(request, services, lambda: routed_query)
    if not body.execute:
        outcome = await services.chat.decide(
            RoutingRequest(
                query=routed_query, options=options, caller=caller, application=application
            )
        )
        return bodies.json_response(outcome.as_json(), headers=outcome.headers)
    api_format = Chat(n=fields.get("n") or 1)
    ticket, spending = request.state.quota_ticket, services.spending
    outcome = await unless_disconnected(
        request,
        services.chat.answer(
            InferenceRequest(
                query=routed_query,
                options=options.model_copy(update={"explain": True}),
                caller=caller,
                application=application,
                api_format=api_format,
                fields=fields,
                spend=ticket.spend,
                reservation=None
                if spending is None
                else spending.open(ticket, caller.name, application),
            )
        ),
    )
    note_answer(request, services, api_format, outcome.body)
    answer = api_format.choices(outcome.body)[0].text
    response: dict[str, Any] = {"answers": {}, **outcome.as_json(), "answer": answer}
    return bodies.json_response(response, headers=outcome.headers)


@routes.add(
    "POST",
    "/route/levels",
    role="data",
    body=LEVELS_BODY,
    summary="The sets that every alpha would choose",
    responses=errors(*KEYED, *BODY, 404, 409),
)
async def levels(request: HttpRequest, services: Services) -> Response:
    """No candidate is called, and nothing is stored or counted."""
    settings = services.settings
    body, _ = await LEVELS_BODY.read(request, settings.limits)
    fields, conditions = _as_messages(body.query), services.conditions.configured
    application = application_of(request, services, body.application, {})
    routed_query = query.of_body(fields, Chat.path, conditions, settings, application)
    options = DecisionOptions(
        alpha=body.alpha,
        score=body.score,
        candidates=body.candidates,
        group=body.group,
        application=body.application,
    )
    note_prompt(request, services, lambda: routed_query)
    routing_request = RoutingRequest(
        query=routed_query,
        options=options,
        caller=caller_of(request),
        application=application,
    )
    return bodies.json_response((await services.chat.levels(routing_request)).as_json())


@routes.add(
    "GET",
    "/route/levels",
    role="data",
    summary="The mean set at every alpha",
    responses=errors(*KEYED, 404),
)
async def mean_levels(request: HttpRequest, services: Services) -> Response:
    """Over the rows of the active calibration: what a choice of alpha trades.

    The rows are those of first turns of the caller's group or application, and the candidates those
    that its key may call. Under `same_answer` alpha chooses no set, and `levels` is empty.
    """
    settings = services.settings
    application = application_of(request, services, None, {})
    if settings.same_answer is not None:
        return bodies.json_response({"calibration_id": services.calibration, "levels": []})
    report = await services.mean_levels.report(
        caller_of(request),
        application,
        settings.alpha_of(application and application.name),
        allows_infeasible=settings.routing.on_infeasible != "reject",
    )
    return bodies.json_response(report)


@routes.add(
    "GET",
    "/examples",
    role="data",
    summary="The configured example questions",
    responses=errors(*KEYED),
)
async def examples(_: HttpRequest, services: Services) -> Response:
    """Those that the page offers; empty where none is configured."""
    return bodies.json_response({"examples": services.settings.examples})


def _as_messages(query: str) -> dict[str, Any]:
    if not query.strip():
        raise InputError("query is empty", param="query")
    return {"messages": [{"role": "user", "content": query}]}
