"""The account of one budget in this gateway, for one period: what was spent, reserved and leased.

A gateway spends of a lease: up to a ceiling of what it has spent and reserved in the period. While
the store renews the lease, requests go on below the ceiling that the gateway keeps. All amounts are
pico-units of :mod:`racer_core.prices`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.access.leases import DRAW_EVERY_S, LEASE_S, RENEW_S
from app.access.periods import Period
from app.settings.budgets import Budget

REPORT_S: Final = 1.0  # what is spent is reported this often; a gateway that dies loses as much

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a gateway says of its account.

    Attributes:
        spent: By it, in this period.
        reserved: By its requests under way.
        kept: The ceiling that it goes on with, whatever the store says.
        waiting: What requests need beyond ``spent`` and ``reserved``.
        is_idle: No request has used the budget for a while.
        hard: The limit; None: there is none, and no ceiling.
    """

    spent: int
    reserved: int
    kept: int
    waiting: int
    is_idle: bool
    hard: int | None

    @property
    def used(self) -> int:
        """Spent and reserved."""
        return self.spent + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the store says of a budget.

    Attributes:
        ceiling: What the gateway may have spent and reserved, at most.
        target: The usual size of its lease.
        others_spent: By other gateways, in this period.
        others_reserved: By their requests under way.
    """

    ceiling: int
    target: int
    others_spent: int
    others_reserved: int


class BudgetAccount:
    """One budget in one period.

    Args:
        scope: Such as ``all`` or ``key:NAME``.
        terms: Its limits, which may change.
        period: The period.
        clock: Monotonic time in seconds.

    Attributes:
        spent: By this gateway.
        reserved: By its requests under way.
        waiting: What requests need that wait for a larger lease.
        is_warned: The soft limit was reached, and it was logged.
        is_refused: A request was refused, and it was logged.
    """

    def __init__(
        self, scope: str, terms: Budget, period: Period, clock: Clock = time.monotonic
    ) -> None:
        self.scope = scope
        self.terms = terms
        self.period = period
        self.spent = self.reserved = self.waiting = 0
        self.is_warned = self.is_refused = False
        self._clock = clock
        self._others_spent = self._others_reserved = 0
        self._ceiling = self._target = 0
        self._leased_until = self._dry_until = self._used_at = self._synced_at = -math.inf
        self._reported = self._known = 0, 0  # of spent and reserved: last told, and taken
        self._asked = 0  # the ceiling that was asked for at the last report

    @property
    def total_spent(self) -> int:
        """By all gateways."""
        return self._others_spent + self.spent

    @property
    def total_reserved(self) -> int:
        """By requests under way at all gateways."""
        return self._others_reserved + self.reserved

    @property
    def is_above_soft(self) -> bool:
        """Whether the soft limit is reached."""
        soft = self.terms.soft_amount
        return soft is not None and self.total_spent >= soft

    @property
    def is_dry(self) -> bool:
        """Whether the store has just said that it can lease no more."""
        return self._clock() < self._dry_until

    def fits(self, amount: int) -> bool:
        """Whether this amount can be reserved of the lease."""
        hard = self.terms.hard_amount
        return hard is None or not amount or amount <= min(self._free, hard - self._used)

    def reserve(self, amount: int) -> None:
        """Reserve an amount that fits."""
        self.reserved += amount
        self._used_at = self._clock()

    def settle(self, reserved: int, spent: int) -> None:
        """End a reservation; more may be spent than it reserved."""
        self.reserved -= reserved
        self.spent += spent

    def is_due(self) -> bool:
        """Whether the store must hear of it, or renew its lease."""
        if self.waiting:
            return True
        now = self._clock()
        since = now - self._synced_at
        is_changed = self._known != (self.spent, self.reserved)
        if since > RENEW_S or (is_changed and since > REPORT_S):
            return True
        is_low = 2 * self._free < self._target and not self._is_idle(now)
        return self.terms.hard is not None and (is_low or self._free > 2 * self._target)

    def report(self) -> Report:
        """What to tell the store. The ceiling falls at once to what is kept."""
        is_idle = self._is_idle(self._clock()) and not self.waiting
        most = 0 if is_idle else 2 * self._target
        kept = self._ceiling = self._used + min(self._free, most)
        self._reported = self.spent, self.reserved
        self._asked = self._used + self.waiting
        return Report(
            spent=self.spent,
            reserved=self.reserved,
            kept=kept,
            waiting=self.waiting,
            is_idle=is_idle,
            hard=self.terms.hard_amount,
        )

    def final_report(self) -> Report:
        """What to tell the store at the end: nothing is kept."""
        self._used_at = -math.inf
        return self.report()

    def take(self, grant: Grant, reported_at: float) -> None:
        """Follow what the store says.

        Args:
            grant: Its answer.
            reported_at: When :meth:`report` was called, by the clock.
        """
        self._others_spent, self._others_reserved = grant.others_spent, grant.others_reserved
        self._ceiling, self._target = grant.ceiling, grant.target
        self._leased_until = reported_at + LEASE_S
        self._synced_at = reported_at
        self._known = self._reported
        if grant.ceiling < self._asked:  # requests that came since then ask with the next report
            self._dry_until = self._clock() + DRAW_EVERY_S

    @property
    def _used(self) -> int:
        return self.spent + self.reserved

    @property
    def _free(self) -> int:
        """What is left of the lease; 0 once it has expired."""
        is_leased = self._clock() < self._leased_until
        return max(0, self._ceiling - self._used) if is_leased else 0

    def _is_idle(self, now: float) -> bool:
        return now - self._used_at > RENEW_S
