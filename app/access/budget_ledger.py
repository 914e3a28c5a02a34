"""The ledger of budgets in the store: one row for each budget, period and gateway.

A row has totals of its period, so that a report can be repeated, or arrive late, and counts once.
What the gateways may spend together never exceeds the limit: the ceilings of leases that are valid,
and what the others have spent. An expired lease frees what its gateway had not reported as spent.
So the limit is exceeded by at most a lease for each gateway that died, or was cut off for longer
than a lease lasts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from app.access.budget_account import Grant, Report
from app.access.leases import LEASE_S, LEASES_PER_SHARE, store_clock
from app.store import Store
from app.store.engine import begin_writing, insert_into, lock
from app.store.tables import BudgetLeaseRow

KEPT_S = 35 * 24 * 3_600.0  # rows are deleted then: longer than any period
_KEY = ("budget", "period", "gateway")

Place = tuple[str, str]  # a budget and a period


def sync(
    store: Store,
    gateway: str,
    reports: Mapping[Place, Report],
    *,
    clock: Callable[[Session], float] = store_clock,
) -> dict[Place, Grant]:
    """Take the reports of a gateway and renew its leases, as far as the limits allow. Blocks.

    Args:
        store: Has the rows.
        gateway: Id of the gateway.
        reports: What it says of its accounts.
        clock: Seconds by a clock that all gateways share.

    Raises:
        StoreError: It is not known whether the reports were taken.
    """
    with store.transaction() as session:
        begin_writing(session)
        if store.is_shared:
            lock(session, BudgetLeaseRow.__tablename__)
        now = clock(session)
        rows = _rows(session, reports)
        grants = dict[Place, Grant]()
        written = list[Mapping[str, object]]()
        for place, report in reports.items():
            others = [row for row in rows[place] if row.gateway != gateway]
            own = next((row for row in rows[place] if row.gateway == gateway), None)
            grant = grants[place] = _grant(report, others, now)
            budget, period = place
            row: dict[str, object] = {
                # A report that was overtaken by a later one takes nothing back.
                "spent": max(report.spent, 0 if own is None else own.spent),
                "reserved": report.reserved,
                "ceiling": grant.ceiling,
            }
            if grant.ceiling > report.spent or row != _totals(own):
                written.append(
                    {"budget": budget, "period": period, "gateway": gateway}
                    | row
                    | {"until": now + LEASE_S}
                )
        _write(session, written)
        return grants


def delete_old(store: Store, *, clock: Callable[[Session], float] = store_clock) -> None:
    """Delete the rows of periods that are over. Blocks, and raises :class:`StoreError`."""
    with store.transaction() as session:
        begin_writing(session)
        old = BudgetLeaseRow.until < clock(session) - KEPT_S
        session.execute(delete(BudgetLeaseRow).where(old))


def _grant(report: Report, others: Sequence[BudgetLeaseRow], now: float) -> Grant:
    spent = sum([row.spent for row in others])
    valid = [row for row in others if row.until > now]
    reserved = sum([row.reserved for row in valid])
    ceiling, target = report.kept, 0
    if report.hard is not None:
        taken = spent + sum([max(0, row.ceiling - row.spent) for row in valid])
        if not report.is_idle:
            left = max(0, report.hard - spent - reserved - report.used)
            sharers = 1 + sum([row.ceiling > row.spent for row in valid])
            target = left // (LEASES_PER_SHARE * sharers)
        wanted = report.used + max(target, report.waiting)
        ceiling = max(report.kept, min(wanted, report.hard - taken))
    return Grant(ceiling=ceiling, target=target, others_spent=spent, others_reserved=reserved)


def _totals(row: BudgetLeaseRow | None) -> dict[str, int]:
    """What is written of a report; a row that is not there has none."""
    names = ("spent", "reserved", "ceiling")
    return {name: 0 if row is None else getattr(row, name) for name in names}


def _rows(session: Session, places: Iterable[Place]) -> Mapping[Place, list[BudgetLeaseRow]]:
    of_them = tuple_(BudgetLeaseRow.budget, BudgetLeaseRow.period).in_(list(places))
    found = defaultdict[Place, list[BudgetLeaseRow]](list)
    for row in session.scalars(select(BudgetLeaseRow).where(of_them)):
        found[row.budget, row.period].append(row)
    return found


def _write(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        return
    insert = insert_into(session, BudgetLeaseRow)
    changed = {name: insert.excluded[name] for name in rows[0] if name not in _KEY}
    session.execute(insert.on_conflict_do_update(index_elements=_KEY, set_=changed), rows)
