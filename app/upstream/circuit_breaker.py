"""Whether a replica gets calls: out after failures, back in after a probe. No clock of its own."""

from __future__ import annotations

from collections import deque
from typing import Final

from app.settings import FleetSettings

UNREACHABLE: Final = 2  # refused connections in a row are proof enough
STATES: Final = ("in", "probation", "out")
RECENT: Final = 4  # times `failures`: of so many counted calls no more than half may fail


class CircuitBreaker:
    """In, out for a while, or on probation: back in, until the next failure or success.

    Failures of one payload count once until a call succeeds, so that a query that breaks a server
    cannot take it from everybody else; it may be asked again as often as somebody likes. A
    connection that cannot be made is nobody's payload.

    Times are of a monotonic clock, in seconds.
    """

    def __init__(self, rules: FleetSettings) -> None:
        self._rules = rules
        self._out_until: float | None = None
        self._on_probation = False
        self._ejections = 0  # each further one lasts longer
        self._recent: deque[bool] = deque(maxlen=RECENT * rules.failures)
        self._failed_payloads: set[int] = set()  # since the last success
        self._failures = 0  # in a row
        self._unreachable = 0  # in a row
        self._successes = 0  # in a row

    @property
    def out_until(self) -> float | None:
        """When it is probed; None while it is in."""
        return self._out_until

    @property
    def state(self) -> str:
        """``in``, ``probation`` or ``out``, for people."""
        if self._out_until is not None:
            return "out"
        return "probation" if self._on_probation else "in"

    def succeeded(self) -> None:
        """A call got its answer. Even one sent before the replica was taken out proves it works."""
        self._out_until, self._on_probation = None, False
        self._failed_payloads.clear()
        self._failures = self._unreachable = 0
        self._recent.append(True)
        self._successes += 1
        if self._successes >= self._rules.failures:
            self._ejections = 0

    def answered(self) -> None:
        """It answered, with something that is neither its success nor its failure."""
        self._unreachable = 0

    def failed(self, now: float, *, payload: int, unreachable: bool = False) -> bool:
        """A call failed by the replica's fault.

        Args:
            now: The time.
            payload: A digest of what was sent.
            unreachable: No connection could be made.

        Returns:
            Whether this took the replica out.
        """
        if self._out_until is not None:
            return False
        self._unreachable = self._unreachable + 1 if unreachable else 0
        self._successes = 0
        if not unreachable and payload in self._failed_payloads and not self._on_probation:
            return False
        self._failed_payloads.add(payload)
        self._failures += 1
        self._recent.append(False)
        if (
            self._on_probation
            or self._unreachable >= UNREACHABLE
            or self._failures >= self._rules.failures
            or self._recent.count(False) > RECENT * self._rules.failures / 2
        ):
            self._take_out(now)
            return True
        return False

    def wait_on(self, now: float) -> None:
        """A probe failed. It cost nobody anything, so the next one comes no later than it did."""
        self._out_until = now + self._pause_s()

    def let_in(self) -> None:
        """A probe succeeded."""
        self._out_until, self._on_probation = None, True

    def _take_out(self, now: float) -> None:
        self._ejections += 1
        self._out_until, self._on_probation = now + self._pause_s(), False
        self._recent.clear()
        self._failed_payloads.clear()
        self._failures = self._unreachable = 0

    def _pause_s(self) -> float:
        return min(self._rules.eject_s * self._ejections, self._rules.eject_max_s)
