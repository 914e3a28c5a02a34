"""What is written in one pass of the event loop goes out together.

A server writes the head of an answer and then its body: one call of the operating system does for
both.
"""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport:
    """A transport that keeps what is written until the loop's next pass."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send soon, after what was written before."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what is held is lost."""
        self._held.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes that the operating system has not taken yet."""
        return sum(map(len, self._held)) + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
