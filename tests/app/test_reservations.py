"""Reservations of requests: at once within a share, after one draw beyond it, settled once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from app.access import lease_store
from app.access.budgets import BudgetMetrics, Budgets, Reservation
from app.access.leases import Leases
from app.access.quotas import Quotas
from app.errors import BudgetExceeded, StoreUnavailable
from app.settings import Settings
from app.store import Store
from app.store.tables import LimitRow
from racer_core.prices import amount_of
from tests.kit.waiting import eventually

NOVEMBER: Final = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC).timestamp()
DAYS_S: Final = 400 * 86_400.0
Story = Callable[["World"], Awaitable[None]]
SYNC: Final = lease_store.sync


class World:
    """The budgets of one gateway, its clocks and its store."""

    def __init__(self, store: Store, **budget: Any) -> None:
        self.now = NOVEMBER
        self.ahead_s = 0.0  # of the wall clock
        self.registry = CollectorRegistry()
        self.store = store
        self.draws = 0
        self.leases = Leases(store, clock=lambda: self.now, draw_every_s=0.01)
        self.budgets = Budgets(
            self.leases,
            configured(**budget),
            BudgetMetrics(self.registry),
            wall_clock=lambda: self.now + self.ahead_s,
            clock=lambda: self.now,
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

    async def made_again(self, amount: float) -> None:
        """Reserve once the store has responded; a request that is refused asks it nothing."""
        for _ in range(3_000):
            with suppress(StoreUnavailable):
                await self.made(amount)
                return
            await asyncio.sleep(0.01)
        pytest.fail("the store was not asked again")

    def shown(self) -> tuple[float, float]:
        """What is spent and reserved."""
        (budget,) = self.budgets.as_json()["budgets"]
        return budget["spent"], budget["reserved"]


def configured(**budget: Any) -> Settings:
    """A gateway with one budget."""
    candidate = {"name": "a", "base_url": "http://127.0.0.1:9/v1", "price": 1}
    return Settings.model_validate(
        {"schema_version": 1, "candidates": [candidate], **({"budget": budget} if budget else {})}
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Let a story happen to a gateway."""

    def begin(story: Story, **budget: Any) -> World:
        async def happen(store: Store) -> World:
            world = World(store, **(budget or {"hard": 100}))

            def counted(*args: Any) -> Any:
                world.draws += 1
                return SYNC(*args, clock=lambda _: world.now)

            monkeypatch.setattr(lease_store, "sync", counted)
            async with world.leases:
                await story(world)
            return world

        with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
            return asyncio.run(happen(store))

    return begin


def test_a_request_within_the_share_does_not_wait(run: Callable[..., World]) -> None:
    """The first one draws; the next ones reserve without a pause."""

    async def story(world: World) -> None:
        (await world.made(1.0)).settle(amount_of(0.5))
        draws = world.draws
        for _ in range(10):
            making = world.reservation().make(amount_of(1.0), lambda: 0)
            with pytest.raises(StopIteration):
                making.send(None)
        assert world.draws == draws
        assert world.shown() == (0.5, 10.0)

    run(story)


def test_requests_that_wait_share_a_draw(run: Callable[..., World]) -> None:
    """Thirty at once; what can never fit is refused without one, and so is what was denied."""

    async def story(world: World) -> None:
        draws = world.draws
        await asyncio.gather(*(world.made(100 / 30) for _ in range(30)))
        assert world.draws - draws <= 3

        def refused_at_once(amount: float) -> None:
            making = world.reservation().make(amount_of(amount), lambda: 0)
            with pytest.raises(BudgetExceeded):
                making.send(None)

        refused_at_once(101.0)
        with pytest.raises(BudgetExceeded):
            await world.made(0.1)
        refused_at_once(0.1)

    run(story)


class HeldDraws:
    """Draws that wait for their turns."""

    def __init__(self) -> None:
        self._begun, self._turns = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, *args: Any) -> Any:
        """As `lease_store.sync`."""
        self._begun.release()
        assert self._turns.acquire(timeout=30)
        return SYNC(*args)

    async def begun(self) -> None:
        """Wait until the next one has begun."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=30)

    def go_on(self, turns: int = 1) -> None:
        """Let draws happen."""
        self._turns.release(turns)


@pytest.mark.parametrize("arriving", [(3,), (5, 1)])
def test_requests_that_come_during_a_draw_wait_for_the_next_one(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch, arriving: tuple[int, ...]
) -> None:
    """Of those that come during the first draw and the second one, the five that fit are served.

    The next draw begins at once, for others wait: it gives back only what is left then.
    """

    async def story(world: World) -> None:
        draws = HeldDraws()
        monkeypatch.setattr(lease_store, "sync", draws)
        made = [asyncio.create_task(world.made(1.0))]
        for count in arriving:
            await draws.begun()
            made += [asyncio.create_task(world.made(1.0)) for _ in range(count)]
            await asyncio.sleep(0)
            draws.go_on()
        draws.go_on(100)
        outcomes = await asyncio.gather(*made, return_exceptions=True)
        served = [type(each).__name__ for each in outcomes].count("Reservation")
        assert served == min(5, len(made))
        assert world.shown() == (0.0, served)

    run(story, hard=5.5)


def test_a_request_that_leaves_while_it_waits_reserves_nothing(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its need is forgotten."""

    async def story(world: World) -> None:
        draws = HeldDraws()
        monkeypatch.setattr(lease_store, "sync", draws)
        waiting = asyncio.create_task(world.made(60.0))
        await draws.begun()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        draws.go_on(100)
        (share,) = world.budgets.present()
        assert (share.waiting, share.reserved) == ([], 0)
        await world.made(100.0)

    run(story)


