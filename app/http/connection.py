"""HTTP/1.1 server protocol with deadlines and size limits, as uvicorn's server starts it.

uvicorn's own has no limit for slow clients (slowloris) and for the size of a head: a
connection that sends nothing, half a head or one byte a second would stay open forever. A request
that breaks a limit is answered in the error envelope, and its connection is closed: after a
malformed message the start of the next one is unknown.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from collections.abc import Collection
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
import uvicorn
from fastapi.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from app.http.connection_limits import ConnectionLimits
from app.http.deadlines import BODY_WINDOW_S, RATE_CHECK_S, ReceiveDeadline, WriteDeadline
from app.http.exchange import Exchange, Header
from app.http.refusals import (
    MOST_HEADERS,
    RefusedConnections,
    as_bytes,
    head_is_too_large,
    refusal,
    too_many_connections,
    too_slow,
)
from app.settings import Limits

REQUEST_LINE_BYTES: Final = 8 * 2**10
NO_SLOT_HEADER_S: Final = 5.0
LINGER_S: Final = 2.0
BODY_RECEIVED: Final = "is_body_received"  # in the state of a request's scope
_LINE_OVERHEAD: Final = 4  # colon, space, line end
_TOO_MANY: Final = as_bytes(too_many_connections(""))
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class ConnectionConfig(uvicorn.Config):
    """uvicorn's configuration: httptools only, no proxy headers, no access log of its own.

    Args:
        app: The gateway.
        limits: Deadlines and sizes.
        connections: Which connections have a slot.
        refused: Counts refused connections.
        probe_paths: Paths that are answered also where others are refused.
        upload_paths: Paths whose bodies have ``limits.upload_s`` to arrive.
        body_window_s: Seconds over which the transfer rate of a body is measured.
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
        connections: ConnectionLimits,
        refused: RefusedConnections,
        probe_paths: Collection[str],
        upload_paths: Collection[str],
        body_window_s: float = BODY_WINDOW_S,
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
        self.application = app
        self.limits = limits
        self.connections = connections
        self.probe_paths = probe_paths
        self.refused = refused
        self.upload_paths = upload_paths
        self.body_window_s = body_window_s
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


