"""Outermost middleware: request ids, access log, metrics and error 500; and spans of requests."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from typing import Any, Final

from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.exchange import Header
from app.ids import IdGenerator
from app.route_table import Route
from app.routing.decision import HOLDS, VOID
from app.services import Drain
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.wire import error_envelope, sse
from racer_core.calibration.certificate import base_reason

log = logging.getLogger(__name__)
# Log lines show this name, and operators filter by it. The package `app.access` logs under the
# names of its modules.
access_log = logging.getLogger("app.access")

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}\Z")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9._:;=,/@+ -]")
_MAX_VALUE_BYTES: Final = 1024
_LOGGED: Final = ("decision_id", "selected", "guarantee")
_LOGGED_HEADERS: Final = {f"x-racer-{name.replace('_', '-')}".encode(): name for name in _LOGGED}
_PROMPTS: Final = ("prompt", "answer")


class RequestLog:
    """The outermost middleware: logs and counts responses by path template.

    All paths without a route share one label. An unexpected error is answered with status 500 and
    without its message, which may contain a prompt. The log line contains ``decision_id`` and
    ``selected`` from the response headers, or as a handler left them in the request's state. It
    contains ``prompt`` and ``answer`` from that state only if the configuration turns prompts on.
    A stream that the end of the process cuts gets a last event; ``error_event`` of the state, left
    by the handler, writes it in the API's own form.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, drain: Drain, log_prompts: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._drain = drain
        self._ids = IdGenerator()
        self._logged = (*_LOGGED, *_PROMPTS) if log_prompts else _LOGGED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; then log and count its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        response = _ResponseObserver(
            send=send,
            request_id=_request_id(scope) or self._ids.new_id().encode(),
            state=state,
            metrics=self._metrics,
        )
        state["request_id"] = response.request_id
        begun = time.monotonic()
        with logs.request_context(response.request_id):
            try:
                await self._answer(scope, receive, response)
            finally:
                response.count()
                self._log(scope, state, response, time.monotonic() - begun)

    async def _answer(self, scope: Scope, receive: Receive, response: _ResponseObserver) -> None:
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            if not self._drain.begun:
                raise
            body = error_envelope.error_body(
                "the gateway is being stopped", "api_error", code="shutting_down"
            )
            if response.status is None:
                await _error(503, body, scope)(scope, receive, response.send)
            elif response.is_event_stream:  # the last event says why the stream ends
                write = scope["state"].get("error_event")
                event = sse.event(body) if write is None else write(503, body)
                await response.send({"type": "http.response.body", "body": event})
            else:
                raise
        except Exception:
            if response.status is not None:
                raise
            log.exception("unexpected error")
            body = error_envelope.error_body(
                "internal error; see the gateway's log", "api_error", code="internal_error"
            )
            await _error(500, body, scope)(scope, receive, response.send)

    def _log(
        self, scope: Scope, state: dict[str, Any], response: _ResponseObserver, seconds: float
    ) -> None:
        caller = state.get("caller")
        fields = {
            "method": scope["method"],
            "route": response.route,
            "status": response.status,
            "duration_ms": round(seconds * 1000, 3),
            "key": None if caller is None else caller.name,
        }
        fields |= {name: state[name] for name in self._logged if name in state}
        logs.info(access_log, "request", fields)


class _ResponseObserver:
    """Counts a response, adds the request id and replaces unsafe characters in header values."""

    def __init__(
        self, *, send: Send, request_id: bytes, state: dict[str, Any], metrics: Metrics
    ) -> None:
        self._send = send
        self._id = request_id
        self._state = state
        self._metrics = metrics
        self.status: int | None = None
        self.is_event_stream = False
        self._is_counted = False

    @property
    def request_id(self) -> str:
        return self._id.decode()

    @property
    def route(self) -> str:
        return self._state.get("path_template") or "unmatched"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._headers(message["headers"])
        elif not message.get("more_body"):
            self.count()  # before the client can ask for the metrics
        await self._send(message)

    def count(self) -> None:
        """Count a response once, at its end: until then the certificate of a stream is pending."""
        if self.status is None or self._is_counted:
            return
        self._is_counted = True
        guarantee = self._state.get("guarantee", "")
        certified = "true" if guarantee == HOLDS else ""
        reason = ""
        if VOID in guarantee:
            certified = "false"
            reason = base_reason(guarantee[len(VOID) :].partition(",")[0])
        application = self._state.get("application", "")
        self._metrics.requests_of(self.route, self.status, application, certified, reason).inc()

    def _headers(self, headers: Iterable[Header]) -> list[Header]:
        """The headers with safe values. Names are in lower case, as ASGI demands."""
        safe: list[Header] = []
        for name, value in headers:
            if name.startswith(b"x-racer-"):
                value = _UNSAFE.sub(
                    b"_", value[:_MAX_VALUE_BYTES]
                )  # a candidate's or client's text
                if name in _LOGGED_HEADERS:
                    self._state.setdefault(_LOGGED_HEADERS[name], value.decode())
            elif name == b"content-type":
                self.is_event_stream = value.startswith(b"text/event-stream")
            safe.append((name, value))
        safe.append((b"x-request-id", self._id))
        return safe


def _error(status: int, body: dict[str, Any], scope: Scope) -> Response:
    return error_envelope.error_response(
        status, body, path=scope["path"], request_id=scope["state"]["request_id"]
    )


def _request_id(scope: Scope) -> bytes | None:
    """The request id of the client, if it is safe in a log line and in a header."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _REQUEST_ID.match(given[0]):
        return given[0]
    return None


# Request tracing middleware: one span for each request that may call candidates.


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
