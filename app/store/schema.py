"""Schema version and migrations: tables are created once, and upgraded only on command.

Versions are Alembic's, in ``migrations/versions``; the database stores its own. A gateway starts
only with the version that it was written for: an older program must not write into newer tables,
and an upgrade is an operator's decision, with a backup beside it. Alembic is imported only for an
upgrade.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, inspect, text

from app.errors import StoreSchemaError
from app.store.tables import Base

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "1"  # the newest version, as `tables.py` has it
_UNKNOWN: Final = "unknown"  # the version of tables in a database that stores none
_LOCK: Final = 0x7261636572  # advisory lock of creation, upgrade and restore; "racer"
_VERSION: Final = "alembic_version"


def prepare(engine: Engine) -> None:
    """Create the tables of an empty database.

    Raises:
        StoreSchemaError: The database has tables of another version.
        SQLAlchemyError: The database cannot be used.
    """
    with engine.begin() as connection:
        lock_schema(connection)
        found = version(connection)
        if found is None:
            Base.metadata.create_all(connection)
            connection.execute(text(f"CREATE TABLE {_VERSION} (version_num VARCHAR(32) NOT NULL)"))
            connection.execute(text(f"INSERT INTO {_VERSION} VALUES (:head)"), {"head": HEAD})
        elif found != HEAD:
            raise StoreSchemaError(_refusal(found))


def version(connection: Connection) -> str | None:
    """The version of the tables; None where there are none."""
    tables = set(inspect(connection).get_table_names())
    if _VERSION in tables:
        return connection.execute(text(f"SELECT version_num FROM {_VERSION}")).scalar()
    return None if tables.isdisjoint(Base.metadata.tables) else _UNKNOWN


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Bring the tables to the newest version, all or nothing, and return the old and the new one.

    Raises:
        StoreSchemaError: This program does not know their version.
        SQLAlchemyError: The database cannot be used.
    """
    from alembic import command

    with engine.begin() as connection:
        lock_schema(connection)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))  # an index may take longer
        found = version(connection)
        if found is not None and found not in known_versions():
            raise StoreSchemaError(_refusal(found))
        config = migration_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return found, HEAD


def _refusal(found: str) -> str:
    return f"store: its tables have version {found}, this program needs {HEAD}: {cure(found)}"


def cure(found: str) -> str:
    """What to do about tables of another version than ``HEAD``."""
    if found in known_versions():
        return "make a backup with the program that wrote it, then run `racer db upgrade`"
    return (
        "start the program that wrote it, or give this one an empty database and upload the "
        "labelled rows again"
    )


def known_versions() -> set[str]:
    """Return every version that this program can upgrade from."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(migration_config())
    return {script.revision for script in scripts.walk_revisions()}


def migration_config() -> Config:
    """Alembic's configuration for the migrations of the store."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def lock_schema(connection: Connection) -> None:
    """Let only one of several processes create or upgrade tables, or restore, at a time."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
