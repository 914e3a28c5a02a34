"""Quota leases: rate limits of keys that several gateways share through the store.

Each limit is one token bucket in the store. Each gateway draws leases from it in the background and
spends them locally, so no request waits for the store. Units that are leased count as units in the
bucket: its level and all leases together never exceed the limit. In any window of time the gateways
together admit at most what one bucket would admit, plus one lease for each gateway that lost its
connection and came back.

A gateway that cannot reach the store refills its buckets with its share of the limit. If all
gateways are cut off, the shares add up to the limit.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.orm import Session

from app.access.leases import LEASE_S, LEASES_PER_SHARE, Leases, store_clock
from app.access.quotas import Bucket, Limit
from app.store import Store
from app.store.engine import begin_writing, insert_into
from app.store.tables import LeaseRow, QuotaRow

log = logging.getLogger(__name__)

_MINUTE_S: Final = 60.0

_QuotaKey = tuple[str, str]  # a key and a unit


@dataclass(frozen=True, slots=True)
class Drawn:
    """Units that a gateway has drawn, and the number of gateways with leases."""

    units: float
    sharers: int


class QuotaLeases(Leases):
    """Background task that refills a gateway's buckets from the store.

    It does nothing where the store belongs to this gateway alone.

    Args:
        store: Has the shared limits.
        buckets: Buckets of this gateway, by limit; they may change.
        **intervals: As :class:`Leases` takes them.
    """

    def __init__(self, store: Store, buckets: Mapping[Limit, Bucket], **intervals: float) -> None:
        super().__init__(store, name="quota leases", **intervals)
        self._buckets = buckets
        self._sharers = defaultdict[Limit, int](lambda: 1)
        self._renewed_at = defaultdict[Limit, float](lambda: float("-inf"))

    async def __aenter__(self) -> Self:
        if self._store.is_shared:
            for bucket in self._buckets.values():
                bucket.lease()
            await super().__aenter__()
        return self

    async def _draw(self) -> None:
        due = [limit for limit in self._buckets if self._is_due(limit)]
        if not due:
            return
        held = {limit: self._buckets[limit].leased for limit in due}
        drawn = await self._from_store(partial(draw, self._store, self._gateway, held))
        if drawn is None:
            return
        for limit, bucket in self._buckets.items():
            bucket.lease()
            if limit in drawn:
                bucket.add(drawn[limit].units)
                self._sharers[limit] = drawn[limit].sharers
                self._renewed_at[limit] = time.monotonic()

    def _give_back(self) -> None:
        held = {limit: bucket.leased for limit, bucket in self._buckets.items()}
        give_back(self._store, self._gateway, held)

    def _continue_without_store(self, why: str) -> None:
        if not self._is_cut_off:
            log.warning("rate limits of keys continue in shares without the store: %s", why)
        for limit, bucket in self._buckets.items():
            bucket.refill(1.0 / self._sharers[limit])

    def _is_due(self, limit: Limit) -> bool:
        is_low = self._buckets[limit].level < lease_size(limit, self._sharers[limit]) / 2.0
        return is_low or not self._is_renewed(self._renewed_at[limit])


def lease_size(limit: Limit, sharers: int) -> float:
    """Maximum units that one gateway holds."""
    return max(1.0, limit.per_minute / (LEASES_PER_SHARE * sharers))


def draw(
    store: Store,
    gateway: str,
    held: Mapping[Limit, float],
    *,
    clock: Callable[[Session], float] = store_clock,
) -> dict[Limit, Drawn]:
    """Top up the leases of a gateway, as far as the limits allow. Blocks.

    Args:
        store: Has the limits.
        gateway: Id of the gateway.
        held: Units that it holds of each limit; below 0 if it spent more than it had.
        clock: Seconds by a clock that all gateways share.

    Raises:
        StoreError: No units were drawn.
    """
    with store.transaction() as session:
        begin_writing(session)
        quotas = _quotas(session, held)
        now = clock(session)
        others = _leases_of_others(session, gateway, held, now)
        drawn: dict[Limit, Drawn] = {}
        for limit, left in held.items():
            quota_key = (limit.key, limit.unit)
            gateways, leased = others.get(quota_key, (0, 0.0))
            quota = quotas[quota_key]
            filled = quota.level + max(0.0, now - quota.at) * limit.per_minute / _MINUTE_S
            level = min(filled, limit.per_minute - leased - max(left, 0.0))
            units = max(0.0, min(lease_size(limit, gateways + 1) - left, level))
            quota.level, quota.at = level - units, now
            drawn[limit] = Drawn(units, gateways + 1)
        _record_leases(
            session, gateway, {limit: held[limit] + drawn[limit].units for limit in held}, now
        )
        return drawn


def give_back(store: Store, gateway: str, held: Mapping[Limit, float]) -> None:
    """End a gateway's leases. Blocks, and raises :class:`StoreError`."""
    with store.transaction() as session:
        begin_writing(session)
        for limit in sorted(held):
            quota = session.get(QuotaRow, (limit.key, limit.unit), with_for_update=True)
            lease = session.get(LeaseRow, (limit.key, limit.unit, gateway))
            if quota is not None and lease is not None:
                quota.level += held[limit]
                session.delete(lease)


def _quotas(session: Session, limits: Iterable[Limit]) -> dict[_QuotaKey, QuotaRow]:
    """The buckets of limits, locked in one order, so that gateways cannot deadlock."""
    full = [
        {"key": each.key, "unit": each.unit, "level": each.per_minute, "at": 0.0}
        for each in sorted(limits)
    ]
    session.execute(insert_into(session, QuotaRow).on_conflict_do_nothing(), full)
    of_them = tuple_(QuotaRow.key, QuotaRow.unit).in_([(each.key, each.unit) for each in limits])
    found = select(QuotaRow).where(of_them).order_by(QuotaRow.key, QuotaRow.unit)
    return {(row.key, row.unit): row for row in session.scalars(found.with_for_update())}


def _leases_of_others(
    session: Session, gateway: str, limits: Iterable[Limit], now: float
) -> dict[_QuotaKey, tuple[int, float]]:
    """For each limit, the number of other gateways with leases, and the units that they hold."""
    of_them = tuple_(LeaseRow.key, LeaseRow.unit).in_([(each.key, each.unit) for each in limits])
    is_valid = (LeaseRow.gateway != gateway) & (LeaseRow.until > now)
    held = func.sum(case((LeaseRow.held > 0.0, LeaseRow.held), else_=0.0))
    found = (
        select(LeaseRow.key, LeaseRow.unit, func.count(), held)
        .where(of_them, is_valid)
        .group_by(LeaseRow.key, LeaseRow.unit)
    )
    return {(key, unit): (count, leased) for key, unit, count, leased in session.execute(found)}


def _record_leases(session: Session, gateway: str, held: Mapping[Limit, float], now: float) -> None:
    """Store the units that a gateway holds, and extend its leases."""
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
