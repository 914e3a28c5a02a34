"""Which failed calls are made again, after how long, and how many of them at all.

Retries are paid from one budget of the process: when everybody fails, calls grow by the share that
the configuration allows, and not by the number of attempts.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from app.errors import UpstreamError, UpstreamRateLimited, UpstreamTimeout, UpstreamUnavailable
from app.settings import FleetSettings

WINDOW_S: Final = 10.0
FLOOR: Final = 3  # retries in a window, however few calls there are
BASE_S: Final = 0.05  # the longest first pause, doubling with each further one
CAP_S: Final = 1.0

_PASSING = frozenset({408, 500, 502, 503, 504, 529})  # statuses that another try may cure
_BROKEN_OFF = "upstream_disconnected"
_INVALID = "upstream_invalid_response"


class RetryBudget:
    """At most a share of the calls of the last ten seconds is made again."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._calls: deque[float] = deque()
        self._retries: deque[float] = deque()

    def called(self) -> None:
        """Count a call that is no retry."""
        self._forget(self._calls)
        self._calls.append(self._clock())

    def take(self) -> bool:
        """Whether one more retry may be made; counts it if so."""
        self._forget(self._calls)
        self._forget(self._retries)
        allowed = max(FLOOR, self._share * len(self._calls)) if self._share else 0
        if len(self._retries) + 1 > allowed:
            return False
        self._retries.append(self._clock())
        return True

    def _forget(self, times: deque[float]) -> None:
        oldest = self._clock() - WINDOW_S
        while times and times[0] <= oldest:
            times.popleft()


class Retries:
    """Decides after each failed call."""

    def __init__(self, rules: FleetSettings, rng: random.Random) -> None:
        self._attempts = rules.attempts
        self._rng = rng
        self._budget = RetryBudget(rules.retry_share)

    def called(self) -> None:
        """Count a call that is no retry."""
        self._budget.called()

    def pause_s(
        self, exc: UpstreamError, *, attempt: int, left_s: float, elsewhere: bool
    ) -> float | None:
        """How long to wait before the call is made again.

        Args:
            exc: Why it failed.
            attempt: How many calls were made, from 1.
            left_s: Time until the deadline.
            elsewhere: Another replica can be asked.

        Returns:
            Seconds; None when it is not made again.
        """
        if attempt >= self._attempts or not _is_passing(exc, attempt, elsewhere):
            return None
        longest = min(CAP_S, BASE_S * 2 ** (attempt - 1), max(0.0, left_s))
        pause = self._rng.uniform(0.0, longest)
        # What one replica asks for does not bind the others.
        if exc.retry_after_s is not None and not elsewhere:
            pause = max(pause, exc.retry_after_s)
        return pause if pause < left_s and self._budget.take() else None


def _is_passing(exc: UpstreamError, attempt: int, elsewhere: bool) -> bool:
    if exc.status in _PASSING:
        return True
    match exc:
        case UpstreamTimeout():
            return elsewhere  # the same server would likely be as slow, and twice as busy
        case UpstreamUnavailable() | UpstreamRateLimited():
            return True
        case UpstreamError(kind=kind):
            return kind == _BROKEN_OFF or (kind == _INVALID and attempt == 1)
