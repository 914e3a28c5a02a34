"""The time in UTC as text, as records and log lines have it; and comparisons with the present.

A clock can step by days, ahead and back: it was not set at boot, or its server was wrong. What it
writes meanwhile stays in the store. So a time is compared with the present in both directions: one
that is further in the future than clocks of several machines differ says nothing about an age.
Durations within a process are those of the monotonic clock, which does not step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

SKEW: Final = timedelta(minutes=5)  # by which clocks of several machines may differ
STEADY_S: Final = 3_600.0  # after a step of the clock nothing is deleted by its time for so long
_TICK: Final = timedelta(microseconds=1)


def present() -> datetime:
    """The present, by the clock of this machine."""
    return datetime.now(UTC)


def text_of(moment: datetime) -> str:
    """With microseconds, so that records sort by it."""
    return moment.isoformat(timespec="microseconds")


def now() -> str:
    """The present as text."""
    return text_of(present())


def ago(span: timedelta) -> str:
    """A time before the present, as text."""
    return text_of(present() - span)


def latest() -> str:
    """The latest time that is not in the future, by the clock of any machine."""
    return ago(-SKEW)


def is_within(moment: str, span: timedelta) -> bool:
    """Whether a time is past, and for less than a span. One in the future is not."""
    return -SKEW <= present() - datetime.fromisoformat(moment) < span


def past(moment: str) -> str:
    """The time, or the present if it is in the future."""
    return moment if moment <= latest() else now()


def following(earlier: str | None) -> str:
    """The present, or a moment after an earlier time that a clock ahead has written."""
    if earlier is None or earlier < now():
        return now()
    return text_of(datetime.fromisoformat(earlier) + _TICK)


class SteadyClock:
    """Whether the wall clock has gone on as the monotonic one, since it was asked first.

    Args:
        wall_clock: Seconds since 1970.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_clock = wall_clock
        self._clock = clock
        self._offset = wall_clock() - clock()
        self._steady_at = clock()

    @property
    def is_steady(self) -> bool:
        """False for ``STEADY_S`` after each step."""
        now_s, offset = self._clock(), self._wall_clock() - self._clock()
        if abs(offset - self._offset) > SKEW.total_seconds():
            self._offset, self._steady_at = offset, now_s + STEADY_S
        return now_s >= self._steady_at


class UtcTimes:
    """Writes times as ISO 8601.

    Requests come many a second, so the text of a second is kept: `datetime.isoformat` takes 1.3 us
    for a time, this class 0.4.
    """

    def __init__(self) -> None:
        self._kept = (-1, "")  # a second and its text, in one value for all threads

    def text(self, nanoseconds: int, *, digits: int) -> str:
        """A time since 1970.

        Args:
            nanoseconds: As of `time.time_ns`.
            digits: Digits of the fraction of a second, at least one; further ones are cut off.
        """
        second, fraction = divmod(nanoseconds, 1_000_000_000)
        kept, text = self._kept
        if kept != second:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._kept = second, text
        return f"{text}.{fraction // 10 ** (9 - digits):0{digits}}+00:00"
