"""Read-only inspection of a store: it creates no table and no file, and sets no pragma."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, func, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.errors import RecoveryNeeded, StoreDamaged, StoreFileDamaged, StoreUnavailable
from app.store import engine, schema
from app.store.calibration_record import CalibrationRecord
from app.store.calibration_rows import Summary, summarised, to_record
from app.store.tables import ActiveRow, CalibrationRow, DecisionRow
from app.store.traffic import WeekOfTraffic, past_week

_SAMPLED: Final = (
    select(DecisionRow.judged, func.count()).where(DecisionRow.shadow).group_by(DecisionRow.judged)
)
_CUT_SHORT: Final = "SQLITE_READONLY_ROLLBACK"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInspection:
    """The content of a store, as far as commands report it."""

    version: str | None = None  # of its tables; None without tables
    active: Summary | None = None  # the active calibration of the requested artifact and fleet
    record: CalibrationRecord | None = None  # the active one with its rows; None: unreadable, too
    other: Summary | None = None  # otherwise the newest active one of another
    sampled: int = 0  # decisions of the shadow sample
    unlabelled: int = 0  # of them those without a verdict on every candidate
    traffic: WeekOfTraffic = field(default_factory=WeekOfTraffic)


def inspect_store(url: str, setup: str | None) -> StoreInspection:
    """Read the version, the size of the shadow sample, and which calibration decides.

    Args:
        url: Of the store.
        setup: Digest of artifact and fleet; None asks for no calibration.

    Raises:
        SettingsError: No URL of a store, or its driver is not installed.
        CutShort: What a program was writing when it died is to be undone first.
        StoreFileDamaged: Its file is damaged, or is no database.
        StoreUnavailable: The store cannot be reached, or the URL names no store.
    """
    opened = read_only(url)
    if opened is None:
        return StoreInspection()
    try:
        with opened.connect() as connection:
            version = schema.version(connection)
        if version != schema.HEAD:
            return StoreInspection(version=version)
        with Session(opened) as session:
            counts = {judged: count for judged, count in session.execute(_SAMPLED)}
            samples = StoreInspection(
                version=version, sampled=sum(counts.values()), unlabelled=counts.get(False, 0)
            )
            if setup is None:
                return samples
            active = _newest(session, setup)
            if active is None:
                return replace(samples, other=_newest(session, None))
            found = replace(samples, active=active, traffic=past_week(session))
            with suppress(StoreDamaged):  # the gateway's start says so
                found = replace(found, record=_record(session, active.id))
            return found
    except SQLAlchemyError as exc:
        cause = getattr(exc, "orig", None)
        if isinstance(cause, sqlite3.Error) and cause.sqlite_errorname == _CUT_SHORT:
            raise RecoveryNeeded(
                f"a program died while it wrote to {engine.redacted_url(url)}"
            ) from exc
        reason = " ".join(str(cause or type(exc).__name__).split())
        if engine.is_damage(cause):
            raise StoreFileDamaged(
                f"store {engine.redacted_url(url)} cannot be read: {reason}"
            ) from exc
        raise StoreUnavailable(
            f"store {engine.redacted_url(url)} cannot be read: {reason}"
        ) from exc
    finally:
        opened.dispose()


def read_only(url: str) -> Engine | None:
    """Return an engine that cannot write; None where there is no file yet."""
    usual = engine.open_engine(url)  # refuses what is no store; connects to nothing
    if usual.dialect.name != "sqlite":
        return usual.execution_options(postgresql_readonly=True)
    database = make_url(url).database
    if not database or not Path(database).exists():
        return None
    file = URL.create(
        "sqlite", database=f"file:{quote(database)}", query={"mode": "ro", "uri": "true"}
    )
    return create_engine(file, hide_parameters=True)


def _record(session: Session, calibration_id: str) -> CalibrationRecord:
    row = session.get(CalibrationRow, calibration_id)
    assert row is not None  # it was found in this transaction
    return to_record(row)


def _newest(session: Session, setup: str | None) -> Summary | None:
    """Return the newest active calibration of this artifact and fleet, or of any."""
    columns = (
        select(
            CalibrationRow.id,
            CalibrationRow.created_at,
            CalibrationRow.artifact,
            CalibrationRow.document,
            CalibrationRow.chosen_at,
        )
        .join(ActiveRow, ActiveRow.calibration_id == CalibrationRow.id)
        .order_by(CalibrationRow.created_at.desc())
        .limit(1)
    )
    if setup is not None:
        columns = columns.where(ActiveRow.artifact == setup)
    found = session.execute(columns).one_or_none()
    return None if found is None else summarised(found, active=True)
