"""A lease of a share: the one mechanism of all limits that gateways share.

A *limit* is an amount in a period: money in a calendar day or month, requests or tokens in a
minute that refills continuously. They differ in two numbers alone: the amount, and the time in
which it comes back. All amounts are integers of pico-units (:mod:`racer_core.prices`): of the
currency, of a request, of a token.

The store has one row for each limit and period, ``used``: what all gateways have spent, less what
came back. A gateway spends of its *share*, which has a row of its own, the lease: what it has spent
since it began, what its requests under way reserve, and the ceiling of both. A request *reserves*
its worst case of the share before its first call, and is settled once, with what it has cost.
Where nothing can be reserved, as for requests and tokens of a minute, what was used is counted.

::

    request ── reserve, settle ──> Share ── Report ──> sync, one transaction ──> limits, leases
                                     ^────── Grant ──────────┘                   (lease_store.py)

One task of a gateway (:mod:`app.access.leases`) reports all shares that are due, and takes what the
store grants. The transaction locks the limit's row, and grants no more than
``amount - used - what the valid leases of others may still spend``. So what is used and all leases
together never exceed the amount, and in any stretch of time the gateways together use at most what
one of them could alone: the amount, and what came back.

What holds, whatever happens:

- A report has totals, so it may be repeated, or arrive late, and counts once.
- A request that can never fit is refused without a draw, and a lease grows for a waiting request
  only if its whole amount can be granted, in each limit in which it waits: refused requests take
  nothing from other gateways.
- A gateway that dies: its lease expires after ``LEASE_S``, and what it had not reported is lost. So
  a limit is exceeded by at most one lease for each gateway that died, or was cut off for longer.
- The store is away: a share is spent until it expires. Then a calendar limit refuses, and a limit
  of a minute refills its part of the amount by itself, which its gateway repays later.
- The store's clock steps: a lease is valid only near the present, a moment in the future counts as
  now, and a period is left as soon as the present is outside of it, before or after.
- A row that cannot be read or written fails alone.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from racer_core.prices import PICO

DRAW_EVERY_S: Final = 0.25
REPORT_S: Final = 1.0  # what is spent is reported this often; a gateway that dies loses as much
RENEW_S: Final = 10.0  # an idle gateway renews its leases this often
LEASE_S: Final = 30.0  # without renewal a lease expires
LEASES_PER_SHARE: Final = 4  # a lease is this part of a gateway's part of what is left

Clock = Callable[[], float]
Place = tuple[str, str]  # name and period of a limit


@dataclass(frozen=True, slots=True)
class Limit:
    """What gateways may use together.

    Attributes:
        name: Such as ``all``, ``key:NAME`` or ``requests:NAME``.
        period: Such as ``2026-11``, ``2026-11-25`` or ``minute``.
        amount: In the period; None: it is counted, and not limited.
        refill_s: Seconds in which all of it comes back, bit by bit; None: with the next period.
    """

    name: str
    period: str
    amount: int | None
    refill_s: float | None = None

    @classmethod
    def per_minute(cls, name: str, units: int) -> Limit:
        """Units a minute."""
        return cls(name, "minute", units * PICO, 60.0)

    def refilled(self, seconds: float) -> int:
        """What comes back in a time."""
        return int(seconds * (self.amount or 0) / self.refill_s) if self.refill_s else 0

    @property
    def place(self) -> Place:
        """Where the store keeps it."""
        return self.name, self.period


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What a waiting request needs of each limit in which it waits: of all of them, or of none."""

    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a gateway says of its share.

    Attributes:
        limit: The limit.
        lease: Id of the share.
        spent: By it, since it began.
        known: What of that the store has said it knows.
        reserved: By its requests under way.
        kept: The ceiling that it goes on with, whatever the store says.
        waiting: What waiting requests need, in their order.
        is_idle: It needs no lease but for these.
    """

    limit: Limit
    lease: str
    spent: int
    known: int
    reserved: int
    kept: int
    waiting: Sequence[Need]
    is_idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the store says of a share.

    Attributes:
        ceiling: What it may have spent and reserved, at most.
        room: What could be spent beside the leases of others; below 0: a debt of all.
        target: The usual size of its lease.
        denied: The smallest amount of a waiting request that could not be granted; None: all were.
        others_spent: What other shares have spent in the period, less what came back.
        others_reserved: What requests under way at other gateways reserve.
        sharers: Gateways with a lease, with this one.
    """

    ceiling: int
    room: int
    target: int
    denied: int | None
    others_spent: int
    others_reserved: int
    sharers: int


