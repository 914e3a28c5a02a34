"""Request tracing middleware: one span for each request that may call candidates."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.route_table import Route
from app.telemetry import logs
from app.telemetry.tracing import Tracer


class RequestTracing:
    """Runs behind access control: a request without a key adds nothing to the traces."""

    def __init__(self, app: ASGIApp, *, tracer: Tracer, log_prompts: bool) -> None:
        self._app = app
        self._tracer = tracer
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, inside a span if its route is traced."""
        route: Route = scope["route"]
        if not route.is_traced:
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope["state"]
        with self._tracer.request(route.path, scope["method"], _traceparent(scope)) as span:
            logs.set_trace_id(span.trace_id)

            async def observed_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_status(message["status"])
                await send(message)

            try:
                await self._app(scope, receive, observed_send)
            except Exception as exc:
                span.set_error(type(exc).__name__)
                raise
            finally:
                if self._log_prompts:
                    span.set_texts(prompt=state.get("prompt"), answer=state.get("answer"))


def _traceparent(scope: Scope) -> str | None:
    """The header's value; None if it is missing or repeated, which is ambiguous."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    return given[0].decode("latin-1") if len(given) == 1 else None
