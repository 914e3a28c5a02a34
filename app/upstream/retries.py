"""Retry policy: which failed calls are repeated, after which pause, and how many in total.

All retries of the process share one budget. When every candidate fails, the number of calls grows
by the configured share and not by the number of attempts.
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
FLOOR: Final = 3  # retries allowed in a window, however few calls it has
BASE_S: Final = 0.05  # upper limit of the first pause; it doubles with each further retry
CAP_S: Final = 1.0

_TRANSIENT = frozenset({408, 500, 502, 503, 504, 529})  # statuses that another attempt may cure
_BROKEN_OFF = "upstream_disconnected"
_INVALID = "upstream_invalid_response"


class RetryBudget:
    """Allows retries up to a share of the calls of the last ten seconds."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._calls: deque[float] = deque()
        self._retries: deque[float] = deque()

    def record_call(self) -> None:
        """Count a call that is no retry."""
        self._drop_old(self._calls)
        self._calls.append(self._clock())

    def take(self) -> bool:
        """Return whether one more retry is allowed, and count it if so."""
        self._drop_old(self._calls)
        self._drop_old(self._retries)
        allowed = max(FLOOR, self._share * len(self._calls)) if self._share else 0
        if len(self._retries) + 1 > allowed:
            return False
        self._retries.append(self._clock())
        return True

    def _drop_old(self, times: deque[float]) -> None:
        oldest = self._clock() - WINDOW_S
        while times and times[0] <= oldest:
            times.popleft()


class Retries:
    """Decides after each failed call whether to repeat it: exponential backoff with full jitter."""

    def __init__(self, rules: FleetSettings, rng: random.Random) -> None:
        self._attempts = rules.attempts
        self._rng = rng
        self._budget = RetryBudget(rules.retry_share)

    def record_call(self) -> None:
        """Count a call that is no retry."""
        self._budget.record_call()

    def pause_s(
        self, exc: UpstreamError, *, attempt: int, left_s: float, elsewhere: bool
    ) -> float | None:
        """Return the pause before the call is repeated.

        Args:
            exc: The failure.
            attempt: Number of calls so far, from 1.
            left_s: Time until the deadline.
            elsewhere: Another replica can be called.

        Returns:
            Seconds; None when the call is not repeated.
        """
        if attempt >= self._attempts or not _is_transient(exc, attempt, elsewhere):
            return None
        longest = min(CAP_S, BASE_S * 2 ** (attempt - 1), max(0.0, left_s))
        pause = self._rng.uniform(0.0, longest)
        # The Retry-After of one replica does not bind the others.
        if exc.retry_after_s is not None and not elsewhere:
            pause = max(pause, exc.retry_after_s)
        return pause if pause < left_s and self._budget.take() else None


def _is_transient(exc: UpstreamError, attempt: int, elsewhere: bool) -> bool:
    if exc.status in _TRANSIENT:
        return True
    match exc:
        case UpstreamTimeout():
            return elsewhere  # the same server would likely be as slow, and twice as busy
        case UpstreamUnavailable() | UpstreamRateLimited():
            return True
        case UpstreamError(kind=kind):
            return kind == _BROKEN_OFF or (kind == _INVALID and attempt == 1)