def away(*_: object) -> NoReturn:
    """The store's transaction while it does not respond."""
    raise StoreUnavailable("not there")


def test_without_the_store_the_share_is_spent_and_no_more(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What exceeds it is refused at once, as not known; the store is tried again by itself."""

    async def story(world: World) -> None:
        await world.made(1.0)
        with monkeypatch.context() as patch:
            patch.setattr(lease_store, "sync", away)
            for _ in range(24):
                await world.made(1.0)
            with pytest.raises(StoreUnavailable, match="more was asked than is leased"):
                await world.made(1.0)
        await world.made_again(50.0)
        assert world.shown() == (0.0, 75.0)

    run(story)


def test_a_budget_whose_row_is_bad_is_not_known(
    run: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests are unavailable, and it is asked for again only after a while."""

    async def story(world: World) -> None:
        monkeypatch.setattr(lease_store, "sync", lambda *_: {})
        with pytest.raises(StoreUnavailable):
            await world.made(1.0)
        monkeypatch.setattr(lease_store, "sync", SYNC)
        world.now += 11.0
        await world.made_again(1.0)

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


@pytest.mark.parametrize("per", ["day", "month"])
def test_a_clock_that_was_ahead_strands_no_budget(run: Callable[..., World], per: str) -> None:
    """By 400 days for one request: afterwards the period of today goes on with what it had."""

    async def story(world: World) -> None:
        (await world.made(60.0)).settle(amount_of(60.0))
        world.ahead_s = DAYS_S
        (await world.made(30.0)).settle(amount_of(30.0))
        assert world.shown() == (30.0, 0.0)
        world.ahead_s = 0.0
        assert world.shown() == (60.0, 0.0)
        with pytest.raises(BudgetExceeded):
            await world.made(41.0)
        await world.made(40.0)
        world.now += 15.0
        assert world.shown() == (0.0, 0.0)

    run(story, per=per, hard=100)


@pytest.mark.parametrize("per", ["day", "month"])
@given(moments=st.lists(st.integers(0, 4 * 10**9) | st.integers(-3, 3), max_size=12))
def test_the_share_is_always_that_of_the_present(per: str, moments: list[int]) -> None:
    """Wherever the clock jumps; each period has what was spent in it, however often it comes."""
    wall, spent = [0.0], Counter[str]()
    budgets = Budgets(
        Leases(cast("Store", None)),
        configured(hard=100, per=per),
        BudgetMetrics(CollectorRegistry()),
        wall_clock=lambda: wall[0],
    )
    for moment in moments:
        wall[0] = NOVEMBER + moment * 5.0 if abs(moment) <= 3 else float(moment)
        (share,) = budgets.present()
        assert share.period.has(wall[0])
        share.settle(0, 1)
        spent[share.period.id] += 1
        assert share.total_spent == spent[share.period.id]


def test_a_reservation_ends_once_whatever_is_raised(run: Callable[..., World]) -> None:
    """By settling, else with the ticket of its request, at what its calls have cost so far.

    Where that cannot be told, all that was reserved counts.
    """

    async def story(world: World) -> None:
        def raising() -> int:
            raise OverflowError("no such number")

        settled, left = await world.made(10.0, spent=3.0), await world.made(20.0, spent=4.0)
        unknown = world.reservation()
        await unknown.make(amount_of(30.0), raising)
        quotas = Quotas([], in_flight=9, body_bytes=9)
        for reservation in (settled, left, unknown, world.reservation()):
            with suppress(ZeroDivisionError), quotas.admit("k", is_work=True) as ticket:
                ticket.reservation = reservation
                if reservation is settled:
                    reservation.settle(amount_of(1.0))
                _ = 1 / 0
        settled.settle(amount_of(9.0))
        left.close()
        assert world.shown() == (35.0, 0.0)
        assert quotas.in_flight == 0

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

        def used() -> list[int]:
            with world.store.transaction() as session:
                rows = select(LimitRow.used).where(LimitRow.period == "2026-11")
                return list(session.scalars(rows))

        await eventually(lambda: used() == [amount_of(60.0)])
        world.budgets.reconfigure(configured(hard=100))
        await eventually(lambda: world.shown() == (60.0, 0.0))
        with pytest.raises(BudgetExceeded):
            await world.made(41.0)
        await world.made(40.0)

    run(story)
