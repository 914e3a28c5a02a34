"""The transaction by which a gateway reports its shares and renews its leases.

See :mod:`app.access.lease`. A row of ``limits`` has what all gateways have spent in a period, less
what came back; a row of ``leases`` has the totals of one share. PostgreSQL locks the rows of
limits, in one order so that gateways cannot deadlock; SQLite locks the database.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import delete, select, text, tuple_
from sqlalchemy.orm import Session

from app.access.lease import LEASE_S, LEASES_PER_SHARE, Grant, Need, Place, Report
from app.store import Store
from app.store.engine import begin_writing, insert_into
from app.store.tables import LeaseRow, LimitRow
from racer_core.errors import InputError
from racer_core.prices import PICO

log = logging.getLogger(__name__)

KEPT_PERIODS: Final = 40  # of each limit: the newest, longer than any month of days
_DAY_S: Final = 24 * 3_600.0

StoreClock = Callable[[Session], float]


def store_clock(session: Session) -> float:
    """Seconds by the clock of the database server, which all gateways share."""
    if session.connection().dialect.name == "sqlite":
        return time.time()
    seconds = session.scalar(text("SELECT EXTRACT(EPOCH FROM clock_timestamp())"))
    return float(seconds or 0.0)


def sync(
    store: Store, reports: Mapping[Place, Report], *, clock: StoreClock = store_clock
) -> dict[Place, Grant]:
    """Take the reports of a gateway and renew its leases, as far as the limits allow. Blocks.

    Args:
        store: Has the rows.
        reports: What the gateway says of its shares.
        clock: Seconds by a clock that all gateways share.

    Returns:
        What is granted, without limits whose rows or names the store cannot read or write.

    Raises:
        StoreError: It is not known whether the reports were taken.
    """
    try:
        with store.transaction() as session:
            begin_writing(session)
            return _sync(session, reports, clock)
    except (InputError, ValueError) as exc:  # of one limit, so that the others are tried alone
        if len(reports) == 1:
            log.error("the limit %s in the store is not usable: %s", *reports, exc)
            return {}
    grants = dict[Place, Grant]()
    limits_of = Counter([need for report in reports.values() for need in report.waiting])
    for place, report in reports.items():
        whole = [need for need in report.waiting if limits_of[need] == 1]  # the others wait
        grants |= sync(store, {place: replace(report, waiting=whole)}, clock=clock)
    return grants


def _sync(
    session: Session, reports: Mapping[Place, Report], clock: StoreClock
) -> dict[Place, Grant]:
    limits = _locked(session, reports)
    leases = _leases(session, reports)
    now = clock(session)
    found = dict[Place, _Found]()
    for place, report in reports.items():
        limit, others = limits[place], list[LeaseRow]()
        own: LeaseRow | None = None
        for row in leases[place]:
            if row.lease == report.lease:
                own = row
            elif abs(row.until - now) > _DAY_S:
                session.delete(row)
            elif 0.0 < row.until - now <= 2 * LEASE_S:
                others.append(row)
        if not limit.at:
            _delete_old_periods(session, place)
        _spend(limit, report, own, leases[place], now)
        found[place] = _Found(report, limit.used, own, others)
    grants = _grants(found)
    written = list[Mapping[str, object]]()
    for place, each in found.items():
        grant, report, own = grants[place], each.report, each.own
        totals = {
            # A report that was overtaken by a later one takes nothing back.
            "spent": max(report.spent, 0 if own is None else own.spent),
            "reserved": report.reserved,
            "ceiling": grant.ceiling,
        }
        if grant.ceiling > report.spent or totals != _totals(own):
            name, period = place
            key = {"name": name, "period": period, "lease": report.lease}
            written.append(key | totals | {"until": now + LEASE_S})
    _write(session, written)
    return grants


def _spend(
    limit: LimitRow, report: Report, own: LeaseRow | None, leases: Sequence[LeaseRow], now: float
) -> None:
    """Take what came back since the last report of any gateway, and add what is reported."""
    if limit.at:
        before, elapsed = report.known, max(0.0, now - limit.at)
    else:  # the row is new, or was lost: then its leases are known still
        limit.used, before, elapsed = sum([row.spent for row in leases]), 0, 0.0
    before = before if own is None else own.spent
    used = max(0, limit.used - report.limit.refilled(elapsed)) + max(0, report.spent - before)
    if used and (used != limit.used or report.limit.refill_s or not limit.at):
        limit.at = now
    limit.used = used


@dataclass(frozen=True, slots=True)
class _Found:
    """A limit as its report found it: what all have used, its lease, and valid ones of others."""

    report: Report
    used: int
    own: LeaseRow | None
    others: Sequence[LeaseRow]

    @property
    def room(self) -> int:
        """What could be spent beside the leases of others, and what the report reserves."""
        leased = sum([max(0, row.ceiling - row.spent) for row in self.others])
        return (self.report.limit.amount or 0) - self.used - leased - self.report.reserved


def _grants(found: Mapping[Place, _Found]) -> dict[Place, Grant]:
    """What is granted: to a waiting request in each limit in which it waits, or in none."""
    places = defaultdict[Need, list[Place]](list)
    for place, each in found.items():
        for need in each.report.waiting:
            places[need].append(place)
    room = {place: each.room for place, each in found.items()}
    needed, denied = dict.fromkeys(found, 0), defaultdict[Place, list[int]](list)
    for need, own in places.items():
        lacking = [place for place in own if needed[place] + need.amount > room[place]]
        for place in lacking:
            denied[place].append(need.amount)
        for place in () if lacking else own:
            needed[place] += need.amount
    return {
        place: _grant(each, room[place], needed[place], min(denied[place], default=None))
        for place, each in found.items()
    }


def _grant(found: _Found, room: int, needed: int, denied: int | None) -> Grant:
    """What a share may spend and reserve beside the valid leases of others."""
    report, others = found.report, found.others
    amount, is_refilled = report.limit.amount, bool(report.limit.refill_s)
    reserved = sum([row.reserved for row in others])
    sharers = 1 + sum([is_refilled or row.ceiling > row.spent for row in others])
    ceiling, target = report.kept, 0
    if amount is not None:
        if needed or not report.is_idle:
            left = max(0, amount - found.used - reserved - report.reserved)
            target = max(PICO if is_refilled else 0, left // (LEASES_PER_SHARE * sharers))
        granted = max(needed, min(target, room))
        ceiling = max(report.kept, report.spent + report.reserved + granted)
    return Grant(
        ceiling=ceiling,
        room=room,
        target=target,
        denied=denied,
        others_spent=max(0, found.used - report.spent),
        others_reserved=reserved,
        sharers=sharers,
    )


def _locked(session: Session, places: Iterable[Place]) -> dict[Place, LimitRow]:
    """The rows of limits, locked; new ones are made."""
    new = [
        {"name": name, "period": period, "used": 0, "at": 0.0} for name, period in sorted(places)
    ]
    session.execute(insert_into(session, LimitRow).on_conflict_do_nothing(), new)
    of_them = tuple_(LimitRow.name, LimitRow.period).in_(list(places))
    found = select(LimitRow).where(of_them).order_by(LimitRow.name, LimitRow.period)
    return {(row.name, row.period): row for row in session.scalars(found.with_for_update())}


def _leases(session: Session, places: Iterable[Place]) -> Mapping[Place, list[LeaseRow]]:
    of_them = tuple_(LeaseRow.name, LeaseRow.period).in_(list(places))
    found = defaultdict[Place, list[LeaseRow]](list)
    for row in session.scalars(select(LeaseRow).where(of_them)):
        found[row.name, row.period].append(row)
    return found


def _totals(row: LeaseRow | None) -> dict[str, int]:
    """What is written of a report; a row that is not there has none."""
    names = ("spent", "reserved", "ceiling")
    return {name: 0 if row is None else getattr(row, name) for name in names}


def _write(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        return
    insert = insert_into(session, LeaseRow)
    key = ["name", "period", "lease"]
    changed = {name: insert.excluded[name] for name in rows[0] if name not in key}
    session.execute(insert.on_conflict_do_update(index_elements=key, set_=changed), rows)


def _delete_old_periods(session: Session, place: Place) -> None:
    """Delete all but the newest periods of a limit, when another one begins.

    By their names alone: no step of a clock deletes what is spent in a period that is not over.
    """
    name, period = place
    periods = session.scalars(select(LimitRow.period).where(LimitRow.name == name))
    old = [each for each in sorted(periods, reverse=True)[KEPT_PERIODS:] if each != period]
    for table in (LimitRow, LeaseRow) if old else ():
        session.execute(delete(table).where(table.name == name, table.period.in_(old)))
