"""What is kept on disk: SQLite by default, PostgreSQL by URL. Same code, SQLAlchemy.

Calibrations are read and written here; the tables of decisions, verdicts and watches stand here
too, and ``app/watching/archive.py`` reads and writes them.

One transaction per change, so that whatever moment the process dies at, the store opens with the
old state or the new one. SQLite runs with ``journal_mode=DELETE, synchronous=FULL``: its WAL mode
has a corruption race in the versions that Python links today, and calibrations are rare.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from sqlalchemy import (
    ForeignKey,
    Index,
    LargeBinary,
    String,
    create_engine,
    event,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from app.errors import Conflict, NotFound, SettingsError, StoreBusy, StoreError, StoreFull
from app.records import Record
from racer_core.errors import RacerError

P = ParamSpec("P")
T = TypeVar("T")

_SLOT = 1
_THREADS: Final = 4  # SQLite writes one at a time


class _Base(DeclarativeBase):
    pass


class _CalibrationRow(_Base):
    __tablename__ = "calibrations"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[str] = mapped_column(String(32), index=True)
    artifact: Mapped[str] = mapped_column(String(64))
    document: Mapped[str]  # pool, options, evidence, notes: JSON
    arrays: Mapped[bytes] = mapped_column(LargeBinary)  # scores, labels, fingerprints: npz
    digest: Mapped[str] = mapped_column(String(64))  # sha256 of all of the above


class _ActiveRow(_Base):
    __tablename__ = "active_calibration"

    slot: Mapped[int] = mapped_column(primary_key=True)  # always 1: at most one is active
    calibration_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id"))


class DecisionRow(_Base):
    """One routed query. The columns are what is searched and counted; the rest is a document."""

    __tablename__ = "decisions"
    # What is counted over a million rows is counted in an index.
    __table_args__ = (
        Index("decisions_by_set", "calibration_id", "ordinary", "selected", "null_selected"),
        Index("decisions_by_sample", "calibration_id", "shadow", "judged", "loss"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[str] = mapped_column(String(32), index=True)
    calibration_id: Mapped[str] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(128))  # whose decision it is
    selected: Mapped[str]  # the set in the order of the pool: JSON
    null_selected: Mapped[bool]
    ordinary: Mapped[bool]  # at the calibration's own alpha, score and pool: it counts for the risk
    shadow: Mapped[bool]  # everyone was called
    judged: Mapped[bool]  # a shadow decision with a verdict on everyone
    loss: Mapped[float | None]  # of a judged one; None where it does not count
    document: Mapped[str]
    neighbours: Mapped[bytes | None] = mapped_column(LargeBinary)  # pattern ids, 4 bytes each


class VerdictRow(_Base):
    """Whether one candidate's answer to a decision was right."""

    __tablename__ = "verdicts"

    decision_id: Mapped[str] = mapped_column(
        ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True
    )
    candidate: Mapped[str] = mapped_column(String(256), primary_key=True)
    correct: Mapped[bool]
    counts: Mapped[bool]  # False: a data key's, not yet accepted
    key: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[str] = mapped_column(String(32))


