"""Deadline of a body that is received, on a clock of the test's own."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.deadlines import (
    BODY_WINDOW_S,
    MIN_BODY_BYTES_PER_S,
    RATE_CHECK_S,
    ReceiveDeadline,
)

DEADLINE_S = 600.0
ENOUGH = int(MIN_BODY_BYTES_PER_S * BODY_WINDOW_S) * 2  # bytes for each window
MIB = 2**20


class Timer:
    """A call that is due, unless it was cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not call."""
        self.call = None


class Clock:
    """A clock that stands still until :meth:`pass_time`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        """Now."""
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """As an event loop does."""
        timer = Timer(callback)
        heapq.heappush(self._due, (self._now + delay, len(self._due), timer))
        return timer

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every call that is due in it."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._due)
            if timer.call is not None:
                timer.call()
        self._now = end


class Body:
    """A body that is received, and when it was found late."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.is_paused = False
        self.late_at: float | None = None
        self.deadline = ReceiveDeadline(
            self.clock, lambda: self.is_paused, window_s=BODY_WINDOW_S, check_s=RATE_CHECK_S
        )
        self.deadline.expect_body()
        self.deadline.start_body(DEADLINE_S, self._late)

    def receive(self, size: int) -> None:
        """Some of it comes."""
        self.deadline.count_body(size)

    def _late(self) -> None:
        assert self.late_at is None
        self.late_at = self.clock.time()


@pytest.mark.parametrize("sent", [0, 1, 70 * 2**10, 100 * MIB])
def test_a_body_that_stalls_is_late_however_much_of_it_came(sent: int) -> None:
    """Within two windows of its last byte: what came at once buys no time."""
    body = Body()
    body.receive(sent)
    body.clock.pass_time(DEADLINE_S)
    assert body.late_at is not None
    assert body.late_at <= 2 * BODY_WINDOW_S + RATE_CHECK_S


@given(st.lists(st.integers(0, 2 * ENOUGH), min_size=1, max_size=40))
def test_a_body_is_late_after_the_first_window_without_progress(windows: list[int]) -> None:
    """And not before, whatever the windows around it brought."""
    body = Body()
    ended: float | None = None
    for place, size in enumerate(windows, 1):
        body.receive(size)
        body.clock.pass_time(BODY_WINDOW_S)
        if ended is None and size < ENOUGH / 2:
            ended = place * BODY_WINDOW_S
    assert body.late_at == (None if ended is None else pytest.approx(ended))


def test_a_body_that_its_handler_does_not_read_is_never_late() -> None:
    """And has a whole window once it is read again, until its deadline."""
    body = Body()
    body.is_paused = True
    body.clock.pass_time(DEADLINE_S / 2)
    body.is_paused = False
    body.clock.pass_time(BODY_WINDOW_S - RATE_CHECK_S)
    assert body.late_at is None
    for _ in range(200):
        body.receive(ENOUGH)
        body.clock.pass_time(BODY_WINDOW_S)
    assert body.late_at == pytest.approx(DEADLINE_S)