class Connection(asyncio.Protocol):
    """One client connection. Its parser is httptools'; requests are answered one after the other.

    Attributes:
        is_writing_paused: The client reads more slowly than the response is written.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any] | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        assert isinstance(config, ConnectionConfig)
        self._config = config
        self._limits = config.limits
        self._server = server_state
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # A request whose connection is to be closed is answered, whatever follows it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._has_slot = True
        self._was_authenticated = False  # by an earlier request
        self._part = _Part.NOTHING
        self._idle_since: float | None = None  # no request since then
        self._idle_timer: asyncio.TimerHandle | None = None
        self._receive_deadline = ReceiveDeadline(
            self._loop,
            lambda: self._is_reading_paused,
            window_s=config.body_window_s,
            check_s=config.rate_check_s,
        )
        self._received: Exchange | None = None  # the last one whose head is complete
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()  # requests that came before that one's answer
        self._refusal: Response | None = None
        self._ignores_input = False
        self._is_reading_paused = self.is_writing_paused = False
        self._drained = asyncio.Event()
        self._url = b""
        self._headers: list[Header] = []
        self._expects_continue = False
        self._head_bytes = self._head_count = self._fed_bytes = 0
        self._body_deadline_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first head, or refuse the connection above the limits."""
        self._transport = cast("asyncio.Transport", transport)
        self._write_deadline = WriteDeadline(self._transport, self._limits.stalled_s)
        self._local = get_local_addr(self._transport)
        self._client = get_remote_addr(self._transport)
        limits = self._config.connections
        self._has_slot = limits.take_slot(self, self._address)
        if not self._has_slot and not limits.take_place(self):
            self.turn_away()
            return
        self._server.connections.add(cast("Any", self))
        wait_s = self._limits.header_s if self._has_slot else self._config.no_slot_header_s
        self._receive_deadline.start(wait_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, release the slot and tell who answers."""
        self._server.connections.discard(cast("Any", self))
        self._receive_deadline.stop()
        self._write_deadline.stop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._config.connections.leave(self, self._address)
        self._waiting.clear()
        for each in {self._answering, self._received} - {None}:
            cast("Exchange", each).disconnect()
        self.resume_writing()
        self._parser = None  # which refers to this object

    @property
    def is_authenticated(self) -> bool:
        """Whether a request on this connection had a valid key: access control set its caller."""
        exchange = self._answering
        return self._was_authenticated or (
            exchange is not None and "caller" in exchange.scope["state"]
        )

    @property
    def is_answering(self) -> bool:
        """Whether a request on this connection is being answered."""
        return self._answering is not None and not self._answering.is_complete

    def turn_away(self) -> None:
        """Close at once, for others: an answer is sent, and neither it nor the rest is waited for.

        A connection without a slot is at its end once a request on it was answered or refused.
        """
        if self._answering is not None or self._ignores_input:
            self._transport.abort()
            return
        self._config.refused.count(503)
        self._ignores_input = True
        self.write(_TOO_MANY)
        self._transport.close()

    @property
    def _address(self) -> str:
        return "" if self._client is None else self._client[0]

    def shutdown(self) -> None:
        """Close, or finish the response in progress and close then. The server calls this."""
        if self._received is None or self._received.is_complete:
            self._transport.close()
        else:
            self._received.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Parse; a message that breaks a rule ends the connection."""
        if self._ignores_input or self._parser is None:
            return
        was_in_head = self._part is _Part.HEAD
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_answer()  # protocol upgrades are ignored: the request is answered
        except httptools.HttpParserError:
            self._refuse(
                self._refusal
                or refusal(400, "not a valid HTTP request", "invalid_http", self._path)
            )
        else:
            # An unfinished header is in the parser's memory; no callback has reported it.
            self._fed_bytes += len(data) if was_in_head and self._part is _Part.HEAD else 0
            if self._fed_bytes > self._limits.header_bytes + REQUEST_LINE_BYTES:
                self._refuse(head_is_too_large(self._limits, self._path))
            elif self._part is not _Part.NOTHING and not self._receive_deadline.is_running:
                self._start_receive_deadline()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """A request begins: the keep-alive timeout is over."""
        self._idle_since = None
        self._part = _Part.HEAD
        self._url, self._headers, self._expects_continue = b"", [], False
        self._head_bytes = self._head_count = self._fed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._url += url
        if len(self._url) > REQUEST_LINE_BYTES:
            self._break(refusal(414, "the request line is too long", "uri_too_long", self._path))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers count towards the size limit and are dropped."""
        self._head_count += 1
        self._head_bytes += len(name) + len(value) + _LINE_OVERHEAD
        if self._head_count > MOST_HEADERS or self._head_bytes > self._limits.header_bytes:
            self._break(head_is_too_large(self._limits, self._path))
        if self._part is _Part.HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete; the body has its own deadline."""
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            message = "unsupported HTTP version: send HTTP/1.1"
            self._break(refusal(400, message, "invalid_http", self._path))
        scope = self._scope(parser.get_method().decode("ascii"), version)
        self._receive_deadline.expect_body()
        self._part = _Part.BODY
        if (
            not self._has_slot
            and scope["path"] not in self._config.probe_paths
            and not self._config.connections.has_room_to_answer()
        ):
            self._break(too_many_connections(self._path))
        is_upload = scope["path"] in self._config.upload_paths
        self._body_deadline_s = self._limits.upload_s if is_upload else self._limits.body_s
        exchange = self._received = Exchange(
            self,
            scope,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        if self._answering is None or self._answering.is_complete:
            self._answer(exchange)
        else:
            self.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._receive_deadline.count_body(len(body))
        assert self._received is not None
        self._received.add_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._receive_deadline.stop()
        self._part = _Part.NOTHING
        assert self._received is not None
        state = self._received.scope["state"]
        state[BODY_RECEIVED] = True  # before access control sees the request, or later
        if (ticket := state.get("quota_ticket")) is not None:
            ticket.body_received()
        self._received.end_body()
        if self._received.is_complete:  # it was answered before its body had arrived
            self._wait_for_request()

    def _scope(self, method: str, version: str) -> dict[str, Any]:
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")  # None for CONNECT: an error like any other
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "client": self._client,
            "server": self._local,
            "state": {BODY_RECEIVED: False},
        }

    # Responses.

    def _answer(self, exchange: Exchange) -> None:
        self._was_authenticated = self.is_authenticated  # this request may come without a key
        self._answering = exchange
        if not self._has_slot:
            exchange.keep_alive = False
        task = self._loop.create_task(exchange.run(self._config.application))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def response_complete(self) -> None:
        """Answer the next request, or wait for it, with deadlines for what is still to be sent."""
        assert self._answering is not None
        assert self._received is not None
        if not self._answering.keep_alive:
            self._transport.close()
        if not self._transport.is_closing():
            self.resume_reading()
            if self._waiting:
                self._answer(self._waiting.popleft())
            elif self._part is _Part.NOTHING:
                self._wait_for_request()
        if self._transport.get_write_buffer_size() > 0:
            self._write_deadline.start()
        if self._part is _Part.BODY and self._received.is_complete:
            self._receive_deadline.start(self._config.linger_s, self._transport.close)

    @property
    def default_headers(self) -> list[Header]:
        """The server's, with its date."""
        return self._server.default_headers

    def write(self, data: bytes) -> None:
        """Send bytes; uvloop sends all writes of one iteration together."""
        self._write_deadline.written_bytes += len(data)
        self._transport.write(data)

    def close(self) -> None:
        """Close once everything is sent."""
        self._transport.close()

    async def drain(self) -> None:
        """Wait while writing is paused."""
        while self.is_writing_paused:
            await self._drained.wait()

    def pause_writing(self) -> None:
        """The write buffer is full: the client reads more slowly than the handler writes."""
        self.is_writing_paused = True
        self._drained.clear()
        self._write_deadline.start()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        self.is_writing_paused = False
        self._drained.set()
        self._write_deadline.stop()

    def pause_reading(self) -> None:
        """Receive no more for now: a body waits for its handler, or a request for its turn."""
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Deadline between requests.

    def _wait_for_request(self) -> None:
        self._idle_since = self._loop.time()
        if self._idle_timer is None:  # one timer outlasts many requests
            self._idle_timer = self._loop.call_later(self._limits.keep_alive_s, self._check_idle)

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return
        left_s = self._idle_since + self._limits.keep_alive_s - self._loop.time()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._check_idle)
        else:
            self._transport.close()

    # Deadline of a request.

    def _start_receive_deadline(self) -> None:
        if self._part is _Part.HEAD:
            self._receive_deadline.start(self._limits.header_s, self._head_is_late)
        else:
            self._receive_deadline.start_body(
                self._body_deadline_s, lambda: self._refuse(too_slow("body", self._path))
            )

    def _head_is_late(self) -> None:
        if not self._has_slot:
            self._refuse(too_many_connections(self._path))
        elif self._part is _Part.NOTHING:  # no request has begun, so there is none to answer
            self._transport.close()
        else:
            self._refuse(too_slow("head", self._path))

    # Refusals.

    @property
    def _path(self) -> str:
        """The path of the request that is received, as far as it is known."""
        return self._url.partition(b"?")[0].decode("latin-1")

    def _break(self, response: Response) -> None:
        self._refusal = response
        raise _LimitExceeded

    def _refuse(self, response: Response) -> None:
        """Answer with an error and close; a response in progress is finished instead."""
        self._config.refused.count(response.status_code)
        exchange, is_next = self._answering, self._part is _Part.HEAD
        if exchange is not None and not exchange.is_complete:
            if is_next or exchange is not self._received:
                self._end_after_answer()
                return
            is_answered = exchange.is_started
        else:
            is_answered = exchange is not None and not is_next
        self._ignores_input = True
        self._receive_deadline.stop()
        self._waiting.clear()
        if is_answered:
            self._transport.close()
            return
        self.write(as_bytes(response))
        if exchange is not None:  # its handler may still be at work
            exchange.disconnect()
        self._write_deadline.start()
        # Closing with unread bytes would reset the connection, and the client might not see why.
        self.resume_reading()
        self._transport.write_eof()
        self._receive_deadline.start(self._config.linger_s, self._transport.close)

    def _end_after_answer(self) -> None:
        """Read nothing more, and close after the response in progress."""
        self._ignores_input = True
        self._receive_deadline.stop()
        self._waiting.clear()
        exchange = self._answering
        if exchange is None or exchange.is_complete:
            self._transport.close()
        else:
            exchange.keep_alive = False
