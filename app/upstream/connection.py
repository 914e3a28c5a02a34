"""HTTP/1.1 connection to an upstream server: one request at a time, the answer parsed by httptools.

Limits hold while bytes are parsed, so that no server makes the gateway hold more than a few hundred
kilobytes that are not read yet. After a fault, a cancellation or bytes that belong to no answer the
connection is aborted, never used again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, cast

import httptools

HEADERS: Final = 100  # of an answer, trailers included
HEADER_BYTES: Final = 8190  # of each
HEAD_BYTES: Final = 64 * 2**10  # of all headers; also of all bytes in a row that are no body
INTERIM: Final = 100  # answers such as 103 before the final one
UNREAD_BYTES: Final = 64 * 2**10  # of a body; beyond it no more is received until it is read
PART_BYTES: Final = 64 * 2**10  # of a payload, written at once


class InvalidAnswer(Exception):
    """What arrived is not HTTP, or exceeds a limit."""


class Disconnected(ConnectionError):
    """The connection was closed before the answer was complete."""


class Connection(asyncio.Protocol):
    """One connection, made by an event loop.

    Attributes:
        status: HTTP status of the answer; 0 until its headers have arrived.
        headers: By name in lower case; values of repeated headers are joined with commas.
        is_open: Bytes can be exchanged.
        is_answering: Bytes of an answer have arrived.
        is_complete: The answer has arrived as a whole.
        is_reusable: Another request may be sent, once this answer is complete.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        # Servers pad the sizes of chunks with spaces, and end lines without CR.
        self._parser.set_dangerous_leniencies(
            lenient_spaces_after_chunk_size=True, lenient_optional_cr_before_lf=True
        )
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._timer_at = 0.0  # of the latest wait, and when the timer ends
        self._is_writing_paused = False
        self.is_open = False
        self._reset()
        self.is_complete = True  # no answer is expected yet

    def _reset(self) -> None:
        self.status = 0
        self.headers = dict[str, str]()
        self.is_answering = self.is_complete = self.is_reusable = False
        self._ends_with_connection = False
        self._error: Exception | None = None
        self._parts: list[bytes] = []
        self._unread = 0
        self._is_reading_paused = False
        self._counted = self._counted_bytes = self._interim = 0  # headers, and interim answers
        self._bodiless = 0  # bytes since the last ones of a body
        self._unsent = memoryview(b"")

    async def request(self, head: bytes, data: bytes, until: float) -> None:
        """Send a request and wait for the headers of its answer; abort where that fails.

        Args:
            head: The request's, with its blank line.
            data: Its body.
            until: Deadline, a ``time.monotonic()``.

        Raises:
            InvalidAnswer: See there.
            Disconnected: See there.
            TimeoutError: At the deadline.
        """
        self._reset()
        try:
            if len(data) <= PART_BYTES:
                self._transport.write(head + data)
            else:
                self._transport.write(head)
                self._unsent = memoryview(data)
                self._write_parts()
            while not self.status:
                if self._error is not None:
                    raise self._error
                await self._wait(until)
        except BaseException:
            self.abort()
            raise

    def read_nowait(self) -> bytes:
        """Return what has arrived of the body and was not read yet; may be empty."""
        parts = self._parts
        if not parts:
            return b""
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._unread = 0
        if self._is_reading_paused:
            self._is_reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return part

    async def read(self, until: float) -> bytes:
        """Wait for more of the body; empty at its end. Arguments and errors as of `request`."""
        while not (part := self.read_nowait()) and not self.is_complete:
            if self._error is not None:
                raise self._error
            await self._wait(until)
        return part

    def abort(self) -> None:
        """Close at once, whatever was not sent or read yet."""
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    async def _wait(self, until: float) -> None:
        """Wait until anything happens."""
        loop = asyncio.get_running_loop()
        self._waiter, self._until = loop.create_future(), until
        if self._timer is None or until < self._timer_at:
            self._set_timer()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        """Set the one timer, which outlasts a wait: streams wait anew for every token."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._until
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._until - time.monotonic(), self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if time.monotonic() >= self._until:
            self._waiter.set_exception(TimeoutError())
        else:
            self._set_timer()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        """Close at once. An answer that is complete stays one."""
        self.abort()
        if not self.is_complete and self._error is None:
            self._error = error
        self._wake()

    def _write_parts(self) -> None:
        """Write as much of a large payload as the transport takes, without copying it."""
        while self._unsent and not self._is_writing_paused:
            part, self._unsent = self._unsent[:PART_BYTES], self._unsent[PART_BYTES:]
            self._transport.write(part)

    # The event loop's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._fail(Disconnected())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        del self._parser  # which refers to this object

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._is_writing_paused = False
        if self.is_open:
            self._write_parts()

    def eof_received(self) -> None:
        """See :class:`asyncio.Protocol`. A body of unknown length ends here."""
        if self._ends_with_connection and self._error is None:
            self.is_complete = True
        self._fail(Disconnected())

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self.is_complete or not self.is_open:  # no answer is expected, or no more of it
            self.abort()
            return
        self.is_answering = True
        self._bodiless += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(InvalidAnswer())
            return
        if self._bodiless > HEAD_BYTES and not self.is_complete:
            self._fail(InvalidAnswer())
        elif self.status:
            self._wake()

    # The parser's callbacks; what they raise becomes an HttpParserError.

    def on_message_begin(self) -> None:
        """Refuse an answer without a request: it may have been made to answer the next one."""
        if self.is_complete:
            raise InvalidAnswer

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and keep a header; a trailer is counted alone."""
        size = len(name) + len(value)
        self._counted += 1
        self._counted_bytes += size
        if size > HEADER_BYTES or self._counted > HEADERS or self._counted_bytes > HEAD_BYTES:
            raise InvalidAnswer
        if not self.status:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Tell a final answer from an interim one."""
        status = self._parser.get_status_code()
        coding = self.headers.get("transfer-encoding")
        has_length = coding is not None or "content-length" in self.headers
        if status < 200:
            self._interim += 1
            if status < 100 or status == 101 or has_length or self._interim > INTERIM:
                raise InvalidAnswer
            self.headers.clear()
            self._counted = 0
            return
        if coding is not None and coding.lower() != "chunked":
            raise InvalidAnswer  # compressed, or of a length that is not known for sure
        self.status = status
        self._ends_with_connection = not has_length

    def on_body(self, body: bytes) -> None:
        """Keep a part, and receive no more for now where much is kept."""
        self._bodiless = 0
        self._parts.append(body)
        self._unread += len(body)
        if self._unread > UNREAD_BYTES and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of an answer; an interim one has no status."""
        if self.status:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive() and not self._unsent
