"""Failures of upstream calls, and the policy that repeats some of them.

Two retry budgets bound the retries: one of each target, inside one of the process. In each,

    retries <= max(3, share * calls)

holds since the start and in the ten seconds before each retry, at every rate of calls. With the
default share of 0.2 a target that fails every call gets at most 1.2 times its calls, from the
fifteenth call on.

They bound the calls to what is sick. A retry at another replica, of which no recent call failed, is
not counted: an empty budget does not prevent it. It is made only where the first replica failed.

All callers share the budgets, and those that had no retry lately go first. A caller that had one
leaves one to each other caller of the last ten seconds that had none, and one where callers are
known that did not call. So a caller whose queries fail cannot use up the retries of a candidate.
A caller is the owner of an API key.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final

from app.errors import (
    MAX_RETRY_AFTER_S,
    ModelMissing,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.settings import FleetSettings
from app.upstream.connection import InvalidAnswer
from app.wire.rejections import CONTEXT_EXCEEDED, MODEL_MISSING, read_rejection

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
        self._calls, self._retries = _Recent(), _Recent()
        self._callers: set[str] = set()  # since the start
        self._count = 0  # calls since the start
        self._spent = 0.0  # retries since the start, and lost credit

    def record_call(self, caller: str) -> None:
        """Count a call that is no retry."""
        now = self._clock()
        self._calls.drop_old(now)
        self._calls.add(now, caller)
        self._callers.add(caller)
        self._count += 1
        if self._within is not None:
            self._within.record_call(caller)

    def take(self, caller: str) -> bool:
        """Return whether one more retry of this caller is allowed, and count it if so."""
        now = self._clock()
        self._calls.drop_old(now)
        self._retries.drop_old(now)
        earned, allowed = self._allowed(self._count), self._allowed(self._calls.count)
        self._spent = max(self._spent, earned - allowed)
        needed = 1 + self._kept_from(caller)
        if self._spent + needed > earned or self._retries.count + needed > allowed:
            return False
        if self._within is not None and not self._within.take(caller):
            return False
        self._spent += 1
        self._retries.add(now, caller)
        return True

    def _kept_from(self, caller: str) -> int:
        """Number of retries that are kept for other callers, which had none lately."""
        had = self._retries.callers.keys()
        if caller not in had:
            return 0
        calling = self._calls.callers.keys() - had
        return max(len(calling), int(bool(self._callers - had)))

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

    def record_call(self, target: str, caller: str) -> None:
        """Count a call that is no retry."""
        self._budgets[target].record_call(caller)

    def pause_s(
        self,
        target: str,
        exc: UpstreamError,
        *,
        caller: str,
        attempt: int,
        left_s: float,
        elsewhere: bool,
        is_free: bool = False,
    ) -> float | None:
        """Return the pause before the call is repeated.

        Args:
            target: The name of the target.
            caller: The owner of the API key.
            exc: The failure.
            attempt: Number of calls so far, from 1.
            left_s: Time until the deadline.
            elsewhere: Another replica can be called.
            is_free: One of those is healthy, so that no budget counts the retry.

        Returns:
            Seconds; None when the call is not repeated.
        """
        if attempt >= self._attempts or not _is_transient(exc, attempt, elsewhere):
            return None
        if not elsewhere and (exc.retry_after_s or 0.0) >= MAX_RETRY_AFTER_S:
            return None  # it may have said more
        longest = min(CAP_S, BASE_S * 2 ** (attempt - 1), max(0.0, left_s))
        pause = self._rng.uniform(0.0, longest)
        # The Retry-After of one replica does not bind the others.
        if exc.retry_after_s is not None and not elsewhere:
            pause = max(pause, exc.retry_after_s)
        if pause < left_s and (is_free or self._budgets[target].take(caller)):
            return pause
        return None


class _Recent:
    """Calls, or retries, of the last ten seconds, and how many are of each caller."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, str]] = deque()
        self.callers = Counter[str]()

    @property
    def count(self) -> int:
        """All of them."""
        return len(self._times)

    def add(self, now: float, caller: str) -> None:
        """Count one."""
        self._times.append((now, caller))
        self.callers[caller] += 1

    def drop_old(self, now: float) -> None:
        """Forget those that are older."""
        while self._times and self._times[0][0] <= now - WINDOW_S:
            _, caller = self._times.popleft()
            self.callers[caller] -= 1
            if not self.callers[caller]:
                del self.callers[caller]


