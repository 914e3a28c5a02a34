"""HTTP exchange: one request on a connection and its response, as ASGI's scope, receive and send.

The head of a response of known length waits for its body, so that both are one write. A callback
tells the handler that the client has disconnected, which costs less than a task that waits in
``receive``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message

log = logging.getLogger(__name__)

Header = tuple[bytes, bytes]
UNREAD_BYTES: Final = 64 * 2**10  # of a body; beyond it no more is received until it is read
_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}
STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(200, 600)
}
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_WITHOUT_BODY: Final = (204, 304)
_INTERNAL_ERROR: Final = b"Internal Server Error"


class OpenConnection(Protocol):
    """The connection, as an exchange uses it."""

    @property
    def default_headers(self) -> list[Header]:
        """Headers of every response."""
        ...

    @property
    def is_writing_paused(self) -> bool:
        """The client reads more slowly than the response is written."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    async def drain(self) -> None:
        """Wait while writing is paused."""
        ...

    def pause_reading(self) -> None:
        """Receive no more for now."""
        ...

    def resume_reading(self) -> None:
        """Receive again."""
        ...

    def response_complete(self) -> None:
        """The response has been written."""
        ...

    def close(self) -> None:
        """Close once everything is sent."""
        ...


class Exchange:
    """One request and its response.

    Attributes:
        scope: ASGI's; ``state["exchange"]`` is this object.
        keep_alive: The connection serves further requests.
        is_started: Bytes of the response have been written.
        is_complete: The response has been written.
    """

    def __init__(
        self,
        connection: OpenConnection,
        scope: MutableMapping[str, Any],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_started = self.is_complete = False
        self._connection = connection
        self._expects_continue = expects_continue
        self._parts: list[bytes] = []  # of the body, not read yet
        self._unread = 0
        self._has_more = True  # of the body
        self._has_news = False  # for the next call of receive
        self._is_disconnected = False
        self._news: asyncio.Event | None = None  # made where the application has to wait
        self._on_disconnect: Callable[[], None] | None = None
        self._head: bytes | None = None  # not written yet
        self._is_chunked = False
        self._left = 0  # of the announced length
        scope["state"]["exchange"] = self

    # The connection's side.

    def add_body(self, part: bytes) -> None:
        """Take a part of the request's body."""
        if not self.is_complete:
            self._parts.append(part)
            self._unread += len(part)
            if self._unread > UNREAD_BYTES:
                self._connection.pause_reading()
            self._wake()

    def end_body(self) -> None:
        """The request is complete."""
        self._has_more = False
        self._wake()

    def disconnect(self) -> None:
        """The connection is lost."""
        if not self.is_complete:
            self._is_disconnected = True
            if self._on_disconnect is not None:
                self._on_disconnect()
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """Answer by an application. Without a whole response the connection is closed."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("the application failed")
        except asyncio.CancelledError:
            log.warning("a request was cancelled")
        if not self._is_over:
            self._end()
        self._parts.clear()
        del self.scope["state"]["exchange"]  # which refers to this object

    def _end(self) -> None:
        """Close; answer with an error first where nothing was written yet."""
        if not self.is_started:
            self._head = None
            self.keep_alive = False
            self._start(500, [(b"content-length", b"%d" % len(_INTERNAL_ERROR))])
            self._add(_INTERNAL_ERROR, is_last=True)
        self._connection.close()

    def _wake(self) -> None:
        self._has_news = True
        if self._news is not None:
            self._news.set()

    # The application's side.

    def notify(self, on_disconnect: Callable[[], None] | None) -> None:
        """Call back once when the client disconnects before the response is complete.

        Args:
            on_disconnect: Called at once if it is gone already; None takes the callback back.
        """
        self._on_disconnect = on_disconnect
        if self._is_disconnected and on_disconnect is not None:
            on_disconnect()

    async def receive(self) -> Message:
        """ASGI's: what has arrived of the body, or that no response is wanted any more."""
        if self._expects_continue:
            self._expects_continue = False
            if not self.is_started:
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._has_news and not self._is_over:
            self._connection.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        self._has_news = False
        if self._is_over:
            return {"type": "http.disconnect"}
        body = b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        self._connection.resume_reading()  # the end of the connection would not be seen otherwise
        return {"type": "http.request", "body": body, "more_body": self._has_more}

    async def send(self, message: Message) -> None:
        """ASGI's: the head or a part of the body. Ignored once the client is gone.

        Raises:
            RuntimeError: It does not come in this order, or has another length than announced.
        """
        if self._connection.is_writing_paused and not self._is_disconnected:
            await self._connection.drain()
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._add(message.get("body", b""), is_last=not message.get("more_body", False))

    @property
    def _is_over(self) -> bool:
        return self._is_disconnected or self.is_complete

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        if self.is_started or self._head is not None:
            raise RuntimeError("the response has begun already")
        length: int | None = None
        lines = [STATUS_LINES[status]]
        for name, value in (*self._connection.default_headers, *headers):
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                raise RuntimeError("the server decides whether the connection is closed")
        has_body = status not in _WITHOUT_BODY and self.scope["method"] != "HEAD"
        self._is_chunked = has_body and length is None
        self._left = length if has_body and length is not None else 0
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if _CONTROL.search(head) or not head.count(b"\r") == head.count(b"\n") == len(lines):
            raise RuntimeError("a header of the response has a control character")
        if self._is_chunked:  # the first event of a stream may be seconds away
            self._write(head + b"\r\n")
        else:
            self._head = head + b"\r\n"

    def _add(self, part: bytes, *, is_last: bool) -> None:
        if self.is_complete or not (self.is_started or self._head is not None):
            raise RuntimeError("a body must follow the head of its response, and end once")
        if self._is_chunked:
            self._write_chunk(part, is_last=is_last)
        else:
            self._write_counted(part, is_last=is_last)
        if is_last:
            self.is_complete = True
            self._wake()
            self._connection.response_complete()

    def _write_chunk(self, part: bytes, *, is_last: bool) -> None:
        end = b"0\r\n\r\n" if is_last else b""
        if part:
            self._write(b"%x\r\n%b\r\n%b" % (len(part), part, end))
        elif end:
            self._write(end)

    def _write_counted(self, part: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            part = b""
        self._left -= len(part)
        if self._left < 0 or (is_last and self._left):
            raise RuntimeError("the body of the response has another length than announced")
        data = part if self._head is None else self._head + part
        self._head = None
        if data:
            self._write(data)

    def _write(self, data: bytes) -> None:
        self.is_started = True
        self._connection.write(data)
