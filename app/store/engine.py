"""How the database is opened, used in transactions, and what can go wrong with it.

SQLite runs with ``journal_mode=DELETE, synchronous=FULL``: its WAL mode has a corruption race in
the versions that Python links today, and calibrations are rare. PostgreSQL is asked to give up by
itself on what takes too long, and a connection is tried before it is used: the server may have been
restarted since.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.errors import SettingsError, StoreBusy, StoreError, StoreFull, StoreUnavailable
from app.store.tables import Base

THREADS: Final = 4  # that use the store at once
CONNECT_S: Final = 5
ANSWER_S: Final = 75  # longer than PostgreSQL itself takes to give up, see below
_POSTGRESQL: Final[dict[str, Any]] = {
    "application_name": "racer",
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": 10_000,  # milliseconds, like the next two
    "options": "-c statement_timeout=60000 -c lock_timeout=5000",
}


def open_engine(url: str) -> Engine:
    """An engine; nothing is connected yet.

    Raises:
        SettingsError: No URL of a database that is known here, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        match parsed.get_backend_name():
            case "sqlite":
                engine = create_engine(parsed)
                event.listen(engine, "connect", _sqlite_pragmas)
                return engine
            case "postgresql":
                parsed = parsed.set(drivername="postgresql+psycopg")
                return create_engine(
                    parsed, connect_args=_POSTGRESQL, pool_pre_ping=True, pool_size=THREADS + 1
                )
            case other:
                raise SettingsError(f"store {other}: it is neither sqlite nor postgresql")
    except ModuleNotFoundError as exc:
        raise SettingsError(
            f"store: {exc.name} is not installed: `pip install 'racer-gateway[postgres]'`"
        ) from exc
    except ArgumentError as exc:
        raise SettingsError(
            f"store {shown(url)}: expected a URL such as sqlite:///racer.db"
        ) from exc


def begin_writing(session: Session) -> None:
    """Let no other process of SQLite's write from here on: what is read now is what is changed.

    PostgreSQL locks the rows that are read ``FOR UPDATE`` instead.
    """
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def insert_into(session: Session, table: type[Base]) -> Any:
    """An INSERT that knows what to do on a conflict."""
    postgres = session.connection().dialect.name == "postgresql"
    return (postgresql if postgres else sqlite).insert(table)


def notify(session: Session) -> None:
    """Tell every gateway that something changed, once this transaction is committed."""
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
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | "55P03" | "57014" | "40001" | "40P01":
            return StoreBusy("the store is locked by somebody else; try again soon")
        case _ if isinstance(exc, OperationalError) and hasattr(driver, "sqlstate"):
            return StoreUnavailable("the store's database cannot be reached; try again soon")
        case _:
            return StoreError(f"the store cannot be {what}: {type(exc).__name__}")


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


def shown(url: str) -> str:
    """A URL without the user's name and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def now() -> str:
    """UTC with microseconds, so that records sort by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
