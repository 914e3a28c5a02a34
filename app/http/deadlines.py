"""Deadlines of a connection: for clients that send too slowly, and for those that read nothing."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Final, Protocol

MIN_BODY_BYTES_PER_S: Final = 2**10  # in each window
BODY_WINDOW_S: Final = 5.0
RATE_CHECK_S: Final = 1.0


class Timer(Protocol):
    """What :meth:`Clock.call_later` returns."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Clock(Protocol):
    """The part of an event loop that deadlines need."""

    def time(self) -> float:
        """Seconds since some moment."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call back once, after a delay in seconds."""
        ...


class ReceiveDeadline:
    """The one deadline that a connection has while it receives.

    A body is late at its deadline, and where less than ``MIN_BODY_BYTES_PER_S`` came in a window of
    time: a client that sends much at first and then stalls has made no progress since.

    Args:
        clock: The event loop.
        is_paused: Whether the connection reads nothing now: the handler is slow then, and not the
            client.
        window_s: Seconds over which the transfer rate of a body is measured, one after the other.
        check_s: Seconds between two checks of it.
    """

    def __init__(
        self, clock: Clock, is_paused: Callable[[], bool], *, window_s: float, check_s: float
    ) -> None:
        self._clock = clock
        self._is_paused = is_paused
        self._window_s = window_s
        self._check_s = check_s
        self._timer: Timer | None = None
        self._body_bytes = self._bytes_before = 0  # in all, and before the window
        self._window_begun = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a deadline has been started and not stopped."""
        return self._timer is not None

    def start(self, wait_s: float, on_late: Callable[[], None]) -> None:
        """Call back after ``wait_s``, and not before reading goes on."""
        self._after(wait_s, lambda: self._expire(wait_s, on_late))

    def start_body(self, deadline_s: float, on_late: Callable[[], None]) -> None:
        """Call back when a body is late, or slower than ``MIN_BODY_BYTES_PER_S`` in a window."""
        self._begin_window()
        late_at = self._window_begun + deadline_s
        wait_s = min(self._window_s, deadline_s)
        self._after(wait_s, lambda: self._check_body(late_at, on_late))

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
        self._timer = self._clock.call_later(wait_s, call)

    def _expire(self, wait_s: float, on_late: Callable[[], None]) -> None:
        if self._is_paused():
            self.start(wait_s, on_late)
        else:
            self._timer = None
            on_late()

    def _begin_window(self) -> None:
        self._window_begun, self._bytes_before = self._clock.time(), self._body_bytes

    def _check_body(self, late_at: float, on_late: Callable[[], None]) -> None:
        left_s = late_at - self._clock.time()
        window_s = self._clock.time() - self._window_begun
        is_over = window_s >= self._window_s
        came = self._body_bytes - self._bytes_before
        is_slow = is_over and came < MIN_BODY_BYTES_PER_S * window_s
        if not self._is_paused() and (is_slow or left_s <= 0):
            self._timer = None
            on_late()
            return
        if is_over or self._is_paused():
            self._begin_window()
        wait_s = min(self._check_s, left_s) if left_s > 0 else self._check_s
        self._after(wait_s, lambda: self._check_body(late_at, on_late))


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
