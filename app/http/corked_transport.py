"""Write batching: all writes of one event loop iteration go out in one system call.

The server writes the head of a response and its body separately.
"""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport:
    """A transport that holds written data until the next iteration of the event loop.

    Attributes:
        written_bytes: All bytes written so far, sent or not.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []
        self.written_bytes = 0

    def write(self, data: bytes) -> None:
        """Send in the next iteration, after earlier writes."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self.written_bytes += len(data)

    def close(self) -> None:
        """Send pending data, then close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once and drop pending data."""
        self._pending.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes that the operating system has not accepted yet."""
        return sum(map(len, self._pending)) + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._pending.clear()
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
