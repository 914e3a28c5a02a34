"""Limits of keys that several gateways keep together.

A limit is one bucket in the store. Each gateway draws a lease from it in the background and spends
that without asking: no request waits for the store. What is lent counts as being in the bucket, so
the level and all leases together never exceed the limit, and in every window of time what the
gateways let through is at most what one bucket would, and a lease for each gateway that was cut off
and came back.

A gateway that cannot reach the store goes on by itself with its share: with all of them cut off the
shares are the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from sqlalchemy import case, func, select, text, tuple_
from sqlalchemy.orm import Session

from app.access.quotas import Bucket, Limit
from app.errors import StoreError
from app.store import Store
from app.store.engine import begin_writing, insert_into
from app.store.tables import BudgetRow, LeaseRow

log = logging.getLogger(__name__)

DRAW_EVERY_S: Final = 0.25
PATIENCE_S: Final = 1.0  # with a store that does not answer
RENEW_S: Final = 10.0  # a gateway that needs nothing says so often that it is there
LEASE_S: Final = 30.0  # and is taken for gone after so long
PARTS: Final = 4  # a lease is such a part of a gateway's share, and at least 1
_MINUTE_S: Final = 60.0

_Place = tuple[str, str]  # a key and a unit


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a gateway got, and how many have leases now."""

    units: float
    sharers: int


class QuotaLeases:
    """Fills a gateway's buckets from the store; a context. Does nothing for a store of one's own.

    Args:
        store: Where the limits are kept.
        buckets: This gateway's, by limit.
    """

    def __init__(self, store: Store, buckets: Mapping[Limit, Bucket]) -> None:
        self._store = store
        self._buckets = buckets
        self._gateway = secrets.token_hex(16)
        self._sharers = dict.fromkeys(buckets, 1)
        self._said_at = dict.fromkeys(buckets, float("-inf"))
        self._alone = False  # the store cannot be reached
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._store.is_shared and self._buckets:
            for bucket in self._buckets.values():
                bucket.lease()
            await self._draw()
            self._task = asyncio.create_task(self._run(), name="leases of limits")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give back what is held."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            await self._store.run(give_back, self._store, self._gateway, self._held())
        except StoreError as exc:
            log.info("leases are not given back, and end by themselves: %s", exc)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(DRAW_EVERY_S)
            await self._draw()

    async def _draw(self) -> None:
        wanting = [limit for limit in self._buckets if self._wants(limit)]
        if not wanting:
            return
        held = {limit: self._buckets[limit].leased for limit in wanting}
        drawing = asyncio.ensure_future(self._store.pulsing(draw, self._store, self._gateway, held))
        await asyncio.wait([drawing], timeout=PATIENCE_S)
        if not drawing.done():
            self._go_on_alone("it does not answer")
        try:
            drawn = await drawing
        except StoreError as exc:
            self._go_on_alone(str(exc))
            return
        except Exception:
            log.exception("leases cannot be drawn")
            self._go_on_alone("see above")
            return
        self._alone = False
        for limit, bucket in self._buckets.items():
            bucket.lease()
            if limit in drawn:
                bucket.add(drawn[limit].units)
                self._sharers[limit] = drawn[limit].sharers
                self._said_at[limit] = time.monotonic()

    def _go_on_alone(self, why: str) -> None:
        if not self._alone:
            log.warning("limits of keys go on in shares without the store: %s", why)
        self._alone = True
        for limit, bucket in self._buckets.items():
            bucket.refill(1.0 / self._sharers[limit])

    def _wants(self, limit: Limit) -> bool:
        used = self._buckets[limit].level < lease_size(limit, self._sharers[limit]) / 2.0
        return used or time.monotonic() - self._said_at[limit] > RENEW_S

    def _held(self) -> dict[Limit, float]:
        return {limit: bucket.leased for limit, bucket in self._buckets.items()}


def lease_size(limit: Limit, sharers: int) -> float:
    """How much a gateway holds at most."""
    return max(1.0, limit.per_minute / (PARTS * sharers))


