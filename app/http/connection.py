"""HTTP/1.1 server protocol with deadlines and size limits, on top of uvicorn's httptools protocol.

uvicorn has no limit for slow clients (slowloris) and for the size of a head: a connection that
sends nothing, half a head or one byte a second would stay open forever. A request that breaks a
limit is answered in the error envelope, and its connection is closed: after a malformed message the
start of the next one is unknown.
"""

from __future__ import annotations

import asyncio
import enum
import fcntl
import math
import struct
import termios
from collections.abc import Collection
from typing import Any, Final, cast

import httptools
import uvicorn
from fastapi.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from app.http.connection_limits import UnauthenticatedConnections
from app.http.corked_transport import CorkedTransport
from app.http.refused_connections import RefusedConnections
from app.settings import Limits
from app.wire import error_envelope

MOST_HEADERS: Final = 100
REQUEST_LINE_BYTES: Final = 8 * 2**10
MIN_BODY_BYTES_PER_S: Final = 2**10  # on average, once the grace period is over
BODY_GRACE_S: Final = 5.0
NO_SLOT_HEADER_S: Final = 5.0
RATE_CHECK_S: Final = 1.0
LINGER_S: Final = 2.0
BODY_RECEIVED: Final = "is_body_received"  # in the state of a request's scope
_INT: Final = struct.Struct("i")
_LINE_OVERHEAD: Final = 4  # colon, space, line end


class ConnectionConfig(uvicorn.Config):
    """uvicorn's configuration: httptools only, no proxy headers, no access log of its own.

    Args:
        app: The gateway.
        limits: Deadlines and sizes.
        unauthenticated: Connection slots of each client address.
        refused: Counts refused connections.
        upload_paths: Paths whose bodies have ``limits.upload_s`` to arrive.
        body_grace_s: Seconds before the transfer rate of a body is checked.
        no_slot_header_s: Deadline in seconds for a head with a valid key on a connection without a
            slot.
        rate_check_s: Seconds between two checks of a body's transfer rate.
        linger_s: Seconds for the rest of a body whose request is answered already.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        unauthenticated: UnauthenticatedConnections,
        refused: RefusedConnections,
        upload_paths: Collection[str],
        body_grace_s: float = BODY_GRACE_S,
        no_slot_header_s: float = NO_SLOT_HEADER_S,
        rate_check_s: float = RATE_CHECK_S,
        linger_s: float = LINGER_S,
    ) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            proxy_headers=False,  # a client's address is its socket's, never a header's
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=math.ceil(limits.keep_alive_s),
            timeout_graceful_shutdown=math.ceil(limits.drain_s),
        )
        self.limits = limits
        self.unauthenticated = unauthenticated
        self.refused = refused
        self.upload_paths = upload_paths
        self.body_grace_s = body_grace_s
        self.no_slot_header_s = no_slot_header_s
        self.rate_check_s = rate_check_s
        self.linger_s = linger_s


class _Part(enum.Enum):
    """The part of a message that the parser expects next."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class _LimitExceeded(Exception):
    """The message breaks a limit. Raised in a callback of the parser, which propagates it."""


