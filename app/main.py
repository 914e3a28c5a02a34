"""The application: middleware around the handlers of the route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.failed_logins import FailedLogins
from app.api.respond import CLIENT_CLOSED_REQUEST
from app.api.routes import ROUTES
from app.concurrency.client_disconnect import ClientDisconnected
from app.http.access_control import AccessControl
from app.http.admission_queue import AdmissionQueue
from app.http.request_log import RequestLog, RequestTracing
from app.route_table import Route
from app.services import Services
from app.settings import Secrets, Settings
from app.wire import error_envelope
from racer_core.errors import RacerError

ErrorHandler = Callable[[Exception, Scope], Response]


def create_gateway(services: Services) -> ASGIApp:
    """The ASGI application for opened services; it follows their configuration."""
    return _Gateway(services)


class _Gateway:
    """Passes each request to the application of the configuration in force when it begins."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # Of all configurations: a reload forgives no wrong key, and lets no queue be passed.
        self._failed_logins = FailedLogins(services.settings.access.failures_per_minute)
        self._admission_queue = AdmissionQueue()
        self._app = self._application(services)
        services.reload.subscribe(self._follow)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(scope, receive, send)

    def _follow(self, settings: Settings, secrets: Secrets) -> None:
        self._services = self._services.under(settings, secrets)
        self._failed_logins.limit_to(settings.access.failures_per_minute)
        self._app = self._application(self._services)

    def _application(self, services: Services) -> ASGIApp:
        """The application of one configuration: log, access control, tracing, dispatch."""
        log_prompts = services.settings.telemetry.log_prompts
        app: ASGIApp = HandlerDispatch(services, _error_handlers(services))
        if services.tracer is not None:
            app = RequestTracing(app, tracer=services.tracer, log_prompts=log_prompts)
        app = AccessControl(
            app,
            routes=ROUTES,
            settings=services.settings,
            keys=services.keys,
            quotas=services.quotas,
            failed_logins=self._failed_logins,
            admission_queue=self._admission_queue,
        )
        return RequestLog(
            app, metrics=services.metrics, drain=services.drain, log_prompts=log_prompts
        )


class HandlerDispatch:
    """Calls handlers and turns their errors into responses.

    Access control has matched the route. Other exceptions propagate to the request log.

    Args:
        services: Passed to every handler.
        error_handlers: Response to an exception, by its class or nearest base class.
    """

    def __init__(
        self, services: Services, error_handlers: Mapping[type[Exception], ErrorHandler]
    ) -> None:
        self._services = services
        self._error_handlers = error_handlers
        self._errors = tuple(error_handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        route: Route = scope["route"]
        request = Request(scope, receive, send)
        try:
            response = await route.handler(request, self._services)
        except self._errors as exc:
            kind = next(each for each in type(exc).__mro__ if each in self._error_handlers)
            response = self._error_handlers[kind](exc, scope)
        await response(scope, receive, send)


def _error_handlers(services: Services) -> Mapping[type[Exception], ErrorHandler]:
    def client_disconnected(_: Exception, __: Scope) -> Response:
        services.metrics.client_disconnects.inc()
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    return {
        RacerError: _racer_error,
        ClientDisconnected: client_disconnected,
        ClientDisconnect: client_disconnected,
    }


def _racer_error(exc: Exception, scope: Scope) -> Response:
    assert isinstance(exc, RacerError)
    status, body = error_envelope.envelope(exc)
    return error_envelope.error_response(
        status,
        body,
        path=scope["path"],
        request_id=scope["state"]["request_id"],
        lasting=getattr(exc, "lasting", False),
        retry_after_s=getattr(exc, "retry_after_s", None),
    )
