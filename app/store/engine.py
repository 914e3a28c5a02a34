"""Database engine: connection pool, transactions and the translation of their errors.

SQLite runs with ``journal_mode=DELETE, synchronous=FULL``: its WAL mode has a corruption race in
the versions that Python links today, and calibrations are rare. PostgreSQL ends statements
that take too long by itself, and a pooled connection is tested before it is used: the server may
have been restarted since. No transaction relies on the session of an earlier one, for a pooler such
as PgBouncer may give it another: no startup options, no prepared statements, limits by transaction.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DisconnectionError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session

from app.errors import (
    SettingsError,
    StoreBusy,
    StoreError,
    StoreFileDamaged,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from app.store.tables import Base
from racer_core.errors import InputError, RacerError, install_hint

THREADS: Final = 4  # that use the store at the same time
SHARED_STATE_THREADS: Final = 2  # more of them, for the state that gateways share
CONNECT_S: Final = 5
_STATEMENT_ROWS: Final = 100
_POSTGRESQL: Final[dict[str, Any]] = {
    "application_name": "racer",
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": 10_000,  # milliseconds
    "prepare_threshold": None,  # no statement is prepared
}
_BESIDE: Final = ("-journal", "-wal", "-shm")  # suffixes of SQLite's files beside a database
LIMITS: Final = (  # of this transaction, in milliseconds
    "SELECT set_config('statement_timeout', '60000', true), "
    "set_config('lock_timeout', '5000', true)"
)
_CURE: Final = (
    "run `racer db upgrade` with the URL of the tables' owner, and grant this role SELECT, INSERT, "
    "UPDATE and DELETE on them (docs/operating.md)"
)


RESTORE: Final = "restore a backup (`racer restore`) into an empty store, and restart"
DAMAGED: Final = f"the file is damaged: {RESTORE}"


class _SqlState(StrEnum):
    """Errors of PostgreSQL that an operator cures."""

    DATA_CORRUPTED = "XX001"
    INDEX_CORRUPTED = "XX002"

    READ_ONLY = "25006"  # a write to a standby, or to a read-only database
    NO_RIGHT = "42501"  # the role may not do this


def open_engine(url: str) -> Engine:
    """An engine; nothing is connected yet.

    Raises:
        SettingsError: The URL names no supported database, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if "@" in (parsed.host or ""):
            raise SettingsError("store: in a user's name or password @ is written %40")
        match parsed.get_backend_name():
            case "sqlite":
                engine = create_engine(parsed, hide_parameters=True)
                file = _file_of(parsed)
                if file is not None:
                    event.listen(engine, "do_connect", lambda *_: _create_private(file))
                    event.listen(engine, "connect", lambda *_: _make_private(file))
                event.listen(engine, "connect", _sqlite_pragmas)
                return engine
            case "postgresql":
                parsed = parsed.set(drivername="postgresql+psycopg")
                engine = create_engine(
                    parsed,
                    connect_args=_POSTGRESQL,
                    pool_pre_ping=True,
                    pool_size=THREADS + SHARED_STATE_THREADS + 1,
                    hide_parameters=True,  # a prompt may be one: errors must not repeat it
                )
                event.listen(engine, "begin", _limit_transaction)
                return engine
            case other:
                raise SettingsError(f"store {other}: it is neither sqlite nor postgresql")
    except ModuleNotFoundError as exc:
        raise SettingsError(
            f"store: {exc.name} is not installed: {install_hint('postgres')}"
        ) from exc
    except (ArgumentError, ValueError) as exc:  # ValueError: a port that is no number
        raise SettingsError(
            f"store {redacted_url(url)}: expected a URL such as sqlite:///racer.db"
        ) from exc


class ServerConnections:
    """The open connections to a database server, so that they can be cut or replaced.

    A server that accepts a query and never answers blocks the calling thread for ever: no time
    limit of the server or of the network applies. A server that became a read-only standby answers
    as before, and only new connections find the server that takes writes.
    """

    def __init__(self, engine: Engine) -> None:
        self._lock = Lock()
        self._open: set[Any] = set()
        self._outdated: set[Any] = set()
        self._error: Any = engine.dialect.loaded_dbapi.Error
        if engine.dialect.name != "sqlite":
            # Idle connections, too: each is tested before it is used.
            event.listen(engine, "connect", self._opened)
            event.listen(engine, "close", self._closed)
            event.listen(engine, "checkout", self._checked_out)
            event.listen(engine, "handle_error", self._failed)

    def cut(self) -> None:
        """Shut all of them down; threads that wait for an answer get an error."""
        with self._lock:
            for connection in self._open:
                with (
                    contextlib.suppress(OSError, self._error),  # it is closed already
                    socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
                ):
                    duplicate.shutdown(socket.SHUT_RDWR)

    def replace(self) -> None:
        """Open a new connection for each of them before the next transaction that would use it."""
        with self._lock:
            self._outdated |= self._open

    def _checked_out(self, connection: Any, *_: Any) -> None:
        with self._lock:
            is_outdated = connection in self._outdated
        if is_outdated:
            raise DisconnectionError  # the pool closes it and opens another

    def _failed(self, context: ExceptionContext) -> None:
        if _code(context.original_exception) == _SqlState.READ_ONLY:
            self.replace()

    def _opened(self, connection: Any, _: Any) -> None:
        with self._lock:
            self._open.add(connection)

    def _closed(self, connection: Any, _: Any) -> None:
        with self._lock:
            self._open.discard(connection)
            self._outdated.discard(connection)


