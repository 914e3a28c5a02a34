"""create_app: middleware, routes, error handlers. No logic."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app import wire
from app.front.gate import Gate
from app.front.outermost import Outermost
from app.front.traced import Traced
from app.lifespan import Services
from app.openapi import DescribedAPI
from app.routes import (
    calibrate,
    chat,
    completions,
    embeddings,
    feedback,
    health,
    models,
    responses,
    route,
    watching,
)
from app.routes.answering import GONE, ClientLeft
from racer_core import __version__
from racer_core.errors import RacerError


def create_app(services: Services) -> FastAPI:
    """Build the gateway around opened services; tests pass other ones."""
    app = DescribedAPI(
        title="RACER gateway",
        version=__version__,
        summary="Routes each query to a calibrated set of language models and merges their answers",
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go wherever the Host header says
    )
    app.state.services = services
    answering = (chat, completions, responses, embeddings, route, models)
    for part in (health, *answering, calibrate, feedback, watching):
        app.include_router(part.router)
    app.include_router(health.metrics_router)
    app.add_exception_handler(RacerError, _racer_error)
    app.add_exception_handler(HTTPException, _http_error)
    for gone in (ClientLeft, ClientDisconnect):
        app.add_exception_handler(gone, _nobody_reads)
    # The last one added is the first to see a request.
    log_prompts = services.settings.telemetry.log_prompts
    if services.tracer is not None:
        app.add_middleware(Traced, tracer=services.tracer, log_prompts=log_prompts)
    app.add_middleware(
        Gate,
        routes=app.routes,
        settings=services.settings,
        keys=services.keys,
        drain=services.drain,
    )
    app.add_middleware(
        Outermost,
        telemetry=services.telemetry,
        drain=services.drain,
        log_prompts=log_prompts,
    )
    return app


async def _racer_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RacerError)
    status, body = wire.envelope(exc)
    return wire.error_response(
        status,
        body,
        lasting=getattr(exc, "lasting", False),
        retry_after_s=getattr(exc, "retry_after_s", None),
    )


async def _nobody_reads(request: Request, _: Exception) -> Response:
    request.app.state.services.telemetry.clients_left.inc()
    return Response(status_code=GONE)


async def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(exc.status_code, "http_error")
    body = wire.error_body(exc.detail, "invalid_request_error", code=code)
    response = wire.error_response(exc.status_code, body)
    response.headers.update(exc.headers or {})
    return response