class Connection(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ConnectionConfig)
        self.access_log = False  # the base class turns it on as soon as a log handler exists
        self._limits = config.limits
        self._unauthenticated = config.unauthenticated
        self._refused = config.refused
        self._upload_paths = config.upload_paths
        self._body_grace_s = config.body_grace_s
        self._no_slot_header_s = config.no_slot_header_s
        self._rate_check_s = config.rate_check_s
        self._linger_s = config.linger_s
        self._has_slot = True  # among the unauthenticated connections of its address
        self._was_authenticated = False  # by an earlier request
        self._part = _Part.NOTHING
        self._receive_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None  # self.cycle is the last one received
        self._refusal: Response | None = None
        self._ignores_input = False
        self._head_bytes = self._head_count = self._fed_bytes = 0
        self._body_bytes, self._body_since, self._body_deadline_s = 0, 0.0, 0.0
        self._acknowledged_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first head, or refuse the connection above the limit."""
        self._corked = CorkedTransport(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._corked))
        if len(self.connections) > self._limits.connections:
            self._refuse(_refusal(503, "too many connections", "overloaded"))
            return
        self._has_slot = self._unauthenticated.enter(self, self._address)
        wait_s = self._limits.header_s if self._has_slot else self._no_slot_header_s
        self._receive_timer = self.loop.call_later(wait_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and release the slot."""
        self._stop_receive_timer()
        self._stop_write_timer()
        self._unauthenticated.leave(self, self._address)
        super().connection_lost(exc)

    @property
    def is_authenticated(self) -> bool:
        """Whether a request on this connection had a valid key: access control set its caller."""
        cycle = self._answering
        return self._was_authenticated or (
            cycle is not None and "caller" in cycle.scope.get("state", {})
        )

    @property
    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def data_received(self, data: bytes) -> None:
        """Parse; a message that breaks a rule ends the connection."""
        if self._ignores_input or self.parser is None:
            return
        was_in_head = self._part is _Part.HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_answer()  # protocol upgrades are ignored: the request is answered
        except httptools.HttpParserError:
            self._refuse(self._refusal or _refusal(400, "not a valid HTTP request", "invalid_http"))
        else:
            # An unfinished header is in the parser's memory; no callback has reported it.
            self._fed_bytes += len(data) if was_in_head and self._part is _Part.HEAD else 0
            if self._fed_bytes > self._limits.header_bytes + REQUEST_LINE_BYTES:
                self._refuse(_head_is_too_large(self._limits))
            elif self._receive_timer is None:
                self._start_receive_timer()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """A request begins: the keep-alive timeout is over."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._part = _Part.HEAD
        self._head_bytes = self._head_count = self._fed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        super().on_url(url)
        if len(self.url) > REQUEST_LINE_BYTES:
            self._break(_refusal(414, "the request line is too long", "uri_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers count towards the size limit and are dropped."""
        self._head_count += 1
        self._head_bytes += len(name) + len(value) + _LINE_OVERHEAD
        if self._head_count > MOST_HEADERS or self._head_bytes > self._limits.header_bytes:
            self._break(_head_is_too_large(self._limits))
        if self._part is _Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; the body has its own deadline."""
        assert self.parser is not None
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._break(_refusal(400, "unsupported HTTP version: send HTTP/1.1", "invalid_http"))
        self._stop_receive_timer()
        super().on_headers_complete()
        self._part = _Part.BODY
        self.scope.setdefault("state", {})[BODY_RECEIVED] = False
        is_upload = self.scope["path"] in self._upload_paths
        self._body_deadline_s = self._limits.upload_s if is_upload else self._limits.body_s
        self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._stop_receive_timer()
        self._part = _Part.NOTHING
        state = self.scope.setdefault("state", {})
        state[BODY_RECEIVED] = True  # before access control sees the request, or later
        if (ticket := state.get("quota_ticket")) is not None:
            ticket.body_received()
        super().on_message_complete()

    # Callbacks of the response.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._was_authenticated = self.is_authenticated  # this request may come without a key
        self._answering = cycle
        if not self._has_slot:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Set deadlines for the unsent rest of the response and for the rest of the body."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._start_write_timer()
        if self._part is _Part.NOTHING:
            return
        self._unset_keepalive_if_required()  # the next request has begun, or this one goes on
        if self._part is _Part.BODY and self.cycle.response_complete:
            self._stop_receive_timer()
            self._receive_timer = self.loop.call_later(self._linger_s, self.transport.close)

    # Deadlines of requests.

    def _start_receive_timer(self) -> None:
        if self._part is _Part.HEAD:
            self._receive_timer = self.loop.call_later(self._limits.header_s, self._head_is_late)
        elif self._part is _Part.BODY:
            self._body_since = self.loop.time()
            wait_s = min(self._body_grace_s, self._body_deadline_s)
            self._receive_timer = self.loop.call_later(wait_s, self._check_body_rate)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _head_is_late(self) -> None:
        if not self._has_slot:
            message = "too many connections of this address have shown no key"
            self._refuse(_refusal(503, message, "overloaded"))
        elif self._part is _Part.NOTHING:  # no request has begun, so there is none to answer
            self.transport.close()
        else:
            self._refuse(_too_slow("head"))

    def _check_body_rate(self) -> None:
        elapsed_s = self.loop.time() - self._body_since
        is_slow = (
            elapsed_s >= self._body_grace_s and self._body_bytes < MIN_BODY_BYTES_PER_S * elapsed_s
        )
        # While reading is paused, the handler is slow and not the client.
        if not self.flow.read_paused and (is_slow or elapsed_s >= self._body_deadline_s):
            self._refuse(_too_slow("body"))
            return
        left_s = self._body_deadline_s - elapsed_s
        wait_s = min(self._rate_check_s, left_s) if left_s > 0 else self._rate_check_s
        self._receive_timer = self.loop.call_later(wait_s, self._check_body_rate)

    # Deadlines of responses.

    def pause_writing(self) -> None:
        """The write buffer is full: the client reads more slowly than the handler writes."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        self._stop_write_timer()
        super().resume_writing()

    def _start_write_timer(self) -> None:
        if self._write_timer is None:
            self._acknowledged_bytes = self._count_acknowledged()
            self._write_timer = self.loop.call_later(self._limits.stalled_s, self._check_stalled)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _check_stalled(self) -> None:
        """Close if nothing was acknowledged meanwhile; the unsent bytes may be a later answer's."""
        self._write_timer = None
        if self._count_unsent() and self._count_acknowledged() <= self._acknowledged_bytes:
            self.transport.abort()  # closing would wait for the client to read
        elif self.transport.get_write_buffer_size() > 0:
            self._start_write_timer()

    def _count_acknowledged(self) -> int:
        return self._corked.written_bytes - self._count_unsent()

    def _count_unsent(self) -> int:
        """Bytes that the client has not acknowledged, in the transport's and the kernel's buffers.

        The transport's buffer alone is not enough: the kernel takes more data only when a third of
        its send buffer (4 MiB) is free, so that buffer stands still until the client has read
        1.4 MB. Without the kernel's queue (TIOCOUTQ) a client that reads less than 24 kB/s would be
        cut off after the default ``limits.stalled_s`` of 60 s. The call takes 3 us, and is made
        only while an answer waits for its client.
        """
        unsent = self.transport.get_write_buffer_size()
        kernel = self.transport.get_extra_info("socket")
        try:
            queued = fcntl.ioctl(kernel.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # the socket is closed
            return unsent
        return unsent + _INT.unpack(queued)[0]

    # Refusals.

    def _break(self, refusal: Response) -> None:
        self._refusal = refusal
        raise _LimitExceeded

    def _refuse(self, refusal: Response) -> None:
        """Answer with an error and close; a response in progress is finished instead."""
        self._refused.count(refusal.status_code)
        cycle, is_next = self._answering, self._part is _Part.HEAD
        if cycle is not None and not cycle.response_complete:
            if is_next or cycle is not self.cycle:
                self._end_after_answer()
                return
            is_answered = cycle.response_started
        else:
            is_answered = cycle is not None and not is_next
        self._ignores_input = True
        self._stop_receive_timer()
        if not is_answered:
            self.transport.write(_as_bytes(refusal))
            self._start_write_timer()
        self.transport.close()

    def _end_after_answer(self) -> None:
        """Read nothing more, and close after the response in progress."""
        self._ignores_input = True
        self._stop_receive_timer()
        self.pipeline.clear()
        cycle = self._answering
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False


def _refusal(status: int, message: str, code: str) -> Response:
    kind = "api_error" if status >= 500 else "invalid_request_error"
    response = error_envelope.error_response(
        status, error_envelope.error_body(message, kind, code=code)
    )
    response.headers["connection"] = "close"
    return response


def _head_is_too_large(limits: Limits) -> Response:
    most = f"{limits.header_bytes:,} bytes or {MOST_HEADERS} headers"
    return _refusal(431, f"the request's headers are over {most}", "headers_too_large")


def _too_slow(part: str) -> Response:
    return _refusal(408, f"the {part} of the request came too slowly", "request_timeout")


def _as_bytes(response: Response) -> bytes:
    lines = [b"%s: %s\r\n" % header for header in response.raw_headers]
    return b"".join((STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)))
