"""The application: routes and error handlers, and what stands in front of them. No logic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from app.api import (
    calibrate,
    chat,
    completions,
    embeddings,
    feedback,
    health,
    models,
    monitoring,
    responses,
    route,
    ui,
)
from app.api.openapi import DescribedAPI
from app.api.respond import GONE, ClientLeft
from app.http.access_control import AccessControl
from app.http.fast_path import Endpoint, Failed, Straight
from app.http.request_log import RequestLog
from app.http.tracing import RequestTracing
from app.services import Services
from app.ui.assets import Assets
from app.wire import error_envelope
from racer_core import __version__
from racer_core.errors import RacerError

_ANSWERING: Final = (chat, completions, responses, embeddings, route, models)


def create_gateway(services: Services) -> ASGIApp:
    """The application behind the gate, around opened services; tests pass other ones.

    FastAPI's own entry is left to the requests that :class:`Straight` does not take: for each it
    looks into the environment, whether its native telemetry is on.
    """
    log_prompts = services.settings.telemetry.log_prompts
    app = create_app(services)
    posts: dict[str, Endpoint] = {
        route.path: route.endpoint
        for part in _ANSWERING
        for route in part.router.routes
        if isinstance(route, APIRoute) and route.methods == {"POST"}
    }
    stack: ASGIApp = Straight(app, endpoints=posts, services=services, failed=_FAILED)
    if services.tracer is not None:
        stack = RequestTracing(stack, tracer=services.tracer, log_prompts=log_prompts)
    stack = AccessControl(
        stack,
        routes=app.routes,
        settings=services.settings,
        keys=services.keys,
        quotas=services.quotas,
        drain=services.drain,
    )
    return RequestLog(
        stack, metrics=services.metrics, drain=services.drain, log_prompts=log_prompts
    )


def create_app(services: Services) -> FastAPI:
    """Every route, without a gate."""
    app = DescribedAPI(
        title="RACER gateway",
        version=__version__,
        summary="Routes each query to a calibrated set of language models and merges their answers",
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go wherever the Host header says
    )
    app.state.services = services
    app.state.assets = Assets()
    for part in (health, *_ANSWERING, calibrate, feedback, monitoring, ui):
        app.include_router(part.router)
    app.include_router(health.metrics_router)
    for kind, handler in {**_FAILED, HTTPException: _http_error}.items():
        app.add_exception_handler(kind, handler)
    return app


async def _racer_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RacerError)
    status, body = error_envelope.envelope(exc)
    return error_envelope.error_response(
        status,
        body,
        lasting=getattr(exc, "lasting", False),
        retry_after_s=getattr(exc, "retry_after_s", None),
    )


async def _nobody_reads(request: Request, _: Exception) -> Response:
    request.app.state.services.metrics.clients_left.inc()
    return Response(status_code=GONE)


_FAILED: Final[Mapping[type[Exception], Failed]] = {
    RacerError: _racer_error,
    ClientLeft: _nobody_reads,
    ClientDisconnect: _nobody_reads,
}


async def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(exc.status_code, "http_error")
    body = error_envelope.error_body(exc.detail, "invalid_request_error", code=code)
    response = error_envelope.error_response(exc.status_code, body)
    response.headers.update(exc.headers or {})
    return response
