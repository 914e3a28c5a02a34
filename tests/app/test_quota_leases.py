"""Quota leases: limits shared by several gateways, on an injected clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from app.access import quota_leases
from app.access.leases import DRAW_EVERY_S, LEASE_S
from app.access.quota_leases import (
    Drawn,
    QuotaLeases,
    draw,
    give_back,
    lease_size,
)
from app.access.quotas import Bucket, Limit
from app.errors import StoreError, StoreUnavailable
from app.store import Store
from app.store.tables import LeaseRow, QuotaRow
from tests.kit.waiting import until

PER_MINUTE = 60.0
LIMIT = Limit("team", "requests", PER_MINUTE)


@dataclass
class World:
    """Some gateways, one store, one clock."""

    store: Store
    gateways: int
    now: float = 1_000.0
    let: list[float] = field(default_factory=list[float])  # when a request was let through
    expired: int = 0

    def __post_init__(self) -> None:
        self.buckets = [Bucket(PER_MINUTE, lambda: self.now) for _ in range(self.gateways)]
        self.drawn_at = [self.now] * self.gateways
        for number, bucket in enumerate(self.buckets):
            bucket.lease()
            self.draw(number)

    def draw(self, number: int) -> None:
        """As a gateway does it in the background."""
        self.expired += self.now - self.drawn_at[number] > LEASE_S
        self.drawn_at[number] = self.now
        bucket = self.buckets[number]
        drawn = self.lend(str(number), bucket.leased)
        bucket.lease()
        bucket.add(drawn.units)

    def lend(self, gateway: str, held: float) -> Drawn:
        """Draw by the clock of this world."""
        return draw(self.store, gateway, {LIMIT: held}, clock=lambda _: self.now)[LIMIT]

    def ask(self, number: int, most: int = 10**6) -> None:
        """Requests until one is refused."""
        bucket = self.buckets[number]
        while most and bucket.wait_s(1) == 0.0:
            bucket.spend(1)
            self.let.append(self.now)
            most -= 1

    @property
    def most_in_any_window(self) -> float:
        """By how much any window of time had more than one bucket lets through."""
        return max(
            last - first + 1 - PER_MINUTE - (self.let[last] - self.let[first]) * PER_MINUTE / 60.0
            for first in range(len(self.let))
            for last in range(first, len(self.let))
        )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 5.0, 30.0])),
        st.tuples(st.just("draw"), st.integers(0, 2)),
        st.tuples(st.just("ask"), st.integers(0, 2)),
    ),
    max_size=60,
)


def test_together_they_let_through_what_one_bucket_would() -> None:
    """In every window of time, for any order of requests and leases; expired leases aside."""
    with TemporaryDirectory() as folder, Store(f"sqlite:///{folder}/racer.db") as store:

        @settings(max_examples=60)
        @given(EVENTS)
        def holds(events: list[tuple[str, float]]) -> None:
            with store.transaction() as session:
                session.execute(delete(QuotaRow))
                session.execute(delete(LeaseRow))
            world = World(store, 3)
            for what, value in events:
                if what == "wait":
                    world.now += value
                elif what == "draw":
                    world.draw(int(value))
                else:
                    world.ask(int(value))
            if world.let:
                late = [world.now - at > LEASE_S for at in world.drawn_at]
                spare = (world.expired + sum(late)) * lease_size(LIMIT, 1)
                assert world.most_in_any_window <= spare + 1e-6

        holds()


def test_leases_never_exceed_the_bucket(store: Store) -> None:
    """After a quiet minute, at one moment: the limit and no more, for any number of draws."""
    world = World(store, 3)
    for _ in range(12):
        world.now += 5
        for number in range(3):
            world.draw(number)
    for _ in range(12):
        for number in range(3):
            world.ask(number)
            world.draw(number)
    assert len(world.let) == PER_MINUTE


def test_one_busy_gateway_gets_nearly_all_of_the_limit(store: Store) -> None:
    """Two idle gateways hold a lease each, and the rest goes to those that need it."""
    world = World(store, 3)
    draws = 160
    for _ in range(draws):
        world.now += DRAW_EVERY_S
        for number in range(3):
            world.draw(number)
        world.ask(0)
    idle = lease_size(LIMIT, 2) + lease_size(LIMIT, 3)
    assert len(world.let) >= PER_MINUTE * (1 + draws * DRAW_EVERY_S / 60.0) - idle - 2


def test_a_returned_lease_is_available_to_other_gateways(
    store: Store,
) -> None:
    """The limit is whole again: red when a closing gateway takes its lease with it."""
    world = World(store, 2)
    for number, bucket in enumerate(world.buckets):
        give_back(store, str(number), {LIMIT: bucket.leased})
    with store.transaction() as session:
        quota = session.get(QuotaRow, (LIMIT.key, LIMIT.unit))
    assert quota is not None
    assert quota.level == pytest.approx(PER_MINUTE)


def test_overspent_tokens_are_repaid_before_new_leases(
    store: Store,
) -> None:
    """Tokens are counted after the answer, so all gateways share the debt."""
    world = World(store, 2)
    world.buckets[0].spend(PER_MINUTE)
    for _ in range(8):
        world.draw(0)
        world.draw(1)
        world.ask(1)
    assert len(world.let) <= PER_MINUTE / 2
    assert world.buckets[0].wait_s(1) > 0
    world.now += 60
    world.draw(0)
    world.ask(0)
    assert world.buckets[0].level < 1
    assert len(world.let) > 0


def test_a_gateway_that_is_gone_holds_nothing(store: Store) -> None:
    """After ``LEASE_S`` its lease counts no more, and others' shares are larger."""
    world = World(store, 2)
    assert world.lend("1", world.buckets[1].leased).sharers == 2
    world.now += LEASE_S + 1
    assert world.lend("1", world.buckets[1].leased).sharers == 1


