"""Write deadline: cuts off a client that reads nothing of what it was sent."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Final

_INT: Final = struct.Struct("i")


class WriteDeadline:
    """Aborts a connection on which nothing was acknowledged for a while.

    Args:
        transport: The connection's.
        stalled_s: The longest time without progress, in seconds.

    Attributes:
        written_bytes: All bytes written so far, sent or not.
    """

    def __init__(self, transport: asyncio.Transport, stalled_s: float) -> None:
        self._transport = transport
        self._stalled_s = stalled_s
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledged_bytes = 0
        self.written_bytes = 0

    def start(self) -> None:
        """Bytes wait for the client."""
        if self._timer is None:
            self._acknowledged_bytes = self.written_bytes - self._count_unsent()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._stalled_s, self._check)

    def stop(self) -> None:
        """No bytes wait any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close if nothing was acknowledged meanwhile; the unsent bytes may be a later answer's."""
        self._timer = None
        unsent = self._count_unsent()
        if unsent and self.written_bytes - unsent <= self._acknowledged_bytes:
            self._transport.abort()  # closing would wait for the client to read
        elif self._transport.get_write_buffer_size() > 0:
            self.start()

    def _count_unsent(self) -> int:
        """Bytes that the client has not acknowledged, in the transport's and the kernel's buffers.

        The transport's buffer alone is not enough: the kernel takes more data only when a third of
        its send buffer (4 MiB) is free, so that buffer stands still until the client has read
        1.4 MB. Without the kernel's queue (TIOCOUTQ) a client that reads less than 24 kB/s would be
        cut off after the default ``limits.stalled_s`` of 60 s. The call takes 3 us, and is made
        only while an answer waits for its client.
        """
        unsent = self._transport.get_write_buffer_size()
        kernel = self._transport.get_extra_info("socket")
        try:
            queued = fcntl.ioctl(kernel.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # the socket is closed
            return unsent
        return unsent + _INT.unpack(queued)[0]
