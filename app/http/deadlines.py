"""Deadlines of a connection: for clients that send too slowly, and for those that read nothing."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Final

MIN_BODY_BYTES_PER_S: Final = 2**10  # on average, once the grace period is over
BODY_GRACE_S: Final = 5.0
RATE_CHECK_S: Final = 1.0


class ReceiveDeadline:
    """The one deadline that a connection has while it receives.

    Args:
        is_paused: Whether the connection reads nothing now: the handler is slow then, and not the
            client.
        grace_s: Seconds before the transfer rate of a body is checked.
        check_s: Seconds between two checks of it.
    """

    def __init__(self, is_paused: Callable[[], bool], *, grace_s: float, check_s: float) -> None:
        self._is_paused = is_paused
        self._grace_s = grace_s
        self._check_s = check_s
        self._timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0

    @property
    def is_running(self) -> bool:
        """Whether a deadline has been started and not stopped."""
        return self._timer is not None

    def start(self, wait_s: float, on_late: Callable[[], None]) -> None:
        """Call back after ``wait_s``, and not before reading goes on."""
        self._after(wait_s, lambda: self._expire(wait_s, on_late))

    def start_body(self, deadline_s: float, on_late: Callable[[], None]) -> None:
        """Call back when a body is late, or slower than ``MIN_BODY_BYTES_PER_S`` on average."""
        begun = asyncio.get_running_loop().time()
        wait_s = min(self._grace_s, deadline_s)
        self._after(wait_s, lambda: self._check_body(begun, deadline_s, on_late))

    def expect_body(self) -> None:
        """The head has arrived, and nothing of its body yet."""
        self.stop()
        self._body_bytes = 0

    def count_body(self, size: int) -> None:
        """Note bytes of the body that have arrived."""
        self._body_bytes += size

    def stop(self) -> None:
        """The part has arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after(self, wait_s: float, call: Callable[[], None]) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(wait_s, call)

    def _expire(self, wait_s: float, on_late: Callable[[], None]) -> None:
        if self._is_paused():
            self.start(wait_s, on_late)
        else:
            self._timer = None
            on_late()

    def _check_body(self, begun: float, deadline_s: float, on_late: Callable[[], None]) -> None:
        elapsed_s = asyncio.get_running_loop().time() - begun
        is_slow = elapsed_s >= self._grace_s and self._body_bytes < MIN_BODY_BYTES_PER_S * elapsed_s
        if not self._is_paused() and (is_slow or elapsed_s >= deadline_s):
            self._timer = None
            on_late()
            return
        left_s = deadline_s - elapsed_s
        wait_s = min(self._check_s, left_s) if left_s > 0 else self._check_s
        self._after(wait_s, lambda: self._check_body(begun, deadline_s, on_late))


_INT: Final = struct.Struct("i")


class WriteDeadline:
    """Aborts a connection whose client reads nothing: no data was acknowledged for a while.

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
