"""Budgets: what requests may cost, by key, application, pool and in all; shared by gateways.

A request reserves the worst case of its calls before the first one, and what they have cost is
settled when they are over. It waits for the store only if this gateway's lease is too small.
Without the store requests go on within the lease, until it expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.access import budget_ledger
from app.access.budget_account import BudgetAccount, Clock, Report
from app.access.budget_metrics import BudgetMetrics
from app.access.leases import RENEW_S, Leases
from app.access.periods import period_at
from app.access.reservation import Reservation
from app.errors import BudgetExceeded, StoreUnavailable
from app.settings import Settings
from app.settings.budgets import ALL, Budget
from app.store import Store
from racer_core.prices import as_number

log = logging.getLogger(__name__)

DELETE_EVERY_S: Final = 24 * 3_600.0
STORE_TIMEOUT_S: Final = 5.0  # more than of quotas: without the store a request may be refused
_AWAY: Final = "the store of the budgets does not respond, and more was asked than is leased"


class Budgets(Leases):
    """All budgets of a gateway, and the background task that reports and renews their leases.

    Args:
        store: Has what all gateways have spent.
        settings: The configured budgets.
        metrics: Show them.
        wall_clock: Seconds since 1970, by which periods end.
        clock: Monotonic time in seconds.
        store_timeout_s: How long a request waits for a lease.
        **intervals: As :class:`Leases` takes them.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: BudgetMetrics,
        *,
        wall_clock: Clock = time.time,
        clock: Clock = time.monotonic,
        store_timeout_s: float = STORE_TIMEOUT_S,
        **intervals: float,
    ) -> None:
        super().__init__(store, name="budget leases", store_timeout_s=store_timeout_s, **intervals)
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._clock = clock
        self._accounts: dict[str, BudgetAccount] = {}
        # No longer configured, in a period that is not over: a reload may add them again.
        self._former: dict[budget_ledger.Place, BudgetAccount] = {}
        self._next_draw: asyncio.Event = asyncio.Event()  # set when it is over
        self._wake = asyncio.Event()
        self._delete_at = -math.inf
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Follow another configuration; what was spent and reserved still counts."""
        self._currency = settings.currency
        known = self._former | {_place(each): each for each in self._accounts.values()}
        self._accounts = {}
        for scope, terms in settings.budgets.items():
            account = self._new(scope, terms)
            if (kept := known.pop(_place(account), None)) is not None:
                kept.terms, kept.period = terms, account.period
                account = kept
            self._accounts[scope] = account
        now = self._wall_clock()
        self._former = {place: each for place, each in known.items() if now < each.period.end}
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
        own = [scope for scope in scopes if scope in self._accounts]
        return Reservation(self, partial(self.accounts, own)) if own else None

    def accounts(self, scopes: Sequence[str] | None = None) -> list[BudgetAccount]:
        """The accounts of these budgets, or of all, in their present periods."""
        wanted = list(self._accounts) if scopes is None else scopes
        return [self._account(scope) for scope in wanted if scope in self._accounts]

    async def lease(self, accounts: Sequence[BudgetAccount], amount: int) -> None:
        """Have this amount leased beyond what these accounts use, as far as the limits allow.

        Raises:
            StoreUnavailable: The store does not respond.
        """
        if self._is_cut_off:
            raise StoreUnavailable(_AWAY)
        drawn = self._next_draw
        for account in accounts:
            account.waiting += amount
        self._wake.set()
        try:
            async with asyncio.timeout(self._store_timeout_s):
                await drawn.wait()
        except TimeoutError:
            raise StoreUnavailable(_AWAY) from None
        finally:
            for account in accounts:
                account.waiting -= amount
        if self._is_cut_off:
            raise StoreUnavailable(_AWAY)

    def refusal(self, account: BudgetAccount, amount: int) -> BudgetExceeded:
        """The error of a request that does not fit a budget; it is counted, and logged once."""
        terms, period = account.terms, account.period
        self._metrics.refusals.labels(account.scope).inc()
        if not account.is_refused:
            account.is_refused = True
            log.warning(
                "the budget of %s refuses requests until %s at the latest: %s of %s %s are spent",
                account.scope, period.ends_at, _shown(account.total_spent), terms.hard,
                self._currency,
            )  # fmt: skip
        costs = f"this request may cost up to {_shown(amount)} {self._currency}"
        hard = terms.hard_amount or 0
        if amount > hard:
            return BudgetExceeded(
                f"{costs}, more than the whole budget of {account.scope}: lower `max_tokens`, or "
                "raise the budget"
            )
        if account.total_spent + amount <= hard:
            return BudgetExceeded(
                f"{costs}, and other requests hold what is left of the budget of {account.scope}: "
                "try again soon",
                retry_after_s=math.ceil(RENEW_S),
            )
        return BudgetExceeded(
            f"{costs}, more than is left of the budget of {account.scope} for this {terms.per}; it "
            f"begins anew at {period.ends_at}. Until then lower `max_tokens`, or raise the budget"
        )

    def note_spending(self, account: BudgetAccount) -> None:
        """Log once that a budget has reached its soft limit."""
        if account.is_above_soft and not account.is_warned:
            account.is_warned = True
            log.warning(
                "the budget of %s is above its soft limit: %s of %s %s are spent, until %s",
                account.scope, _shown(account.total_spent), account.terms.soft, self._currency,
                account.period.ends_at,
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
                for each in self.accounts(scopes)
            ],
        }

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._draw_every_s):
                await self._wake.wait()

    async def _draw(self) -> None:
        self._wake.clear()
        drawn, self._next_draw = self._next_draw, asyncio.Event()
        try:
            await self._sync()
        finally:
            drawn.set()
        await asyncio.sleep(0)  # requests that waited reserve first: a draw gives back what is left
        if not self._is_cut_off and self._clock() >= self._delete_at:
            self._delete_at = self._clock() + DELETE_EVERY_S
            await self._from_store(partial(budget_ledger.delete_old, self._store))

    async def _sync(self) -> None:
        due = {_place(each): each for each in self._all() if self._is_cut_off or each.is_due()}
        if not due:
            return
        reported_at = self._clock()
        reports = {place: account.report() for place, account in due.items()}
        grants = await self._from_store(
            partial(budget_ledger.sync, self._store, self._gateway, reports)
        )
        for place, grant in (grants or {}).items():
            due[place].take(grant, reported_at)
            if place not in self._former:
                self.note_spending(due[place])

    def _give_back(self) -> None:
        reports: Mapping[budget_ledger.Place, Report] = {
            _place(each): each.final_report() for each in self._all()
        }
        if reports:
            budget_ledger.sync(self._store, self._gateway, reports)

    def _continue_without_store(self, why: str) -> None:
        if not self._is_cut_off:
            log.warning("budgets continue within their leases without the store: %s", why)

    def _all(self) -> Sequence[BudgetAccount]:
        """The accounts of which the store hears."""
        return (*self.accounts(), *self._former.values())

    def _account(self, scope: str) -> BudgetAccount:
        account = self._accounts[scope]
        if self._wall_clock() >= account.period.end:
            account = self._accounts[scope] = self._new(scope, account.terms)
        return account

    def _new(self, scope: str, terms: Budget) -> BudgetAccount:
        period = period_at(self._wall_clock(), terms.per, terms.time_zone)
        return BudgetAccount(scope, terms, period, self._clock)

    def _show(self) -> None:
        metrics = self._metrics
        for gauge in (metrics.spent, metrics.reserved, metrics.limit):
            gauge.clear()
        for scope, account in self._accounts.items():
            metrics.refusals.labels(scope)  # a rate needs the zero before the first
            metrics.spent.labels(scope).set_function(partial(self._spent, scope))
            metrics.reserved.labels(scope).set_function(partial(self._reserved, scope))
            for kind, limit in (("soft", account.terms.soft), ("hard", account.terms.hard)):
                if limit is not None:
                    metrics.limit.labels(scope, kind).set(limit)

    def _spent(self, scope: str) -> float:
        return as_number(self._account(scope).total_spent)

    def _reserved(self, scope: str) -> float:
        return as_number(self._account(scope).total_reserved)


def _place(account: BudgetAccount) -> budget_ledger.Place:
    return account.scope, account.period.id


def _shown(amount: int) -> str:
    return f"{as_number(amount):.6g}"
