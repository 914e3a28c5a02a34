"""The reservation of one request: the worst case of its calls, in each of its budgets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from app.access.budget_account import BudgetAccount
from app.errors import BudgetExceeded, StoreUnavailable
from app.settings.budgets import CHEAPEST

_ATTEMPTS: Final = 3  # others may take what was leased, or a period may end


class BudgetSource(Protocol):
    """The budgets, as a reservation uses them."""

    def lease(self, accounts: Sequence[BudgetAccount], amount: int) -> Awaitable[None]:
        """Have more leased. Raises StoreUnavailable."""
        ...

    def refusal(self, account: BudgetAccount, amount: int) -> BudgetExceeded:
        """The error of a request that does not fit a budget."""
        ...

    def note_spending(self, account: BudgetAccount) -> None:
        """Called when an account has spent more."""
        ...


class Reservation:
    """What one request may cost, reserved of each budget that it counts towards.

    Args:
        source: Leases of the budgets.
        find: The accounts of the request, of the present periods.

    Attributes:
        least_alpha: The smallest alpha of a request that states none; None: any.
        calls_cheapest: Only the cheapest candidate may be called.
    """

    def __init__(self, source: BudgetSource, find: Callable[[], Sequence[BudgetAccount]]) -> None:
        self._source = source
        self._find = find
        self._accounts: Sequence[BudgetAccount] = ()  # those that it is reserved of
        self._amount = 0
        self._cost: Callable[[], int] | None = None
        policies = [each.terms.above_soft for each in find() if each.is_above_soft]
        self.calls_cheapest = CHEAPEST in policies
        self.least_alpha = max([each for each in policies if isinstance(each, float)], default=None)

    async def make(self, amount: int, cost: Callable[[], int]) -> None:
        """Reserve an amount of each budget, or of none.

        Args:
            amount: The largest cost of the request's calls.
            cost: What they have cost so far: it counts where :meth:`settle` is not called.

        Raises:
            BudgetExceeded: It is more than is left of a budget.
            StoreUnavailable: It is more than is leased, and the store does not respond.
        """
        lacking = await self._reserve(amount, self._find)
        if lacking is not None:
            raise self._source.refusal(lacking, amount)
        self._cost = cost

    async def add(self, amount: int) -> bool:
        """Reserve a further amount of the same budgets, if it fits; return whether it did."""
        try:
            return await self._reserve(amount, lambda: self._accounts) is None
        except StoreUnavailable:
            return False

    def settle(self, spent: int) -> None:
        """End the reservation with what the calls have cost. Nothing can be settled twice."""
        accounts, amount = self._accounts, self._amount
        self._accounts, self._amount, self._cost = (), 0, None
        for account in accounts:
            account.settle(amount, spent)
            self._source.note_spending(account)

    def close(self) -> None:
        """End a reservation that was not settled."""
        if self._cost is not None:
            self.settle(self._cost())

    async def _reserve(
        self, amount: int, find: Callable[[], Sequence[BudgetAccount]]
    ) -> BudgetAccount | None:
        """Reserve of all accounts, or return one that the amount does not fit."""
        lacking: list[BudgetAccount] = []
        for _ in range(_ATTEMPTS):
            accounts = find()
            lacking = [each for each in accounts if not each.fits(amount)]
            if not lacking:
                for account in accounts:
                    account.reserve(amount)
                self._accounts, self._amount = accounts, self._amount + amount
                return None
            if dry := [each for each in lacking if each.is_dry]:
                return dry[0]
            await self._source.lease(lacking, amount)
        return lacking[0]
