"""create_app: middleware, routes, error handlers. No logic."""

from __future__ import annotations

import logging

from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import wire
from app.lifespan import Services
from app.routes import calibrate, chat, health, models, route
from app.telemetry import Telemetry
from racer_core import __version__
from racer_core.errors import RacerError

log = logging.getLogger(__name__)


def create_app(services: Services) -> FastAPI:
    """Build the gateway around opened services; tests pass other ones."""
    app = FastAPI(
        title="RACER gateway",
        version=__version__,
        summary="Routes each query to a calibrated set of language models and merges their answers",
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go wherever the Host header says
    )
    app.state.services = services
    keeper = services.gatekeeper
    app.include_router(health.router)
    for data in (chat.router, route.router, models.router, health.metrics_router):
        app.include_router(data, dependencies=[Depends(keeper.data)])
    app.include_router(calibrate.router, dependencies=[Depends(keeper.admin)])
    app.add_exception_handler(RacerError, _racer_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Outermost, telemetry=services.telemetry)
    return app


async def _racer_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RacerError)
    status, body = wire.envelope(exc)
    return wire.error_response(status, body, lasting=getattr(exc, "lasting", False))


async def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(exc.status_code, "http_error")
    body = wire.error_body(exc.detail, "invalid_request_error", code=code)
    response = wire.error_response(exc.status_code, body)
    response.headers.update(exc.headers or {})
    return response


class Outermost:
    """Counts answers by route template and status, and answers what nobody expected.

    A path that matches nothing is one label. Of an unknown error nothing is said: its text may hold
    a prompt.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through, reading the status on the way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def counted(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                route = getattr(scope.get("route"), "path", "unmatched")
                self._telemetry.requests.labels(route, message["status"]).inc()
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if started:
                raise
            log.exception("unexpected error")
            body = wire.error_body(
                "internal error; see the gateway's log", "api_error", code="internal_error"
            )
            await wire.error_response(500, body)(scope, receive, counted)