def begin_writing(session: Session) -> None:
    """Lock a SQLite database for writing, so that what is read now is what is changed.

    PostgreSQL locks the rows that are read ``FOR UPDATE`` instead.
    """
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def lock(session: Session, name: str) -> None:
    """Wait for, and hold until the end of the transaction, PostgreSQL's lock of this name."""
    session.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name}
    )


def takes_writes(session: Session) -> bool:
    """Whether the database takes writes; False for a standby, or a read-only database."""
    if session.connection().dialect.name == "sqlite":
        return True
    return session.scalar(text("SHOW transaction_read_only")) == "off"


def insert_into(session: Session, table: type[Base]) -> Any:
    """Return an INSERT that supports ON CONFLICT."""
    postgres = session.connection().dialect.name == "postgresql"
    return (postgresql if postgres else sqlite).insert(table)


def insert_new(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, but for those whose key is stored already.

    A statement takes many rows. A driver releases the interpreter for each statement, and gets it
    back after the event loop: with a statement for each row a batch would wait hundreds of times.

    Args:
        session: The session.
        table: Their table.
        rows: All have the same columns, in the same order.
    """
    connection = session.connection()
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    for start in range(0, len(rows), _STATEMENT_ROWS):
        part = rows[start : start + _STATEMENT_ROWS]
        columns = ", ".join(part[0])
        values = ", ".join([f"({', '.join([mark] * len(part[0]))})"] * len(part))
        connection.exec_driver_sql(
            f"INSERT INTO {table.__tablename__} ({columns}) VALUES {values} ON CONFLICT DO NOTHING",
            tuple(value for row in part for value in row.values()),
        )


def notify(session: Session) -> None:
    """NOTIFY every gateway of a change, once this transaction is committed."""
    if session.connection().dialect.name == "postgresql":
        session.execute(text(f"NOTIFY {CHANNEL}"))


CHANNEL: Final = "racer"


class Transaction:
    """``with`` a session: commits on success, rolls back and translates errors otherwise."""

    def __init__(self, engine: Engine) -> None:
        self._session = Session(engine, expire_on_commit=False)

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: Any) -> None:
        try:
            if kind is None:
                self._session.commit()
        except SQLAlchemyError as failure:
            raise fault(failure, "written") from failure
        finally:
            self._session.close()
        if isinstance(exc, SQLAlchemyError | UnicodeEncodeError):
            raise fault(exc, "used") from exc


def fault(exc: SQLAlchemyError | UnicodeEncodeError, what: str) -> RacerError:
    """Translate an error into the kind that decides what the operator does about it."""
    driver = getattr(exc, "orig", None)
    if isinstance(exc, DataError | UnicodeEncodeError) or isinstance(driver, ValueError):
        return InputError("a value has characters or a size that the store cannot hold")
    if is_damage(driver):
        return StoreFileDamaged(f"the store cannot be {what}: {DAMAGED}")
    match _code(driver):
        case sqlite3.SQLITE_READONLY | _SqlState.READ_ONLY:
            return StoreReadOnly(
                "the store takes no writes: its database is a standby or read-only; promote it, or "
                "set the store's URL to the primary; the active calibration goes on deciding"
            )
        case _SqlState.NO_RIGHT:
            return StoreError(f"the role of the store's URL lacks a right: {_CURE}")
        case sqlite3.SQLITE_FULL | "53100":
            return StoreFull("the disk of the store is full; make room and try again")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | "55P03" | "57014" | "40001" | "40P01":
            return StoreBusy("the store is locked by another process; try again soon")
        case _ if isinstance(exc, OperationalError) and hasattr(driver, "sqlstate"):
            return StoreUnavailable("the store's database cannot be reached; try again soon")
        case _:
            return StoreError(f"the store cannot be {what}: {type(exc).__name__}")


def unusable(url: str, exc: SQLAlchemyError) -> SettingsError:
    """The error of a start or a command whose database cannot be used."""
    reason = str(exc).splitlines()[0]
    driver = getattr(exc, "orig", None)
    cure = ""
    if is_damage(driver):
        cure = f": {DAMAGED}"
    elif _code(driver) == _SqlState.NO_RIGHT:
        cure = f": {_CURE}"
    return SettingsError(f"store {redacted_url(url)}: {reason}{cure}")


def is_damage(driver: object) -> bool:
    """Whether an error of the driver says that the database itself is damaged."""
    return _code(driver) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        _SqlState.DATA_CORRUPTED,
        _SqlState.INDEX_CORRUPTED,
    )


def _code(driver: object) -> int | str | None:
    """The kind of a driver's error: SQLite's primary code, or PostgreSQL's state."""
    return getattr(driver, "sqlite_errorcode", 0) & 0xFF or getattr(driver, "sqlstate", None)


def _limit_transaction(connection: Connection) -> None:
    connection.exec_driver_sql(LIMITS)


def _file_of(url: URL) -> Path | None:
    """The file of a SQLite database; None in memory."""
    name = url.database or ":memory:"
    return None if name == ":memory:" or name.startswith("file:") else Path(name)


def _create_private(file: Path) -> None:
    """Create a new database for its owner alone; SQLite gives its journals the same rights.

    An existing file is not opened: closing it would end this process's locks on it.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite says what is wrong
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _make_private(file: Path) -> None:
    """Take all rights of others from a database and from what stands beside it."""
    for each in (file, *(Path(f"{file}{suffix}") for suffix in _BESIDE)):
        with contextlib.suppress(OSError):  # it is not there, or another user's
            if each.stat().st_mode & 0o077:
                each.chmod(0o600)


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


def redacted_url(url: str) -> str:
    """Return a URL without user, password and options, which may be secret."""
    try:
        plain = make_url(url).set(username=None, password=None, query={})
    except (ArgumentError, ValueError):
        return url.partition(":")[0]
    return plain.render_as_string()
