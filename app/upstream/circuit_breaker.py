"""Circuit breaker of a replica: it is ejected after failures, and readmitted after a health check.

The breaker has no clock of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from app.settings import FleetSettings

UNREACHABLE: Final = 2  # this many refused connections in a row eject a replica
# Closed, half-open and open, as the API and the metrics name them.
STATES: Final = ("in", "probation", "out")
RECENT: Final = 4  # times `failures`: of this many counted calls at most half may fail


class CircuitBreaker:
    """Closed (``in``), open for a while (``out``), or half-open (``probation``).

    A half-open breaker closes with the next success and opens with the next failure.

    Failures of one payload count once until a call succeeds. Otherwise a single query that breaks
    the server, sent again and again, would take the replica from every other caller. Failed
    connections always count: they depend on no payload.

    Times are of a monotonic clock, in seconds.
    """

    def __init__(self, rules: FleetSettings) -> None:
        self._rules = rules
        self._out_until: float | None = None
        self._is_half_open = False
        self._ejections = 0  # in a row; each one lasts longer than the one before
        self._recent: deque[bool] = deque(maxlen=RECENT * rules.failures)
        self._failed_payloads: set[int] = set()  # since the last success
        self._failures = 0  # in a row
        self._unreachable = 0  # in a row
        self._successes = 0  # in a row

    @property
    def out_until(self) -> float | None:
        """The time of the next health check; None unless the breaker is open."""
        return self._out_until

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self._out_until is not None:
            return "out"
        return "probation" if self._is_half_open else "in"

    def record_success(self) -> None:
        """Close the breaker: a call got its answer.

        A call sent before the ejection counts, too: its answer proves that the replica works.
        """
        self._out_until, self._is_half_open = None, False
        self._failed_payloads.clear()
        self._failures = self._unreachable = 0
        self._recent.append(True)
        self._successes += 1
        if self._successes >= self._rules.failures:
            self._ejections = 0

    def record_answer(self) -> None:
        """Note an answer that is neither a success nor a failure of the replica."""
        self._unreachable = 0

    def record_failure(self, now: float, *, payload: int, unreachable: bool = False) -> bool:
        """Note a call that failed by the replica's fault.

        Args:
            now: The time.
            payload: A digest of the request.
            unreachable: No connection could be made.

        Returns:
            Whether this failure opened the breaker.
        """
        if self._out_until is not None:
            return False
        self._unreachable = self._unreachable + 1 if unreachable else 0
        self._successes = 0
        if not unreachable and payload in self._failed_payloads and not self._is_half_open:
            return False
        self._failed_payloads.add(payload)
        self._failures += 1
        self._recent.append(False)
        if (
            self._is_half_open
            or self._unreachable >= UNREACHABLE
            or self._failures >= self._rules.failures
            or self._recent.count(False) > RECENT * self._rules.failures / 2
        ):
            self._open(now)
            return True
        return False

    def record_failed_check(self, now: float) -> None:
        """Stay open: a health check failed.

        It cost no request, so the next check comes after the same pause as this one.
        """
        self._out_until = now + self._pause_s()

    def record_passed_check(self) -> None:
        """Become half-open: a health check passed."""
        self._out_until, self._is_half_open = None, True

    def _open(self, now: float) -> None:
        self._ejections += 1
        self._out_until, self._is_half_open = now + self._pause_s(), False
        self._recent.clear()
        self._failed_payloads.clear()
        self._failures = self._unreachable = 0

    def _pause_s(self) -> float:
        return min(self._rules.eject_s * self._ejections, self._rules.eject_max_s)
