"""Circuit breaker of a replica: a dead one is ejected, and readmitted after a health check.

Only a refused connection proves that the replica fails: it depends on no request. Any other failure
may follow the query, which its caller chose. So a breaker opens for one caller or for all:

- for all callers after two refused connections in a row;
- for all callers after ``failures`` failures without a success between them, or when more than half
  of the recent calls failed, where the failures of one caller count for at most half of the number
  that is needed;
- for one caller after ``failures`` failures of its own without a success between them. A failure
  that the server answered, such as a status of 500, opens the breaker only if no call of any caller
  has succeeded within ten seconds: a server that answers others is not broken. A timeout needs no
  such silence.

Calls of other callers pass a breaker that is open for one; the first success closes it. A passed
health check makes a breaker half-open. One failure of a caller then opens it for this caller, and a
failure of a second caller opens it for all. A query that always fails cannot keep it open for other
callers.

A caller is the owner of an API key. An attacker with one key can do this and no more:

- put the replica out for its own key, and with it for other clients that use the same key;
- provide three of the five failures that open the breaker for all. Two failures of other keys,
  without a success of anyone since the first of the five, are the others;
- crash a server that a query can crash. Refused connections then open the breaker for all.

Without keys all clients are one caller. The breaker has no clock of its own. Times are of a
monotonic clock, in seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from app.settings import FleetSettings

UNREACHABLE: Final = 2  # this many refused connections in a row eject a replica
# Closed, half-open and open, as the API and the metrics name them.
STATES: Final = ("in", "probation", "out")
RECENT: Final = 4  # times `failures`: of this many counted calls at most half may fail
WORKING_S: Final = 10.0  # after a success, failures that the server answered may be the query's
ALL_CALLERS: Final = "*"  # in place of a caller; no key has this name


class CircuitBreaker:
    """Closed (``in``), open for a while (``out``), or half-open (``probation``).

    Failures of one payload count once until a call succeeds.

    It is open for at most one caller: the failures of two callers that would each open it for
    themselves open it for all.
    """

    def __init__(self, rules: FleetSettings) -> None:
        self._rules = rules
        self._out_until: float | None = None
        self._out_for = ALL_CALLERS  # while it is open: for this caller
        self._on_trial: str | None = None  # while it is half-open: for this caller
        self._ejections = Counter[str]()  # by caller; each one lasts longer than the one before
        self._ejected = ALL_CALLERS  # the caller whose ejections determine the pause
        self._recent = deque[str | None](maxlen=RECENT * rules.failures)  # callers; None: a success
        self._failed_payloads = dict[str, set[int]]()  # since the last success, by caller
        self._unreachable = 0  # in a row
        self._successes = 0  # since it opened
        self._succeeded_at: float | None = None  # the last success since the breaker opened

    @property
    def out_until(self) -> float | None:
        """The time of the next health check; None unless the breaker is open."""
        return self._out_until

    @property
    def state(self) -> str:
        """One of `STATES`. A breaker that is open for one caller is open."""
        if self._out_until is not None:
            return "out"
        return "in" if self._on_trial is None else "probation"

    @property
    def is_well(self) -> bool:
        """Whether it is closed, and none of the recent calls failed."""
        has_failed = any(each is not None for each in self._recent)
        return self.state == "in" and not self._unreachable and not has_failed

    def is_open_for(self, caller: str) -> bool:
        """Whether calls of this caller are not made for now."""
        return self._out_until is not None and self._out_for in (ALL_CALLERS, caller)

    def record_success(self, now: float) -> None:
        """Close the breaker: a call got its answer.

        A call sent before the ejection counts, too: its answer proves that the replica works.
        """
        self._out_until = self._on_trial = None
        self._failed_payloads.clear()
        self._unreachable = 0
        self._recent.append(None)
        self._succeeded_at = now
        self._successes += 1
        if self._successes >= self._rules.failures:
            self._ejections.clear()

    def record_answer(self) -> None:
        """Note an answer that is neither a success nor a failure of the replica."""
        self._unreachable = 0

    def record_failure(
        self,
        now: float,
        *,
        caller: str,
        payload: int,
        unreachable: bool = False,
        timed_out: bool = False,
    ) -> bool:
        """Note a call that failed by the replica's fault.

        Args:
            now: The time.
            caller: The owner of the API key.
            payload: A digest of the request.
            unreachable: No connection could be made.
            timed_out: The server did not answer in time.

        Returns:
            Whether this failure opened the breaker.
        """
        if self.is_open_for(caller):
            return False
        self._unreachable = self._unreachable + 1 if unreachable else 0
        failed = self._failed_payloads.setdefault(caller, set())
        if payload not in failed:
            self._recent.append(caller)
            if len(failed) < self._rules.failures:
                failed.add(payload)
        if self._fails_for_all():
            self._open(now, ALL_CALLERS)
        elif self._fails_for(caller) and (unreachable or timed_out or not self._works(now)):
            self._open(now, caller)
        else:
            return False
        return True

    def record_failed_check(self, now: float) -> None:
        """Stay open: a health check failed.

        It cost no request, so the next check comes after the same pause as this one. A success
        during the check has closed the breaker.
        """
        if self._out_until is None:
            return
        self._out_until = now + self._pause_s()

    def record_passed_check(self) -> None:
        """Become half-open: a health check passed."""
        if self._out_until is None:
            return
        self._out_until = None
        if self._on_trial != ALL_CALLERS:
            self._on_trial = self._out_for

    def _fails_for_all(self) -> bool:
        rules, is_on_trial = self._rules, self._on_trial == ALL_CALLERS
        return (
            self._unreachable >= (1 if is_on_trial else UNREACHABLE)
            or _add_up(
                map(len, self._failed_payloads.values()), 1 if is_on_trial else rules.failures
            )
            or _add_up(
                Counter(each for each in self._recent if each is not None).values(),
                RECENT * rules.failures // 2 + 1,
            )
        )

    def _fails_for(self, caller: str) -> bool:
        is_on_trial = self._on_trial in (ALL_CALLERS, caller)
        needed = 1 if is_on_trial else self._rules.failures
        return len(self._failed_payloads[caller]) >= needed

    def _works(self, now: float) -> bool:
        """Whether the server has answered a request lately."""
        return self._succeeded_at is not None and now - self._succeeded_at < WORKING_S

    def _open(self, now: float, caller: str) -> None:
        was_open, last = self._out_until is not None, self._ejected
        self._ejected = ALL_CALLERS if ALL_CALLERS in (caller, self._on_trial) else caller
        if not was_open or self._ejected != last:
            self._ejections[self._ejected] += 1
        self._out_until, self._out_for = now + self._pause_s(), caller
        self._successes, self._succeeded_at = 0, None
        if caller == ALL_CALLERS:
            self._on_trial = None
            self._recent.clear()
            self._failed_payloads.clear()
            self._unreachable = 0

    def _pause_s(self) -> float:
        return min(self._rules.eject_s * self._ejections[self._ejected], self._rules.eject_max_s)


def _add_up(failures: Iterable[int], needed: int) -> bool:
    """Whether callers failed often enough, where one counts for at most half of it, rounded up."""
    most = (needed + 1) // 2
    return sum(min(each, most) for each in failures) >= max(needed, 2)
