"""Reservations of requests: at once within a lease, after one draw beyond it, by one clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from app.access import budget_ledger
from app.access.budget_metrics import BudgetMetrics
from app.access.budgets import Budgets
from app.access.quotas import Quotas
from app.access.reservation import Reservation
from app.errors import BudgetExceeded, StoreUnavailable
from app.settings import Settings
from app.store import Store
from app.store.tables import BudgetLeaseRow
from racer_core.prices import amount_of
from tests.kit.waiting import eventually

NOVEMBER: Final = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC).timestamp()
Story = Callable[["World"], Awaitable[None]]


class World:
    """The budgets of one gateway, its clocks and its store."""

    def __init__(self, store: Store, **budget: Any) -> None:
        self.now = NOVEMBER
        self.registry = CollectorRegistry()
        self.store = store
        self.draws = 0
        self.budgets = Budgets(
            store,
            configured(**budget),
            BudgetMetrics(self.registry),
            wall_clock=lambda: self.now,
            clock=lambda: self.now,
            store_timeout_s=5.0,
            draw_every_s=0.01,
        )

    def reservation(self) -> Reservation:
        """Of a request."""
        found = self.budgets.reservation(key="k", application=None, pool=None)
        assert found is not None
        return found

    async def made(self, amount: float, spent: float = 0.0) -> Reservation:
        """A reservation, whose calls have cost so much so far."""
        reservation = self.reservation()
        await reservation.make(amount_of(amount), lambda: amount_of(spent))
        return reservation

    def shown(self) -> tuple[float, float]:
        """What is spent and reserved."""
        (budget,) = self.budgets.as_json()["budgets"]
        return budget["spent"], budget["reserved"]


async def made_again(world: World, amount: float) -> None:
    """Reserve once the store has responded; a request that is refused asks it nothing."""
    for _ in range(3_000):
        with suppress(StoreUnavailable):
            await world.made(amount)
            return
        await asyncio.sleep(0.01)
    pytest.fail("the store was not asked again")


def configured(**budget: Any) -> Settings:
    """A gateway with one budget."""
    candidate = {"name": "a", "base_url": "http://127.0.0.1:9/v1", "price": 1}
    return Settings.model_validate(
        {"schema_version": 1, "candidates": [candidate], **({"budget": budget} if budget else {})}
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Let a story happen to a gateway."""
    sync = budget_ledger.sync

    def begin(story: Story, **budget: Any) -> World:
        async def happen(store: Store) -> World:
            world = World(store, **(budget or {"hard": 100}))

            def counted(*args: Any) -> Any:
                world.draws += 1
                return sync(*args, clock=lambda _: world.now)

            monkeypatch.setattr(budget_ledger, "sync", counted)
            async with world.budgets:
                await story(world)
            return world

        with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
            return asyncio.run(happen(store))

    return begin


def test_a_request_within_the_lease_does_not_wait(run: Callable[..., World]) -> None:
    """The first one draws; the next ones reserve without a pause."""

    async def story(world: World) -> None:
        (await world.made(1.0)).settle(amount_of(0.5))
        draws = world.draws
        for _ in range(10):
            reservation = world.reservation()
            making = reservation.make(amount_of(1.0), lambda: 0)
            with pytest.raises(StopIteration):
                making.send(None)
        assert world.draws == draws
        assert world.shown() == (0.5, 10.0)

    run(story)


def test_requests_that_wait_share_a_draw(run: Callable[..., World]) -> None:
    """Thirty at once, each larger than the usual lease of what is left beside it."""

    async def story(world: World) -> None:
        draws = world.draws
        await asyncio.gather(*(world.made(100 / 30) for _ in range(30)))
        assert world.draws - draws <= 3
        with pytest.raises(BudgetExceeded):
            await world.made(0.1)

    run(story)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], HeldDraws]:
    """Let each draw begin and wait for its turn from now on."""

    def hold() -> HeldDraws:
        draws = HeldDraws(budget_ledger.sync)
        monkeypatch.setattr(budget_ledger, "sync", draws)
        return draws

    return hold


