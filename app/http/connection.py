"""How a request may arrive: uvicorn's protocol with the deadlines and limits that it has not.

Without them a connection that sends nothing, half a head or a byte a second stays open for ever,
and a head may have any size. What is refused here is refused in the error envelope too, and the
connection is closed: after a broken message nobody knows where the next one starts.
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
SLOWEST_BYTES_PER_S: Final = 2**10  # of a body, on average
PATIENCE_S: Final = 5.0  # before a body's rate is looked at
_LOOK_EVERY_S: Final = 1.0
_LINGER_S: Final = 2.0  # for the rest of a body whose request was answered already
HURRY_S: Final = 5.0  # for a head with a right key, where an address has no place left
_INT: Final = struct.Struct("i")
_LINE_OVERHEAD: Final = 4  # colon, space, line end


class ConnectionConfig(uvicorn.Config):
    """uvicorn as the gateway runs it: httptools alone, no proxy headers, no logging of its own."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        unauthenticated: UnauthenticatedConnections,
        refused: RefusedConnections,
        upload_paths: Collection[str],
    ) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            proxy_headers=False,  # a client's address is its socket's, whatever it says
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


class _Part(enum.Enum):
    """Which part of a message comes next."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class _Refused(Exception):
    """The message breaks a limit; the parser carries this out of its callbacks."""


class Connection(HttpToolsProtocol):
    """One connection, on a clock."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ConnectionConfig)
        self.access_log = False  # the base class has one as soon as anybody handles log lines
        self._limits = config.limits
        self._unauthenticated = config.unauthenticated
        self._refused = config.refused
        self._upload_paths = config.upload_paths
        self._has_place = True  # among the connections of its address
        self._was_known = False
        self._part = _Part.NOTHING
        self._receiving: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None  # self.cycle is the last one received
        self._refusal: Response | None = None
        self._deaf = False  # nothing more is read from this connection
        self._head_bytes = self._head_count = self._fed_bytes = 0
        self._body_bytes, self._body_since, self._body_s = 0, 0.0, 0.0
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock, unless there are too many connections already."""
        super().connection_made(cast(asyncio.Transport, CorkedTransport(transport, self.loop)))
        if len(self.connections) > self._limits.connections:
            self._refuse(_refusal(503, "too many connections", "overloaded"))
            return
        self._has_place = self._unauthenticated.enter(self, self._address)
        wait_s = self._limits.header_s if self._has_place else HURRY_S
        self._receiving = self.loop.call_later(wait_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every clock."""
        self._stop_receiving()
        self._stop_writing()
        self._unauthenticated.leave(self, self._address)
        super().connection_lost(exc)

    @property
    def is_known(self) -> bool:
        """Whether a request on this connection had a right key: the gate then knows its caller."""
        cycle = self._answering
        return self._was_known or (cycle is not None and "caller" in cycle.scope.get("state", {}))

    @property
    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def data_received(self, data: bytes) -> None:
        """Parse; what breaks a rule ends the connection."""
        if self._deaf or self.parser is None:
            return
        was_in_head = self._part is _Part.HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_answer()  # no other protocol is spoken: the request is answered as is
        except httptools.HttpParserError:
            self._refuse(self._refusal or _refusal(400, "not a valid HTTP request", "invalid_http"))
        else:
            # A header that is not over yet is in the parser's memory, and in no callback.
            self._fed_bytes += len(data) if was_in_head and self._part is _Part.HEAD else 0
            if self._fed_bytes > self._limits.header_bytes + REQUEST_LINE_BYTES:
                self._refuse(_head_is_too_large(self._limits))
            elif self._receiving is None:
                self._start_receiving()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request begins: the gap between requests is over."""
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
        """A header; of a trailer only the size matters, for nobody may add headers afterwards."""
        self._head_count += 1
        self._head_bytes += len(name) + len(value) + _LINE_OVERHEAD
        if self._head_count > MOST_HEADERS or self._head_bytes > self._limits.header_bytes:
            self._break(_head_is_too_large(self._limits))
        if self._part is _Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there; a body has a deadline of its own."""
        assert self.parser is not None
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._break(_refusal(400, "this version of HTTP is not spoken", "invalid_http"))
        self._stop_receiving()
        super().on_headers_complete()
        self._part = _Part.BODY
        is_upload = self.scope["path"] in self._upload_paths
        self._body_s = self._limits.upload_s if is_upload else self._limits.body_s
        self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        self._stop_receiving()
        self._part = _Part.NOTHING
        super().on_message_complete()

    # What the answer calls.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._was_known = self.is_known  # this request may come without a key
        self._answering = cycle
        if not self._has_place:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Wait for what is still on its way, in either direction, but not for long."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._watch_writing()
        if self._part is _Part.NOTHING:
            return
        self._unset_keepalive_if_required()  # the next request has begun, or this one goes on
        if self._part is _Part.BODY and self.cycle.response_complete:
            self._stop_receiving()
            self._receiving = self.loop.call_later(_LINGER_S, self.transport.close)

    # Deadlines of what comes in.

    def _start_receiving(self) -> None:
        if self._part is _Part.HEAD:
            self._receiving = self.loop.call_later(self._limits.header_s, self._head_is_late)
        elif self._part is _Part.BODY:
            self._body_since = self.loop.time()
            wait_s = min(PATIENCE_S, self._body_s)
            self._receiving = self.loop.call_later(wait_s, self._look_at_body)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _head_is_late(self) -> None:
        if not self._has_place:
            message = "too many connections of this address have shown no key"
            self._refuse(_refusal(503, message, "overloaded"))
        elif self._part is _Part.NOTHING:  # nothing was asked, so there is nothing to answer
            self.transport.close()
        else:
            self._refuse(_too_slow("head"))

    def _look_at_body(self) -> None:
        elapsed_s = self.loop.time() - self._body_since
        is_slow = elapsed_s >= PATIENCE_S and self._body_bytes < SLOWEST_BYTES_PER_S * elapsed_s
        # While reading is paused it is the handler that is slow.
        if not self.flow.read_paused and (is_slow or elapsed_s >= self._body_s):
            self._refuse(_too_slow("body"))
            return
        left_s = self._body_s - elapsed_s
        wait_s = min(_LOOK_EVERY_S, left_s) if left_s > 0 else _LOOK_EVERY_S
        self._receiving = self.loop.call_later(wait_s, self._look_at_body)

    # Deadlines of what goes out.

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        """It caught up."""
        self._stop_writing()
        super().resume_writing()

    def _watch_writing(self) -> None:
        if self._writing is None:
            self._unsent_bytes = self._count_unsent()
            self._writing = self.loop.call_later(self._limits.stalled_s, self._look_at_writing)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _look_at_writing(self) -> None:
        self._writing = None
        if self._count_unsent() >= self._unsent_bytes:
            self.transport.abort()  # closing would wait for the client to read
        elif self.transport.get_write_buffer_size() > 0:
            self._watch_writing()

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
        except (OSError, ValueError):  # closed meanwhile
            return unsent
        return unsent + _INT.unpack(queued)[0]

    # Refusals.

    def _break(self, refusal: Response) -> None:
        self._refusal = refusal
        raise _Refused

    def _refuse(self, refusal: Response) -> None:
        """Answer if it is this message's turn, and close; an answer under way is finished first."""
        self._refused.note(refusal.status_code)
        cycle, is_next = self._answering, self._part is _Part.HEAD
        if cycle is not None and not cycle.response_complete:
            if is_next or cycle is not self.cycle:
                self._end_after_answer()
                return
            is_answered = cycle.response_started
        else:
            is_answered = cycle is not None and not is_next
        self._deaf = True
        self._stop_receiving()
        if not is_answered:
            self.transport.write(_as_bytes(refusal))
            self._watch_writing()
        self.transport.close()

    def _end_after_answer(self) -> None:
        """Read nothing more, and close once what is being answered is answered."""
        self._deaf = True
        self._stop_receiving()
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