class Share:
    """A gateway's share of one limit in one period.

    It fills itself until the store has granted a lease for the first time, and while the store is
    away: with its part of what comes back, which is nothing for a calendar period.

    Args:
        limit: The limit.
        clock: Monotonic time in seconds.

    Attributes:
        spent: By this gateway, less what it has filled itself before the last minute.
        reserved: By its requests under way.
        waiting: What requests need that wait for a larger lease.
        is_lost: The store could not read or write it alone.
    """

    def __init__(self, limit: Limit, clock: Clock = time.monotonic) -> None:
        self.limit = limit
        self.spent = self.reserved = 0
        self.waiting = list[Need]()
        self.is_lost = False
        self._clock = clock
        self._id = secrets.token_hex(16)
        self._fills_itself = True
        self._sharers = 1
        self._own: int = (limit.amount or 0) if limit.refill_s else 0  # what it has filled itself
        self._ceiling: int = self._own
        self._filled_at = clock()
        self._target = self._others_spent = self._others_reserved = self._room = 0
        self._denied: int | None = None
        self._leased_until = self._denied_until = self._used_at = self._synced_at = -math.inf
        self._told = self._known = 0, 0  # of spent and reserved: last told, and taken
        self._told_amount = limit.amount

    @property
    def total_spent(self) -> int:
        """By all gateways."""
        return self._others_spent + self.spent

    @property
    def total_reserved(self) -> int:
        """By requests under way at all gateways."""
        return self._others_reserved + self.reserved

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way or leased, and the store knows what was spent."""
        return not self.waiting and self._known == (self.spent, 0) and self.free <= 0

    @property
    def free(self) -> int:
        """What is left to spend or reserve; below 0: more was spent than there was."""
        self._fill()
        left = self._ceiling - self._used
        return left if self._is_leased else min(left, self._own)

    def fits(self, amount: int) -> bool:
        """Whether this amount can be reserved now."""
        most = self.limit.amount
        if most is None or not amount:
            return True
        is_within = self.limit.refill_s is not None or amount <= most - self._used
        return is_within and amount <= self.free

    def can_ever_fit(self, amount: int) -> bool:
        """Whether it could be reserved if all that is reserved and leased were given back."""
        most, spent = self.limit.amount, 0 if self.limit.refill_s else self.total_spent
        return most is None or not amount or amount <= most - spent

    def is_denied(self, amount: int) -> bool:
        """Whether the store has just said that it cannot grant as much."""
        is_fresh = self._clock() < self._denied_until
        return is_fresh and self._denied is not None and amount >= self._denied

    def wait_s(self, amount: int) -> float:
        """Seconds until this amount may be free; 0 if it is."""
        missing, sharers = amount - self.free, self._sharers
        if missing <= 0:
            return 0.0
        if self._fills_itself:
            return self._refill_s(missing * sharers)
        since = self.limit.refilled(max(0.0, self._clock() - self._synced_at))
        room = self._room + since - (self._used - sum(self._known))
        return max(1.0, self._refill_s(amount - room))  # when a new lease may have come, at least

    def reserve(self, amount: int) -> None:
        """Reserve an amount that fits."""
        self.reserved += amount
        self._used_at = self._clock()

    def settle(self, reserved: int, spent: int) -> None:
        """End a reservation; more may be spent than it reserved."""
        self.reserved -= reserved
        self.spent += spent
        self._used_at = self._clock()

    def follow(self, limit: Limit) -> None:
        """Follow another amount of the same limit; what was spent stays spent.

        No request waits for a limit of a minute, so its part of a raise is there at once, like
        what it fills itself; the store hears of it with the next report.
        """
        if limit.amount != self.limit.amount:
            self._denied = None  # that was of the other amount
        if limit.refill_s and limit.amount is not None:
            self._fill()
            raised = max(0, limit.amount - (self.limit.amount or 0)) // self._sharers
            self._ceiling += raised - max(0, self.free - limit.amount)
            self._own = min(self._own, limit.amount) + raised
        self.limit = limit

    def is_due(self) -> bool:
        """Whether the store must hear of it, or renew its lease."""
        now = self._clock()
        since = now - self._synced_at
        if self.is_lost or since > RENEW_S:
            return since > RENEW_S
        is_changed = self._known != (self.spent, self.reserved)
        if self.waiting or (is_changed and since > REPORT_S):
            return True
        is_low = 2 * self.free < self._target and not self._is_idle(now)
        return self.limit.amount is not None and (is_low or self.free > 2 * self._target)

    def report(self, *, is_final: bool = False) -> Report:
        """What to tell the store. The lease falls at once to what is kept: to nothing at last."""
        self._fill()
        self._forgive()
        is_idle = is_final or self._is_idle(self._clock())
        leased = max(0, self._ceiling - self._own - self._used) if self._is_leased else 0
        kept = min(leased, 0 if is_idle else 2 * self._target)
        self._ceiling -= leased - kept
        self._told, self._told_amount = (self.spent, self.reserved), self.limit.amount
        return Report(
            limit=self.limit,
            lease=self._id,
            spent=self.spent,
            known=self._known[0],
            reserved=self.reserved,
            kept=self._used + kept,
            waiting=tuple(self.waiting),
            is_idle=is_idle,
        )

    def take(self, grant: Grant, reported_at: float) -> None:
        """Follow what the store says.

        Args:
            grant: Its answer.
            reported_at: When :meth:`report` was called, by the clock.
        """
        self._others_spent, self._others_reserved = grant.others_spent, grant.others_reserved
        self._ceiling, self._target, self._room = grant.ceiling, grant.target, grant.room
        self._sharers = grant.sharers
        self._own, self._fills_itself, self.is_lost = 0, False, False
        self._leased_until = reported_at + LEASE_S
        self._synced_at = reported_at
        self._known = self._told
        is_of_this_amount = self._told_amount == self.limit.amount
        self._denied = grant.denied if is_of_this_amount else None
        self._denied_until = self._clock() + DRAW_EVERY_S

    def lose(self) -> None:
        """Go on alone: the store cannot read or write this share, and is asked again later."""
        self.is_lost, self._synced_at = True, self._clock()
        self.fill_itself()

    def fill_itself(self) -> None:
        """From now on, until the store grants a lease again."""
        self._fill()
        self._fills_itself = True

    def _refill_s(self, amount: int) -> float:
        """Seconds in which so much comes back."""
        return amount * (self.limit.refill_s or 0.0) / (self.limit.amount or 1)

    @property
    def _used(self) -> int:
        return self.spent + self.reserved

    @property
    def _is_leased(self) -> bool:
        return self._clock() < self._leased_until

    def _is_idle(self, now: float) -> bool:
        return not self.limit.refill_s and now - self._used_at > RENEW_S

    def _fill(self) -> None:
        """Take what has come back since the last time, as far as there is room for it."""
        now = self._clock()
        elapsed, self._filled_at = max(0.0, now - self._filled_at), now
        if self._fills_itself and self.limit.refill_s:
            room = (self.limit.amount or 0) // self._sharers - (self._ceiling - self._used)
            gained = max(0, min(room, self.limit.refilled(elapsed) // self._sharers))
            self._ceiling += gained
            self._own += gained

    def _forgive(self) -> None:
        """Forget what it filled and spent itself before the last minute, which has come back."""
        most = (self.limit.amount or 0) // self._sharers
        old = max(0, min(self._own - most, self.spent - self._told[0]))
        self.spent -= old
        self._ceiling -= old
        self._own -= old