class HeldDraws:
    """Draws that wait for their turns."""

    def __init__(self, sync: Callable[..., Any]) -> None:
        self._sync = sync
        self._begun, self._turns = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, *args: Any) -> Any:
        """As `budget_ledger.sync`."""
        self._begun.release()
        assert self._turns.acquire(timeout=30)
        return self._sync(*args)

    async def begun(self) -> None:
        """Wait until the next one has begun."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=30)

    def go_on(self, turns: int = 1) -> None:
        """Let draws happen."""
        self._turns.release(turns)


def test_requests_that_come_during_a_draw_wait_for_the_next_one(
    run: Callable[..., World], held: Callable[[], HeldDraws]
) -> None:
    """Five that fit, of which the first draw has heard of one: none is refused."""

    async def story(world: World) -> None:
        draws = held()
        first = asyncio.create_task(world.made(1.0))
        await draws.begun()
        during = [asyncio.create_task(world.made(1.0)) for _ in range(3)]
        await asyncio.sleep(0)
        draws.go_on()
        await first
        after = asyncio.create_task(world.made(1.0))
        await asyncio.sleep(0)
        draws.go_on(100)
        await asyncio.gather(*during, after)
        assert world.shown() == (0.0, 5.0)

    run(story, hard=5.5)


def test_what_a_draw_has_leased_is_reserved_before_the_next_one(
    run: Callable[..., World], held: Callable[[], HeldDraws]
) -> None:
    """The next one begins at once, for others wait: it gives back only what is left then."""

    async def story(world: World) -> None:
        draws = held()
        made = [asyncio.create_task(world.made(1.0))]
        for arriving in (5, 1):  # while the first draw is under way, and while the second one is
            await draws.begun()
            made += [asyncio.create_task(world.made(1.0)) for _ in range(arriving)]
            await asyncio.sleep(0)
            draws.go_on()
        draws.go_on(100)
        outcomes = await asyncio.gather(*made, return_exceptions=True)
        assert [type(each).__name__ for each in outcomes].count("Reservation") == 5
        assert world.shown() == (0.0, 5.0)

    run(story, hard=5.5)


def test_a_request_that_leaves_while_it_waits_reserves_nothing(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its need is forgotten."""
    free = threading.Event()

    async def story(world: World) -> None:
        before = budget_ledger.sync

        def slow(*args: Any) -> Any:
            free.wait(60)
            return before(*args)

        monkeypatch.setattr(budget_ledger, "sync", slow)
        waiting = asyncio.create_task(world.made(60.0))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        free.set()
        (account,) = world.budgets.accounts()
        assert (account.waiting, account.reserved) == (0, 0)
        await world.made(100.0)

    run(story)


def away(*_: object) -> NoReturn:
    """The ledger while the store does not respond."""
    raise StoreUnavailable("not there")


