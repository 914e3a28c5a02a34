"""The ledger of budgets: no order of requests, reports, faults and deaths exceeds a limit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from app.access.budget_account import BudgetAccount
from app.access.budget_ledger import KEPT_S, delete_old, sync
from app.access.leases import LEASE_S, RENEW_S
from app.access.periods import Period
from app.settings.budgets import Budget
from app.store import Store
from app.store.tables import BudgetLeaseRow
from racer_core.prices import amount_of

HARD: Final = amount_of(100)
PERIOD: Final = Period("2026-11", "", float("inf"))
PLACE: Final = ("all", PERIOD.id)


@dataclass
class Process:
    """A gateway from its start to its death."""

    id: str
    account: BudgetAccount
    reserved: list[int] = field(default_factory=list[int])


class World:
    """Some gateways, one store, one clock."""

    def __init__(self, store: Store, gateways: int, terms: Budget | None = None) -> None:
        self.store = store
        self.now = 1_000.0
        self.terms = Budget(hard=100) if terms is None else terms
        self.started = 0
        self.lost = 0  # what dead gateways have spent
        self.lapsed: dict[tuple[str, float], int] = {}  # leases that expired
        self.gateways = [self.start() for _ in range(gateways)]

    def start(self) -> Process:
        """Another gateway."""
        self.started += 1
        account = BudgetAccount("all", self.terms, PERIOD, lambda: self.now)
        return Process(f"gateway {self.started}", account)

    def sync(self, process: Process, *, commits: bool = True, answers: bool = True) -> None:
        """One report, of which the store or its answer may be lost."""
        at, report = self.now, process.account.report()
        if commits:
            grants = sync(self.store, process.id, {PLACE: report}, clock=lambda _: self.now)
            if answers:
                process.account.take(grants[PLACE], at)

    def ask(self, process: Process, amount: int, **faults: bool) -> bool:
        """A request: whether its amount was reserved."""
        account = process.account
        if not account.fits(amount):
            account.waiting += amount
            self.sync(process, **faults)
            account.waiting -= amount
        if account.fits(amount):
            account.reserve(amount)
            process.reserved.append(amount)
            return True
        return False

    def settle(self, process: Process, share: float) -> None:
        """The oldest request ends."""
        if process.reserved:
            amount = process.reserved.pop(0)
            process.account.settle(amount, round(amount * share))

    def die(self, number: int) -> None:
        """A gateway dies; what its requests reserved was spent. Another one starts."""
        dead = self.gateways[number]
        self.lost += dead.account.spent + sum(dead.reserved)
        self.gateways[number] = self.start()

    def wait(self, seconds: float) -> None:
        """Time passes; leases expire."""
        self.now += seconds
        for row in self.rows():
            if row.until <= self.now:
                self.lapsed[row.gateway, row.until] = row.ceiling - row.spent

    def rows(self) -> list[BudgetLeaseRow]:
        """What the store has."""
        with self.store.transaction() as session:
            return list(session.scalars(select(BudgetLeaseRow)))

    @property
    def used(self) -> int:
        """What is spent and reserved, in truth."""
        accounts = [each.account for each in self.gateways]
        return self.lost + sum(each.spent + each.reserved for each in accounts)

    def act(self, what: str, number: int, value: float) -> None:
        """One event."""
        process = self.gateways[number % len(self.gateways)]
        match what:
            case "ask":
                self.ask(process, amount_of(value))
            case "ask in vain":
                self.ask(process, amount_of(value), commits=False)
            case "ask unheard":
                self.ask(process, amount_of(value), answers=False)
            case "settle":
                self.settle(process, value / 60)
            case "tick" if process.account.is_due():
                self.sync(process)
            case "wait":
                self.wait(value)
            case "die":
                self.die(number % len(self.gateways))
            case _:
                pass


@contextmanager
def emptied() -> Generator[Callable[[], Store]]:
    """A function that empties a store, and returns it."""
    with TemporaryDirectory() as folder, Store(f"sqlite:///{folder}/racer.db") as store:

        def empty() -> Store:
            with store.transaction() as session:
                session.execute(delete(BudgetLeaseRow))
            return store

        yield empty


def events(*names: str, longest_s: float) -> st.SearchStrategy[list[tuple[str, int, float]]]:
    """Events of gateways."""
    of_amounts = [name for name in names if name != "wait"]
    numbers, values = st.integers(0, 2), st.sampled_from([0.25, 1.0, 3.0, 7.0, 20.0, 60.0])
    some = st.tuples(st.sampled_from(of_amounts), numbers, values)
    waits = st.tuples(st.just("wait"), numbers, st.sampled_from([0.3, 1.5, longest_s]))
    return st.lists(some | some | some | waits, min_size=20, max_size=40)


ORDINARY = (*["ask"] * 5, "settle", "tick", "ask in vain", "ask unheard")


def test_gateways_together_never_exceed_the_limit() -> None:
    """In any order of requests and reports, whatever answers of the store are lost.

    Red if the store counted what a gateway has reported instead of what it may spend, or if a
    gateway kept more than it says.
    """
    with emptied() as empty:

        @settings(max_examples=40)
        @given(events(*ORDINARY, longest_s=1.5))
        def holds(found: list[tuple[str, int, float]]) -> None:
            world = World(empty(), 3)
            for event in found:
                world.act(*event)
                assert world.used <= HARD
                if event[0] == "wait":  # the lease of a gateway that lives goes on
                    for process in world.gateways:
                        world.sync(process)

        holds()


def test_a_dead_or_silent_gateway_exceeds_it_by_its_lease() -> None:
    """By no more than the leases that expired: what their gateways could spend unreported."""
    with emptied() as empty:

        @settings(max_examples=40)
        @given(events(*ORDINARY, "die", longest_s=LEASE_S + 1))
        def holds(found: list[tuple[str, int, float]]) -> None:
            world = World(empty(), 3)
            for event in found:
                world.act(*event)
                assert world.used <= HARD + sum(world.lapsed.values())

        holds()


def test_nothing_leaks() -> None:
    """When all is over, all that is not reported as spent can be reserved at one gateway.

    Red if a lease, or a reservation of a gateway that died, did not come back.
    """
    with emptied() as empty:

        @settings(max_examples=40)
        @given(events(*ORDINARY, "die", longest_s=LEASE_S + 1))
        def holds(found: list[tuple[str, int, float]]) -> None:
            world = World(empty(), 3)
            for event in found:
                world.act(*event)
            for process in world.gateways:
                while process.reserved:
                    world.settle(process, 0.5)
                world.sync(process)
            world.wait(LEASE_S + 1)
            for process in world.gateways:
                world.sync(process)
            left = HARD - sum(row.spent for row in world.rows())
            asking = world.gateways[0]
            assert not world.ask(asking, max(left, 0) + 1)
            assert left <= 0 or world.ask(asking, left)

        holds()


@pytest.fixture
def world(store: Store) -> World:
    """Two gateways."""
    return World(store, 2)


def test_all_of_a_budget_can_be_reserved_by_one_request(world: World) -> None:
    """Beyond the usual lease; the other gateway has none then, nor waits for the store again."""
    one, other = world.gateways
    assert world.ask(one, HARD)
    assert not world.ask(other, 1)
    assert other.account.is_dry
    world.settle(one, 0.25)
    world.sync(one)
    world.wait(1)
    assert world.ask(other, HARD // 4)


def test_a_lease_is_a_part_of_what_is_left(world: World) -> None:
    """A quarter for one gateway; the rest of a larger one goes back as the budget runs out."""
    one, other = world.gateways
    assert world.ask(one, 1)
    assert one.account.fits(HARD // 4 - 1)
    assert not one.account.fits(HARD // 4 + 1)
    assert world.ask(other, HARD * 7 // 10)
    world.sync(other)
    world.sync(one)
    assert one.account.is_due()
    world.sync(one)
    assert one.account.fits(1)
    assert not one.account.fits(HARD // 8)


def test_an_idle_gateway_gives_its_lease_back(world: World) -> None:
    """At its next report, when no request has used the budget for a while."""
    one, other = world.gateways
    assert world.ask(one, amount_of(1))
    world.settle(one, 1.0)
    world.sync(one)
    assert not world.ask(other, amount_of(99))
    world.wait(RENEW_S + 1)
    assert one.account.is_due()
    world.sync(one)
    assert world.ask(other, amount_of(99))


def test_what_a_gateway_offers_it_does_not_spend(world: World) -> None:
    """Even if it never hears that the store took it: another gateway may have it."""
    one, other = world.gateways
    assert world.ask(one, amount_of(1))
    world.wait(RENEW_S + 1)
    world.sync(one, answers=False)
    assert world.ask(other, amount_of(99))
    assert not world.ask(one, amount_of(1), commits=False)


def test_what_a_refused_request_made_lease_is_given_back_at_once(world: World) -> None:
    """A request too large for the rest makes its gateway hold the rest only until the next tick."""
    one, other = world.gateways
    assert not world.ask(one, HARD + 1)
    assert one.account.is_due()
    world.sync(one)
    assert world.ask(other, HARD)


def test_all_gateways_know_what_is_spent(world: World) -> None:
    """After their next reports, with what is reserved; also of a budget without a hard limit."""
    for terms in (Budget(hard=100, soft=50), Budget(soft=50)):
        one, other = [each.account for each in world.gateways]
        one.terms = other.terms = terms
        assert world.ask(world.gateways[0], amount_of(60))
        world.sync(world.gateways[0])
        world.sync(world.gateways[1])
        assert (other.total_spent, other.total_reserved) == (one.spent, amount_of(60))
        world.settle(world.gateways[0], 0.5)
        world.sync(world.gateways[0])
        world.sync(world.gateways[1])
        assert other.total_reserved == 0
        assert other.is_above_soft == (one.spent >= amount_of(50))
    assert other.total_spent == amount_of(60)


def test_a_report_that_comes_late_takes_nothing_back(world: World) -> None:
    """As of a thread that hung while its gateway ended."""
    one = world.gateways[0]
    early = one.account.report()
    assert world.ask(one, amount_of(10))
    world.settle(one, 1.0)
    world.sync(one)
    sync(world.store, one.id, {PLACE: early}, clock=lambda _: world.now)
    assert [row.spent for row in world.rows()] == [amount_of(10)]


def test_a_gateway_without_the_store_spends_its_lease_until_it_expires(world: World) -> None:
    """Then nothing: others may have it."""
    one = world.gateways[0]
    assert world.ask(one, 1)
    assert world.ask(one, 1, commits=False)
    world.wait(LEASE_S)
    assert not world.ask(one, 1, commits=False)
    assert world.ask(one, 1)


def test_a_raised_limit_holds_at_once(world: World) -> None:
    """And a lowered one, even if more is leased."""
    one = world.gateways[0]
    assert not world.ask(one, amount_of(150))
    one.account.terms = Budget(hard=200)
    world.wait(1)
    assert world.ask(one, amount_of(150))
    one.account.terms = Budget(hard=150)
    assert not one.account.fits(1)


def test_amounts_of_any_size_are_exact(store: Store) -> None:
    """Beyond the integers of SQL, and of floats."""
    world = World(store, 2, Budget(hard=1e15))
    amount = 10**26 + 1
    assert world.ask(world.gateways[0], amount)
    world.sync(world.gateways[0])
    assert [row.reserved for row in world.rows()] == [amount]
    assert not world.ask(world.gateways[1], 10**27 - amount + 1)
    world.wait(1)
    world.settle(world.gateways[0], 0.0)
    world.wait(RENEW_S + 1)
    world.sync(world.gateways[0])
    assert world.ask(world.gateways[1], 10**27)


def test_rows_of_past_periods_are_deleted(world: World) -> None:
    """Long after any period that they could belong to."""
    assert world.ask(world.gateways[0], 1)
    delete_old(world.store, clock=lambda _: world.now + KEPT_S)
    assert len(world.rows()) == 1
    delete_old(world.store, clock=lambda _: world.now + KEPT_S + LEASE_S + 1)
    assert world.rows() == []


def test_an_idle_gateway_writes_nothing(world: World) -> None:
    """It reads what others have spent, and has no row."""
    world.sync(world.gateways[0])
    assert world.rows() == []
