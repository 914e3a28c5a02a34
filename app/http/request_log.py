"""Around everything: request ids, the access line, metrics, and answers nobody expected."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.ids import Ids
from app.services import Drain
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from app.wire import error_envelope, sse

log = logging.getLogger(__name__)
access_log = logging.getLogger("app.access")

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}\Z")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9._:;=,/@+ -]")
_MOST_VALUE_BYTES: Final = 1024
_NOTED: Final = ("decision_id", "selected")
_NOTED_HEADERS: Final = {f"x-racer-{name.replace('_', '-')}".encode(): name for name in _NOTED}
_PROMPTS: Final = ("prompt", "answer")


class RequestLog:
    """Counts and logs answers by route template, and answers what nobody expected.

    A path that matches nothing is one label. Of an unknown error nothing is said: its text may hold
    a prompt. The access line has what the answer's headers say of the decision, or what a handler
    left in the request's state as ``decision_id`` and ``selected``; ``prompt`` and ``answer``, left
    there too, are written only if the operator asked.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, drain: Drain, log_prompts: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._drain = drain
        self._ids = Ids()
        self._noted = (*_NOTED, *_PROMPTS) if log_prompts else _NOTED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through, reading the status on the way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        answer = _Answer(
            send, _request_id(scope) or self._ids.fresh().encode(), state, self._metrics
        )
        state["request_id"] = answer.request_id
        begun = time.monotonic()
        with logs.request_context(answer.request_id):
            try:
                await self._guarded(scope, receive, answer)
            finally:
                self._write(scope, state, answer, time.monotonic() - begun)

    async def _guarded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            if not self._drain.begun:
                raise
            body = error_envelope.error_body(
                "the gateway is being stopped", "api_error", code="shutting_down"
            )
            if answer.status is None:
                await error_envelope.error_response(503, body)(scope, receive, answer.send)
            elif answer.is_event_stream:  # a stream says that it was cut
                await answer.send({"type": "http.response.body", "body": sse.event(body)})
            else:
                raise
        except Exception:
            if answer.status is not None:
                raise
            log.exception("unexpected error")
            body = error_envelope.error_body(
                "internal error; see the gateway's log", "api_error", code="internal_error"
            )
            await error_envelope.error_response(500, body)(scope, receive, answer.send)

    def _write(self, scope: Scope, state: dict[str, Any], answer: _Answer, seconds: float) -> None:
        caller = state.get("caller")
        fields = {
            "method": scope["method"],
            "route": answer.route,
            "status": answer.status,
            "duration_ms": round(seconds * 1000, 3),
            "key": None if caller is None else caller.name,
        }
        fields |= {name: state[name] for name in self._noted if name in state}
        access_log.info("request", extra={"fields": fields})


class _Answer:
    """What goes out: counted, named, and with headers that no text can break out of."""

    def __init__(
        self, send: Send, request_id: bytes, state: dict[str, Any], metrics: Metrics
    ) -> None:
        self._send = send
        self._id = request_id
        self._state = state
        self._metrics = metrics
        self.status: int | None = None
        self.is_event_stream = False

    @property
    def request_id(self) -> str:
        return self._id.decode()

    @property
    def route(self) -> str:
        return self._state.get("path_template") or "unmatched"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._metrics.requests.labels(self.route, message["status"]).inc()
            message["headers"] = [*map(self._seen, message["headers"]), (b"x-request-id", self._id)]
        await self._send(message)

    def _seen(self, header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """A header as it goes out. Names are in lower case, as the interface demands."""
        name, value = header
        if name.startswith(b"x-racer-"):
            value = _safe(value)
            if name in _NOTED_HEADERS:
                self._state.setdefault(_NOTED_HEADERS[name], value.decode())
        elif name == b"content-type":
            self.is_event_stream = value.startswith(b"text/event-stream")
        return name, value


def _request_id(scope: Scope) -> bytes | None:
    """The client's, if it is harmless in a log and in a header."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _REQUEST_ID.match(given[0]):
        return given[0]
    return None


def _safe(value: bytes) -> bytes:
    """A value of ours without what could end it; names and reasons may come from elsewhere."""
    return _UNSAFE.sub(b"_", value[:_MOST_VALUE_BYTES])