def test_without_the_store_the_lease_is_spent_and_no_more(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What exceeds it is refused at once, as not known; afterwards all is well again."""

    async def story(world: World) -> None:
        await world.made(1.0)
        with monkeypatch.context() as patch:
            patch.setattr(budget_ledger, "sync", away)
            for _ in range(24):
                await world.made(1.0)
            with pytest.raises(StoreUnavailable, match="more was asked than is leased"):
                await world.made(1.0)
        await made_again(world, 50.0)
        assert world.shown() == (0.0, 75.0)

    run(story)


def test_after_a_failed_draw_the_store_is_tried_again_at_once(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although no request waits any longer, and no time passes by the clock of leases."""

    async def story(world: World) -> None:
        await world.made(1.0)
        with monkeypatch.context() as patch:
            patch.setattr(budget_ledger, "sync", away)
            with pytest.raises(StoreUnavailable):
                await world.made(50.0)
        await made_again(world, 50.0)

    run(story)


@pytest.mark.parametrize("kind", ["application", "pool"])
def test_none_is_no_name(run: Callable[..., World], kind: str) -> None:
    """A request without one does not count towards the budget of one that is called so."""
    section = {"None": {"candidates": ["a"], "budget": {"hard": 1}}}
    if kind == "application":
        section["None"].pop("candidates")
    settings = Settings.model_validate(
        configured().model_dump(exclude_unset=True) | {f"{kind}s": section}
    )

    async def story(world: World) -> None:
        world.budgets.reconfigure(settings)
        find = world.budgets.reservation
        assert find(key="k", application=None, pool=None) is None
        assert find(key="k", application="None", pool="None") is not None

    run(story)


def test_a_new_period_begins_with_nothing_spent(run: Callable[..., World]) -> None:
    """A request that spans both counts in the first, where it was reserved."""

    async def story(world: World) -> None:
        (await world.made(60.0)).settle(amount_of(55.0))
        spanning = await world.made(40.0)
        with pytest.raises(BudgetExceeded) as refused:
            await world.made(50.0)
        assert (refused.value.retry_after_s, refused.value.lasting) == (None, True)
        world.now += 10
        assert world.shown() == (0.0, 0.0)
        await world.made(100.0)
        spanning.settle(amount_of(40.0))
        assert world.shown() == (0.0, 100.0)

    run(story)


def test_a_reservation_ends_once(run: Callable[..., World]) -> None:
    """By settling, else with the ticket of its request, at what its calls have cost so far."""

    async def story(world: World) -> None:
        settled, left = await world.made(10.0, spent=3.0), await world.made(20.0, spent=4.0)
        quotas = Quotas([], in_flight=9, body_bytes=9)
        for reservation in (settled, left, world.reservation()):
            with quotas.admit("k", is_work=True) as ticket:
                ticket.reservation = reservation
                if reservation is settled:
                    reservation.settle(amount_of(1.0))
        settled.settle(amount_of(9.0))
        left.close()
        assert world.shown() == (5.0, 0.0)

    run(story)


def test_more_is_added_if_it_fits(run: Callable[..., World]) -> None:
    """And given back with the rest."""

    async def story(world: World) -> None:
        reservation = await world.made(60.0)
        assert await reservation.add(amount_of(30.0))
        assert not await reservation.add(amount_of(30.0))
        assert world.shown() == (0.0, 90.0)
        reservation.settle(amount_of(110.0))  # more than its worst case
        assert world.shown() == (110.0, 0.0)
        with pytest.raises(BudgetExceeded):
            await world.made(0.01)
        await world.made(0.0)

    run(story)


def test_metrics_show_every_budget(run: Callable[..., World]) -> None:
    """As it is, and none that is no longer configured."""

    async def story(world: World) -> None:
        await world.made(8.0)
        value = world.registry.get_sample_value
        labels = {"budget": "all"}
        assert value("racer_budget_reserved", labels) == 8.0
        assert value("racer_budget_spent", labels) == 0.0
        assert value("racer_budget_limit", labels | {"kind": "hard"}) == 100.0
        assert value("racer_budget_limit", labels | {"kind": "soft"}) is None
        assert value("racer_budget_refusals_total", labels) == 0.0
        world.budgets.reconfigure(configured())
        assert value("racer_budget_reserved", labels) is None

    run(story)


@pytest.mark.parametrize("between", [{}, {"hard": 100, "per": "day"}])
def test_a_budget_that_is_removed_and_added_again_is_spent_still(
    run: Callable[..., World], between: dict[str, Any]
) -> None:
    """Also if its period was another one in between; what its requests still spend counts."""

    async def story(world: World) -> None:
        (await world.made(60.0)).settle(amount_of(55.0))
        under_way = await world.made(10.0)
        world.budgets.reconfigure(configured(**between))
        under_way.settle(amount_of(5.0))
        world.now += 2.0

        def spent() -> list[int]:
            with world.store.transaction() as session:
                rows = select(BudgetLeaseRow.spent).where(BudgetLeaseRow.period == "2026-11")
                return list(session.scalars(rows))

        await eventually(lambda: spent() == [amount_of(60.0)])
        world.budgets.reconfigure(configured(hard=100))
        assert world.shown() == (60.0, 0.0)
        with pytest.raises(BudgetExceeded):
            await world.made(41.0)
        await world.made(40.0)

    run(story)


def test_old_rows_are_deleted_daily(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and once in each day that the gateway runs."""
    deleted: list[float] = []

    async def story(world: World) -> None:
        for day in range(4):
            await eventually(lambda day=day: len(deleted) == day + 1)
            await asyncio.sleep(0.1)  # of draws every 0.01 s, which delete nothing more
            world.now += 24 * 3_600 * (day < 3)

    monkeypatch.setattr(budget_ledger, "delete_old", deleted.append)
    run(story)
    assert len(deleted) == 4