# The background task --------------------------------------------------------------------------


def test_without_the_store_each_goes_on_with_its_share(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the limit for each of two; when it is back, what was spent meanwhile is a debt."""
    down = threading.Event()
    calls: list[float] = []

    def draw_if_up(store: Store, gateway: str, held: Mapping[Limit, float]) -> dict[Limit, Drawn]:
        calls.append(held[LIMIT])
        if down.is_set():
            raise StoreUnavailable("not there")
        return draw(store, gateway, held)

    monkeypatch.setattr(quota_leases, "draw", draw_if_up)
    monkeypatch.setattr(store, "is_shared", True)
    now = [50.0]
    bucket = Bucket(PER_MINUTE, lambda: now[0])
    draw(store, "another", {LIMIT: 0.0})

    async def story() -> None:
        async with QuotaLeases(store, {LIMIT: bucket}, draw_every_s=0.01, renew_s=0.05):
            assert bucket.wait_s(1) == 0
            down.set()
            bucket.spend(bucket.level)
            await seen(calls)
            assert bucket.wait_s(1) == pytest.approx(60 / (PER_MINUTE / 2), rel=0.01)
            now[0] += 20
            assert bucket.level == pytest.approx(10, rel=0.01)
            await seen(calls)  # to ask again in vain costs nothing
            assert bucket.level == pytest.approx(10, rel=0.01)
            bucket.spend(10)
            down.clear()
            assert await asyncio.to_thread(until, lambda: bucket.leased >= 0, 20)
            assert bucket.level <= lease_size(LIMIT, 2)

    asyncio.run(story())
    assert min(calls[1:]) == pytest.approx(-10, rel=0.01)


def test_limits_that_are_added_are_leased(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload adds a limit to the same mapping; its own units, once it has a lease, are a debt."""
    monkeypatch.setattr(store, "is_shared", True)
    buckets: dict[Limit, Bucket] = {}

    async def story() -> None:
        async with QuotaLeases(store, buckets, draw_every_s=0.01):
            buckets[LIMIT] = bucket = Bucket(PER_MINUTE, lambda: 50.0)
            assert await asyncio.to_thread(until, lambda: bucket.leased > 0, 20)
            assert bucket.level == bucket.leased <= lease_size(LIMIT, 1)

    asyncio.run(story())


async def seen(calls: list[float]) -> None:
    """Wait for two more draws."""
    had = len(calls)
    assert await asyncio.to_thread(until, lambda: len(calls) > had + 1, 20)


def test_a_store_that_does_not_answer_is_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and the gateway fills its bucket by itself meanwhile; one thread hangs with it."""
    hangs, free = threading.Event(), threading.Event()
    running: list[int] = []

    def draw_slowly(store: Store, gateway: str, held: Mapping[Limit, float]) -> dict[Limit, Drawn]:
        if hangs.is_set():
            running.append(1)
            free.wait(60)
            raise StoreError("at last")
        return draw(store, gateway, held)

    monkeypatch.setattr(quota_leases, "draw", draw_slowly)
    monkeypatch.setattr(store, "is_shared", True)
    now = [50.0]
    bucket = Bucket(PER_MINUTE, lambda: now[0])

    async def story() -> None:
        async with QuotaLeases(store, {LIMIT: bucket}, store_timeout_s=0.05, draw_every_s=0.01):
            hangs.set()
            bucket.spend(bucket.level)

            def filled() -> bool:
                now[0] += 1
                return bucket.wait_s(1) == 0

            assert await asyncio.to_thread(until, filled, 20)
            assert len(running) == 1
            free.set()

    asyncio.run(story())


def test_a_store_of_ones_own_lends_nothing(tmp_path: Path) -> None:
    """With SQLite the bucket is the gateway's, whole."""
    bucket = Bucket(PER_MINUTE, lambda: 0.0)

    async def story(store: Store) -> None:
        async with QuotaLeases(store, {LIMIT: bucket}):
            assert bucket.level == PER_MINUTE

    with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
        asyncio.run(story(store))
