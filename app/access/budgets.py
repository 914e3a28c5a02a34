"""Budgets: what requests may cost, by key, application, pool and in all; shared by gateways.

A request reserves the worst case of its calls before the first one, and what they have cost is
settled when they are over. A budget is a limit of a calendar day or month: see
:mod:`app.access.lease`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.access.lease import RENEW_S, Clock, Limit, Place, Share
from app.access.leases import Leases
from app.errors import BudgetExceeded, StoreUnavailable
from app.settings import Settings
from app.settings.budgets import ALL, CHEAPEST, Budget
from racer_core.prices import as_number

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3  # others may take what was leased, or a period may end


class BudgetMetrics:
    """Registered beside the gateway's other metrics; amounts are in the configured currency."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.spent = Gauge(
            "racer_budget_spent",
            "What requests of all gateways have cost in the present period of the budget",
            ("budget",),
            registry=registry,
        )
        self.reserved = Gauge(
            "racer_budget_reserved",
            "What requests under way at all gateways may cost at most",
            ("budget",),
            registry=registry,
        )
        self.limit = Gauge(
            "racer_budget_limit",
            "The configured limits of the budget",
            ("budget", "kind"),  # soft or hard
            registry=registry,
        )
        self.refusals = Counter(
            "racer_budget_refusals",
            "Requests that this gateway refused because they could exceed the budget",
            ("budget",),
            registry=registry,
        )


class BudgetShare(Share):
    """This gateway's share of one budget in one period.

    Args:
        scope: Such as ``all`` or ``key:NAME``.
        terms: Its limits, which may change.
        period: The period.
        clock: Monotonic time in seconds.

    Attributes:
        is_warned: The soft limit was reached, and it was logged.
        is_refused: A request was refused, and it was logged.
    """

    def __init__(self, scope: str, terms: Budget, period: Period, clock: Clock) -> None:
        super().__init__(Limit(scope, period.id, terms.hard_amount), clock)
        self.scope = scope
        self.terms = terms
        self.period = period
        self.is_warned = self.is_refused = False

    @property
    def is_above_soft(self) -> bool:
        """Whether the soft limit is reached."""
        soft = self.terms.soft_amount
        return soft is not None and self.total_spent >= soft

    def change(self, terms: Budget, period: Period) -> None:
        """Follow other limits; the period may be of another time zone."""
        if terms != self.terms:
            self.is_warned = self.is_refused = False
        self.terms, self.period = terms, period
        self.follow(Limit(self.scope, period.id, terms.hard_amount))


