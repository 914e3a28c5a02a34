"""Retry policy: which failed calls are repeated, after which pause, and how many in total.

Two retry budgets bound the retries: one of each target, inside one of the process. In each,

    retries <= max(3, share * calls)

holds since the start and in the ten seconds before each retry, at every rate of calls. With the
default share of 0.2 a target that fails every call gets at most 1.2 times its calls, from the
fifteenth call on.

All callers share the budgets. A caller whose queries fail can use up the retries of a candidate;
failed calls of other callers are then not repeated.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from app.errors import UpstreamError, UpstreamRateLimited, UpstreamTimeout, UpstreamUnavailable
from app.settings import FleetSettings

WINDOW_S: Final = 10.0
FLOOR: Final = 3  # retries that each budget allows before its calls have earned any
BASE_S: Final = 0.05  # upper limit of the first pause; it doubles with each further retry
CAP_S: Final = 1.0

_TRANSIENT = frozenset({408, 500, 502, 503, 504, 529})  # statuses that another attempt may cure
_BROKEN_OFF = "upstream_disconnected"
_INVALID = "upstream_invalid_response"


class RetryBudget:
    """Allows ``max(FLOOR, share * calls)`` retries: since the start, and in the last ten seconds.

    Each call earns ``share`` of a retry. The first ``FLOOR`` retries are lent, and the first calls
    repay them. Credit beyond ``max(FLOOR, share * calls)`` of the last ten seconds is lost, so that
    a long time without failures allows no burst of retries.

    Args:
        share: Retries for each call.
        within: A larger budget, of which this one is a part: it counts the same calls and retries.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        within: RetryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._within = within
        self._clock = clock
        self._calls: deque[float] = deque()  # times of the last ten seconds
        self._retries: deque[float] = deque()
        self._count = 0  # calls since the start
        self._spent = 0.0  # retries since the start, and lost credit

    def record_call(self) -> None:
        """Count a call that is no retry."""
        now = self._clock()
        _drop_old(self._calls, now)
        self._calls.append(now)
        self._count += 1
        if self._within is not None:
            self._within.record_call()

    def take(self) -> bool:
        """Return whether one more retry is allowed, and count it if so."""
        now = self._clock()
        _drop_old(self._calls, now)
        _drop_old(self._retries, now)
        earned, allowed = self._allowed(self._count), self._allowed(len(self._calls))
        self._spent = max(self._spent, earned - allowed)
        if self._spent + 1 > earned or len(self._retries) + 1 > allowed:
            return False
        if self._within is not None and not self._within.take():
            return False
        self._spent += 1
        self._retries.append(now)
        return True

    def _allowed(self, calls: int) -> float:
        return max(FLOOR, self._share * calls) if self._share else 0.0


class Retries:
    """Decides after each failed call whether to repeat it: exponential backoff with full jitter."""

    def __init__(self, rules: FleetSettings, rng: random.Random) -> None:
        self._attempts = rules.attempts
        self._rng = rng
        process = RetryBudget(rules.retry_share)
        self._budgets = defaultdict[str, RetryBudget](
            partial(RetryBudget, rules.retry_share, within=process)
        )

    def record_call(self, target: str) -> None:
        """Count a call that is no retry."""
        self._budgets[target].record_call()

    def pause_s(
        self, target: str, exc: UpstreamError, *, attempt: int, left_s: float, elsewhere: bool
    ) -> float | None:
        """Return the pause before the call is repeated.

        Args:
            target: The name of the target.
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
        return pause if pause < left_s and self._budgets[target].take() else None


def _drop_old(times: deque[float], now: float) -> None:
    while times and times[0] <= now - WINDOW_S:
        times.popleft()


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