def _is_transient(exc: UpstreamError, attempt: int, elsewhere: bool) -> bool:
    if exc.status in _TRANSIENT:
        return True
    match exc:
        case UpstreamTimeout() | ModelMissing():
            return elsewhere  # the same server would likely be as slow, or as empty
        case UpstreamUnavailable() | UpstreamRateLimited():
            return True
        case UpstreamError(kind=kind):
            return kind == _BROKEN_OFF or (kind == _INVALID and attempt == 1)


# Failures of upstream calls, translated to `UpstreamError`. The words of a rejection alone go on.

RAISED: Final = (InvalidAnswer, OSError)  # by a connection; a TimeoutError is an OSError

# The replica's own fault. Clients could provoke the other kinds with what they send.
_FAULTS = frozenset(
    {
        "upstream_error",
        "upstream_disconnected",
        "upstream_invalid_response",
        "upstream_model_missing",
        "upstream_protocol_error",
        "upstream_tls_error",
        "upstream_unavailable",
    }
)

# The candidate may have computed an answer, or a part of one.
_WORKED = frozenset(
    {
        "upstream_disconnected",
        "upstream_empty",
        "upstream_invalid_response",
        "upstream_response_too_large",
        "upstream_timeout",
    }
)


def may_be_charged(exc: UpstreamError) -> bool:
    """Whether a candidate may charge for a failed call: it did not answer with an error status."""
    return exc.kind in _WORKED and exc.status is None


def is_replica_fault(exc: UpstreamError, *, had_full_time: bool) -> bool:
    """Whether a failure counts against the replica.

    Args:
        exc: The failure.
        had_full_time: The call had the time that the configuration gives it. A timeout after the
            one millisecond that a client allowed proves nothing.
    """
    if isinstance(exc, UpstreamTimeout):
        return had_full_time and exc.status is None
    return exc.kind in _FAULTS


def is_unreachable(exc: UpstreamError) -> bool:
    """Whether no call can reach the model: no connection can be made, or it is not there."""
    return exc.kind in ("upstream_unavailable", "upstream_tls_error", "upstream_model_missing")


def to_upstream_error(name: str, exc: Exception) -> UpstreamError:
    """Translate an exception of a connection that was established."""
    match exc:
        case TimeoutError():
            return UpstreamTimeout(f"{name} did not answer in time")
        case InvalidAnswer():
            return UpstreamError(
                f"{name} does not speak HTTP as it should", kind="upstream_protocol_error"
            )
        case _:
            return UpstreamError(f"{name} broke off", kind="upstream_disconnected")


def check_response_head(name: str, status: int, headers: Mapping[str, str]) -> None:
    """Reject errors, redirects and encodings. Raises UpstreamError."""
    if status == 200:
        if headers.get("content-encoding", "identity") != "identity":
            raise UpstreamError(f"{name} compressed its answer", kind="upstream_encoding")
        return
    wait = retry_after_s(headers)
    if status == 429:
        raise UpstreamRateLimited(f"{name} is rate limited", status=status, retry_after_s=wait)
    if status == 408:
        raise UpstreamTimeout(f"{name} gave the call up", status=status, retry_after_s=wait)
    if 300 <= status < 400:
        raise UpstreamError(f"{name} answered with a redirect", kind="upstream_redirect")
    if status in (401, 403):
        raise UpstreamError(f"{name} refused the gateway's key", kind="upstream_auth_error")
    if 400 <= status < 500:
        raise UpstreamRejected(f"{name} rejected the request ({status})", status=status)
    if status in (503, 529):
        raise UpstreamUnavailable(
            f"{name} is overloaded", kind="upstream_error", status=status, retry_after_s=wait
        )
    raise UpstreamError(f"{name} failed with status {status}", status=status, retry_after_s=wait)


def rejected(
    name: str, status: int, document: bytes, names: Mapping[str, str]
) -> UpstreamRejected | ModelMissing:
    """A rejection, with what its document says.

    Args:
        name: The candidate.
        status: HTTP status.
        document: The body, or its beginning.
        names: As of :func:`app.wire.rejections.read_rejection`.
    """
    found = read_rejection(status, document, names)
    words = f"{name} rejected the request ({status})"
    if found.message is not None:
        words = f"{name}: {found.message}"
    if found.code == MODEL_MISSING:
        return ModelMissing(words, status=status)
    if found.code == CONTEXT_EXCEEDED:
        status = 400  # whatever the server takes for it: clients look for the code
    return UpstreamRejected(words, status=status, param=found.param, code=found.code)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After, a number of seconds or a date; None where it is missing or invalid.

    No candidate can name more than ``MAX_RETRY_AFTER_S``.
    """
    value = headers.get("retry-after", "").strip()
    try:
        wait = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        wait = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, wait), float(MAX_RETRY_AFTER_S)) if math.isfinite(wait) else None