def draw(store: Store, gateway: str, held: Mapping[Limit, float]) -> dict[Limit, Drawn]:
    """Fill leases up, as far as the limits allow. Blocks.

    Args:
        store: Where the limits are kept.
        gateway: Who asks.
        held: What it holds now of each limit; below 0 when it spent more than it had.

    Raises:
        StoreError: Nothing was drawn.
    """
    with store.transaction() as session:
        begin_writing(session)
        budgets = _budgets(session, held)
        now = _clock(session)
        others = _others(session, gateway, held, now)
        drawn: dict[Limit, Drawn] = {}
        for limit, left in held.items():
            place = (limit.key, limit.unit)
            gateways, lent = others.get(place, (0, 0.0))
            budget = budgets[place]
            filled = budget.level + max(0.0, now - budget.at) * limit.per_minute / _MINUTE_S
            level = min(filled, limit.per_minute - lent - max(left, 0.0))
            units = max(0.0, min(lease_size(limit, gateways + 1) - left, level))
            budget.level, budget.at = level - units, now
            drawn[limit] = Drawn(units, gateways + 1)
        _hold(session, gateway, {limit: held[limit] + drawn[limit].units for limit in held}, now)
        return drawn


def give_back(store: Store, gateway: str, held: Mapping[Limit, float]) -> None:
    """End a gateway's leases. Blocks, and raises :class:`StoreError`."""
    with store.transaction() as session:
        begin_writing(session)
        for limit in sorted(held):
            budget = session.get(BudgetRow, (limit.key, limit.unit), with_for_update=True)
            lease = session.get(LeaseRow, (limit.key, limit.unit, gateway))
            if budget is not None and lease is not None:
                budget.level += held[limit]
                session.delete(lease)


def _budgets(session: Session, limits: Iterable[Limit]) -> dict[_Place, BudgetRow]:
    """What is left of limits, locked in one order, so that no two gateways wait for each other."""
    full = [
        {"key": each.key, "unit": each.unit, "level": each.per_minute, "at": 0.0}
        for each in sorted(limits)
    ]
    session.execute(insert_into(session, BudgetRow).on_conflict_do_nothing(), full)
    of_them = tuple_(BudgetRow.key, BudgetRow.unit).in_([(each.key, each.unit) for each in limits])
    found = select(BudgetRow).where(of_them).order_by(BudgetRow.key, BudgetRow.unit)
    return {(row.key, row.unit): row for row in session.scalars(found.with_for_update())}


def _others(
    session: Session, gateway: str, limits: Iterable[Limit], now: float
) -> dict[_Place, tuple[int, float]]:
    """How many other gateways have leases of limits, and how much they hold."""
    of_them = tuple_(LeaseRow.key, LeaseRow.unit).in_([(each.key, each.unit) for each in limits])
    there = (LeaseRow.gateway != gateway) & (LeaseRow.until > now)
    held = func.sum(case((LeaseRow.held > 0.0, LeaseRow.held), else_=0.0))
    found = (
        select(LeaseRow.key, LeaseRow.unit, func.count(), held)
        .where(of_them, there)
        .group_by(LeaseRow.key, LeaseRow.unit)
    )
    return {(key, unit): (count, lent) for key, unit, count, lent in session.execute(found)}


def _hold(session: Session, gateway: str, held: Mapping[Limit, float], now: float) -> None:
    """Note what a gateway holds from now on."""
    insert = insert_into(session, LeaseRow)
    statement = insert.on_conflict_do_update(
        index_elements=["key", "unit", "gateway"],
        set_={"held": insert.excluded.held, "until": insert.excluded.until},
    )
    until = now + LEASE_S
    session.execute(
        statement,
        [
            {"key": each.key, "unit": each.unit, "gateway": gateway, "held": left, "until": until}
            for each, left in held.items()
        ],
    )


def _clock(session: Session) -> float:
    """Seconds by one clock for all gateways."""
    if session.connection().dialect.name == "sqlite":
        return time.time()
    told = session.scalar(text("SELECT EXTRACT(EPOCH FROM clock_timestamp())"))
    return float(told or 0.0)
