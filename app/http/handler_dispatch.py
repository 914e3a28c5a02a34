"""Request dispatch: the ASGI application that calls the handler of the matched route."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from app.route_table import Route
from app.services import Services

ErrorHandler = Callable[[Exception, Scope], Response]


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