class WatchRow(_Base):
    """The state of the drift alarms of one calibration."""

    __tablename__ = "watches"

    calibration_id: Mapped[str] = mapped_column(
        ForeignKey("calibrations.id", ondelete="CASCADE"), primary_key=True
    )
    since: Mapped[str] = mapped_column(String(32))
    state: Mapped[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A record without its rows."""

    id: str
    created_at: str
    active: bool
    artifact: str
    options: dict[str, Any]
    evidence: dict[str, Any]


class Store:
    """Opened once; every method is one transaction and may block: call it with :meth:`run`.

    Raises:
        SettingsError: The URL cannot be opened or written.
    """

    def __init__(self, url: str) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="racer-store")
        try:
            self._engine = create_engine(url)
            if self._engine.dialect.name == "sqlite":
                event.listen(self._engine, "connect", _sqlite_pragmas)
            _Base.metadata.create_all(self._engine)
        except (SQLAlchemyError, ImportError) as exc:
            reason = str(exc).splitlines()[0]
            raise SettingsError(f"store {_without_password(url)}: {reason}") from exc

    def close(self) -> None:
        """End the threads, and return the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what uses the store on a thread of its own: a locked one holds up no other work."""
        call = partial(contextvars.copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def add(self, record: Record, *, activate: bool, expected_active_id: str | None = None) -> None:
        """Keep a record, and make it the active one in the same transaction if asked.

        Raises:
            Conflict: ``expected_active_id`` is given and another one is active.
        """
        row = _to_row(record)
        with self.transaction() as session:
            session.add(row)
            session.flush()
            if activate:
                _activate(session, record.id, expected_active_id)

    def activate(
        self, calibration_id: str, expected_active_id: str | None, artifact: str
    ) -> Record:
        """Make a kept record the active one, and return it.

        Raises:
            NotFound: No such record.
            Conflict: ``expected_active_id`` is given and another one is active, or the record was
                made with another artifact than the one with this digest.
        """
        with self.transaction() as session:
            record = _to_record(_find(session, calibration_id))
            if record.artifact != artifact:
                raise Conflict(
                    f"calibration {calibration_id} was made for another artifact or fleet; "
                    "upload its rows again to POST /calibrate"
                )
            _activate(session, calibration_id, expected_active_id)
        return record

    def active(self) -> Record | None:
        """The active record; None before the first activation."""
        with self.transaction() as session:
            active = session.get(_ActiveRow, _SLOT)
            return _to_record(_find(session, active.calibration_id)) if active else None

    def record(self, calibration_id: str) -> Record:
        """One record with its rows. Raises :class:`NotFound`."""
        with self.transaction() as session:
            return _to_record(_find(session, calibration_id))

    def ids(self, artifact: str) -> list[str]:
        """The records that were made for an artifact and fleet with this digest."""
        with self.transaction() as session:
            made = _CalibrationRow.artifact == artifact
            return list(session.scalars(select(_CalibrationRow.id).where(made)))

    def summaries(self) -> list[Summary]:
        """All records, newest first."""
        with self.transaction() as session:
            active = session.get(_ActiveRow, _SLOT)
            newest_first = _CalibrationRow.created_at.desc(), _CalibrationRow.id
            columns = select(
                _CalibrationRow.id,
                _CalibrationRow.created_at,
                _CalibrationRow.artifact,
                _CalibrationRow.document,
            ).order_by(*newest_first)
            return [
                _summary(row, active.calibration_id if active else None)
                for row in session.execute(columns)
            ]

    def summary(self, calibration_id: str) -> Summary:
        """One record without its rows. Raises :class:`NotFound`."""
        with self.transaction() as session:
            active = session.get(_ActiveRow, _SLOT)
            row = _find(session, calibration_id)
            return _summary(row, active.calibration_id if active else None)

    def transaction(self) -> Transaction:
        """A session that is committed on success; for tables that others read and write."""
        return Transaction(self._engine)


class Transaction:
    """``with`` a session: commits on success, rolls back and translates errors otherwise."""

    def __init__(self, engine: Any) -> None:
        self._session = Session(engine, expire_on_commit=False)

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: Any) -> None:
        try:
            if kind is None:
                self._session.commit()
        except SQLAlchemyError as failure:
            raise _fault(failure, "written") from failure
        finally:
            self._session.close()
        if isinstance(exc, SQLAlchemyError):
            raise _fault(exc, "used") from exc


def _fault(exc: SQLAlchemyError, what: str) -> StoreError:
    """What went wrong, told apart where an operator would do something else about it."""
    driver = getattr(exc, "orig", None)
    code = getattr(driver, "sqlite_errorcode", 0) & 0xFF or getattr(driver, "sqlstate", None)
    match code:
        case sqlite3.SQLITE_FULL | "53100":
            return StoreFull("the disk of the store is full; make room and try again")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | "55P03":
            return StoreBusy("the store is locked by somebody else; try again soon")
        case _:
            return StoreError(f"the store cannot be {what}: {type(exc).__name__}")


def _activate(session: Session, calibration_id: str, expected: str | None) -> None:
    """Compare and set: the comparison is part of the UPDATE, so that two cannot both win."""
    statement = update(_ActiveRow).where(_ActiveRow.slot == _SLOT)
    if expected is not None:
        statement = statement.where(_ActiveRow.calibration_id == expected)
    changed = cast(Any, session.execute(statement.values(calibration_id=calibration_id))).rowcount
    if changed:
        return
    if expected is not None:
        raise Conflict(f"calibration {expected[:128]} is not the active one; nothing was changed")
    session.add(_ActiveRow(slot=_SLOT, calibration_id=calibration_id))


def _find(session: Session, calibration_id: str) -> _CalibrationRow:
    row = session.get(_CalibrationRow, calibration_id)
    if row is None:
        raise NotFound(f"no calibration {calibration_id[:128]!r}", code="calibration_not_found")
    return row


def _summary(row: Any, active_id: str | None) -> Summary:
    document = json.loads(row.document)
    return Summary(
        id=row.id,
        created_at=row.created_at,
        active=row.id == active_id,
        artifact=row.artifact,
        options=document["options"],
        evidence=document["evidence"],
    )


def _to_row(record: Record) -> _CalibrationRow:
    document, arrays = record.encoded()
    return _CalibrationRow(
        id=record.id,
        created_at=record.created_at,
        artifact=record.artifact,
        document=document,
        arrays=arrays,
        digest=_digest(record.id, record.created_at, record.artifact, document, arrays),
    )


def _to_record(row: _CalibrationRow) -> Record:
    told = _digest(row.id, row.created_at, row.artifact, row.document, row.arrays)
    if told != row.digest:
        raise StoreError(f"calibration {row.id} is damaged: its digest does not match")
    try:
        return Record.decoded(row.id, row.created_at, row.artifact, row.document, row.arrays)
    except (KeyError, TypeError, ValueError, RacerError) as exc:
        raise StoreError(
            f"calibration {row.id} cannot be read by this version of the program"
        ) from exc


def _digest(*parts: str | bytes) -> str:
    """sha256 over the parts, each with its length, so that none can borrow from the next."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


def _sqlite_pragmas(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    # Rows come in at the end of every index: half a MiB of pages is enough, for each connection.
    for pragma in (
        "journal_mode=DELETE",
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-512",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def now() -> str:
    """UTC with microseconds, so that records sort by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