class Budgets:
    """All budgets of a gateway.

    Args:
        leases: Renew the shares of the budgets.
        settings: The configured budgets.
        metrics: Show them.
        wall_clock: Seconds since 1970, by which periods end.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        leases: Leases,
        settings: Settings,
        metrics: BudgetMetrics,
        *,
        wall_clock: Clock = time.time,
        clock: Clock = time.monotonic,
    ) -> None:
        self._leases = leases
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._clock = clock
        self._present: dict[str, BudgetShare] = {}
        self._shares: dict[Place, BudgetShare] = {}  # with those of other periods, until settled
        self.reconfigure(settings)
        leases.follow(self.shares)

    def reconfigure(self, settings: Settings) -> None:
        """Follow another configuration; what was spent and reserved still counts."""
        self._currency = settings.currency
        self._terms = settings.budgets
        self._present.clear()
        self._show()

    def reservation(
        self, *, key: str, application: str | None, pool: str | None
    ) -> Reservation | None:
        """A reservation for a request, of which nothing is reserved yet; None: it has no budget.

        Args:
            key: Name of its API key.
            application: Its application.
            pool: The configured pool that it names.
        """
        named = {"key": key, "application": application, "pool": pool}
        scopes = [ALL, *(f"{kind}:{name}" for kind, name in named.items() if name is not None)]
        own = [scope for scope in scopes if scope in self._terms]
        return Reservation(self, self._leases, partial(self.present, own)) if own else None

    def present(self, scopes: Iterable[str] | None = None) -> list[BudgetShare]:
        """The shares of these budgets, or of all, in their present periods."""
        wanted = self._terms if scopes is None else scopes
        return [self._share(scope) for scope in wanted if scope in self._terms]

    def shares(self) -> list[BudgetShare]:
        """All shares of which the store has to hear."""
        present = {share.limit.place: share for share in self.present()}
        for share in present.values():
            self.note_spending(share)
        others = {at: each for at, each in self._shares.items() if not each.is_settled}
        self._shares = others | present
        return list(self._shares.values())

    @property
    def are_lost(self) -> bool:
        """Whether the store cannot read or write one of them: its requests are refused."""
        return any(share.is_lost for share in self.present())

    def refusal(self, share: BudgetShare, amount: int) -> BudgetExceeded:
        """The error of a request that does not fit a budget; it is counted, and logged once."""
        terms, period = share.terms, share.period
        self._metrics.refusals.labels(share.scope).inc()
        if not share.is_refused:
            share.is_refused = True
            log.warning(
                "the budget of %s refuses requests until %s at the latest: %s of %s %s are spent",
                share.scope, period.ends_at, _shown(share.total_spent), terms.hard,
                self._currency,
            )  # fmt: skip
        costs = f"this request may cost up to {_shown(amount)} {self._currency}"
        if amount > (terms.hard_amount or 0):
            return BudgetExceeded(
                f"{costs}, more than the whole budget of {share.scope}: lower `max_tokens`, or "
                "raise the budget"
            )
        if share.can_ever_fit(amount):
            return BudgetExceeded(
                f"{costs}, and other requests hold what is left of the budget of {share.scope}: "
                "try again soon",
                retry_after_s=math.ceil(RENEW_S),
            )
        return BudgetExceeded(
            f"{costs}, more than is left of the budget of {share.scope} for this {terms.per}; it "
            f"begins anew at {period.ends_at}. Until then lower `max_tokens`, or raise the budget"
        )

    def note_spending(self, share: BudgetShare) -> None:
        """Log once that a budget has reached its soft limit."""
        if share.is_above_soft and not share.is_warned:
            share.is_warned = True
            log.warning(
                "the budget of %s is above its soft limit: %s of %s %s are spent, until %s",
                share.scope, _shown(share.total_spent), share.terms.soft, self._currency,
                share.period.ends_at,
            )  # fmt: skip

    def as_json(self, scopes: Sequence[str] | None = None) -> dict[str, Any]:
        """The wire form of these budgets, or of all."""
        return {
            "currency": self._currency,
            "budgets": [
                {
                    "budget": each.scope,
                    "per": each.terms.per,
                    "period": each.period.id,
                    "ends_at": each.period.ends_at,
                    "soft": each.terms.soft,
                    "hard": each.terms.hard,
                    "spent": as_number(each.total_spent),
                    "reserved": as_number(each.total_reserved),
                    "above_soft": each.is_above_soft,
                }
                for each in self.present(scopes)
            ],
        }

    def _share(self, scope: str) -> BudgetShare:
        """The share of the present period, which may be one that was left before."""
        now, share = self._wall_clock(), self._present.get(scope)
        if share is None or not share.period.has(now):
            terms = self._terms[scope]
            period = period_at(now, terms.per, terms.time_zone)
            share = self._shares.get((scope, period.id))
            if share is None:
                share = BudgetShare(scope, terms, period, self._clock)
                self._shares[share.limit.place] = share
            share.change(terms, period)
            self._present[scope] = share
        return share

    def _show(self) -> None:
        metrics = self._metrics
        for gauge in (metrics.spent, metrics.reserved, metrics.limit):
            gauge.clear()
        for scope, terms in self._terms.items():
            metrics.refusals.labels(scope)  # a rate needs the zero before the first
            metrics.spent.labels(scope).set_function(partial(self._spent, scope))
            metrics.reserved.labels(scope).set_function(partial(self._reserved, scope))
            for kind, limit in (("soft", terms.soft), ("hard", terms.hard)):
                if limit is not None:
                    metrics.limit.labels(scope, kind).set(limit)

    def _spent(self, scope: str) -> float:
        return as_number(self._share(scope).total_spent)

    def _reserved(self, scope: str) -> float:
        return as_number(self._share(scope).total_reserved)


class Reservation:
    """The largest possible cost of one request, reserved in each budget that it counts towards.

    Args:
        budgets: The budgets.
        leases: Enlarge their shares.
        find: The shares of the request, of the present periods.

    Attributes:
        least_alpha: The smallest alpha of a request that states none; None: any.
        calls_cheapest: Only the cheapest candidate may be called.
    """

    def __init__(
        self, budgets: Budgets, leases: Leases, find: Callable[[], Sequence[BudgetShare]]
    ) -> None:
        self._budgets = budgets
        self._leases = leases
        self._find = find
        self._shares: Sequence[BudgetShare] = ()  # in which it is reserved
        self._amount = 0
        self._cost: Callable[[], int] | None = None
        policies = [each.terms.above_soft for each in find() if each.is_above_soft]
        self.calls_cheapest = CHEAPEST in policies
        self.least_alpha = max([each for each in policies if isinstance(each, float)], default=None)

    async def make(self, amount: int, cost: Callable[[], int]) -> None:
        """Reserve an amount in each budget, or in none.

        Args:
            amount: The largest cost of the request's calls.
            cost: What they have cost so far: it counts where :meth:`settle` is not called.

        Raises:
            BudgetExceeded: A budget has less left.
            StoreUnavailable: Less is leased, and the store does not respond.
        """
        lacking = await self._reserve(amount, self._find)
        if lacking is not None:
            raise self._budgets.refusal(lacking, amount)
        self._cost = cost

    async def add(self, amount: int) -> bool:
        """Reserve a further amount in the same budgets, if it fits; return whether it did."""
        try:
            return await self._reserve(amount, lambda: self._shares) is None
        except StoreUnavailable:
            return False

    def settle(self, spent: int) -> None:
        """End the reservation with what the calls have cost. Nothing can be settled twice."""
        shares, amount = self._shares, self._amount
        self._shares, self._amount, self._cost = (), 0, None
        for share in shares:
            share.settle(amount, spent)
            self._budgets.note_spending(share)

    def close(self) -> None:
        """End a reservation that was not settled, whatever happened to its request."""
        if self._cost is None:
            return
        try:
            spent = self._cost()
        except Exception:
            log.exception("the cost of a request is not known: all that it reserved counts")
            spent = self._amount
        self.settle(spent)

    async def _reserve(
        self, amount: int, find: Callable[[], Sequence[BudgetShare]]
    ) -> BudgetShare | None:
        """Reserve of all shares, or return one that the amount does not fit."""
        lacking: list[BudgetShare] = []
        for _ in range(_ATTEMPTS):
            shares = find()
            lacking = [each for each in shares if not each.fits(amount)]
            if not lacking:
                for share in shares:
                    share.reserve(amount)
                self._shares, self._amount = shares, self._amount + amount
                return None
            for share in lacking:
                if not share.can_ever_fit(amount) or share.is_denied(amount):
                    return share
            await self._leases.enlarge(lacking, amount)
        return lacking[0]


def _shown(amount: int) -> str:
    return f"{as_number(amount):.6g}"


@dataclass(frozen=True, slots=True)
class Period:
    """A day or a month.

    Attributes:
        id: Such as ``2026-11-25`` or ``2026-11``.
        ends_at: When the next one begins: ISO 8601, in the time zone.
        begin: Its beginning, in seconds since 1970.
        end: Its end, the same way.
    """

    id: str
    ends_at: str
    begin: float
    end: float

    def has(self, seconds: float) -> bool:
        """Whether a moment is within it: a clock may go back, too."""
        return self.begin <= seconds < self.end


def period_at(seconds: float, per: Literal["day", "month"], time_zone: str) -> Period:
    """The period with a moment, given in seconds since 1970.

    A period ends where its successor's first midnight is, or would be: some time zones skip it.
    """
    zone = ZoneInfo(time_zone)
    today = datetime.fromtimestamp(seconds, zone).date()
    if per == "day":
        period_id, first, following = today.isoformat(), today, today + timedelta(days=1)
    else:
        period_id, first = f"{today:%Y-%m}", today.replace(day=1)
        following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    begin, end = (datetime.combine(day, datetime.min.time(), zone) for day in (first, following))
    return Period(period_id, end.isoformat(), begin.timestamp(), end.timestamp())
