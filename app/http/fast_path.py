"""The short way from the gate to the handlers that are asked all day.

FastAPI puts five layers between a request and its handler: they find the route that the gate has
found already, open stacks that no handler of ours uses, and look for dependencies. Handlers stay
FastAPI's for the description and for every other method; they take the request and the services,
and raise our own errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.services import Services

Endpoint = Callable[[Request, Services], Awaitable[Response]]
Failed = Callable[[Request, Exception], Awaitable[Response]]


class Straight:
    """Calls handlers by the path that the gate has matched; the rest goes the long way.

    Args:
        app: The long way.
        endpoints: Handlers of ``POST``, by the template of their path.
        services: What they are given.
        failed: What is answered instead where one raises, by the kind of error.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[str, Endpoint],
        services: Services,
        failed: Mapping[type[Exception], Failed],
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._services = services
        self._failed = failed
        self._errors = tuple(failed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        path = scope["state"]["route"] if scope["type"] == "http" else None
        endpoint = self._endpoints.get(path) if path and scope["method"] == "POST" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app  # what is answered to an error asks the request for it
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request, self._services)
        except self._errors as exc:
            kind = next(each for each in type(exc).__mro__ if each in self._failed)
            response = await self._failed[kind](request, exc)
        await response(scope, receive, send)
