"""Schema versions of the store: creation, upgrade and refusal."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from alembic.config import Config
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from app.errors import SettingsError
from app.store import Alarms, Store, schema
from app.store.engine import open_engine
from app.store.tables import Base, WatchRow
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.risk_e_process import RiskEProcess
from tests.kit.databases import before_statements
from tests.kit.gateway import Command
from tests.kit.stores import record, set_version


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on an empty database of either kind."""
    opened = open_engine(database)
    yield opened
    opened.dispose()


def shape(engine: Engine) -> dict[str, Any]:
    """Every table but Alembic's: columns with their types, keys and indices."""
    tables = inspect(engine)
    return {
        table: {
            "columns": [
                (each["name"], str(each["type"]), each["nullable"])
                for each in tables.get_columns(table)
            ],
            "key": tables.get_pk_constraint(table)["constrained_columns"],
            "foreign": {
                (
                    *each["constrained_columns"],
                    each["referred_table"],
                    each.get("options", {}).get("ondelete"),
                )
                for each in tables.get_foreign_keys(table)
            },
            "indices": {
                (each["name"], *each["column_names"], bool(each["unique"]))
                for each in tables.get_indexes(table)
            },
        }
        for table in tables.get_table_names()
        if table != "alembic_version"
    }


def test_the_newest_version_is_what_tables_say(engine: Engine) -> None:
    """A database that migrations made is one that a start makes."""
    schema.upgrade(engine)
    upgraded = shape(engine)
    with engine.begin() as connection:
        for table in (*upgraded, "alembic_version"):
            cascade = "CASCADE" if connection.dialect.name == "postgresql" else ""
            connection.execute(text(f"DROP TABLE {table} {cascade}"))
    schema.prepare(engine)
    assert shape(engine) == upgraded
    assert upgraded.keys() == Base.metadata.tables.keys()


def test_there_is_one_newest_version_and_a_way_to_it_from_every_other() -> None:
    """No branch, no gap: red when a version is added and ``HEAD`` is not moved."""
    scripts = ScriptDirectory.from_config(schema.migration_config())
    assert scripts.get_heads() == [schema.HEAD]
    assert len(scripts.get_bases()) == 1


def test_a_start_with_tables_of_this_version_changes_none(database: str) -> None:
    """A role that may create nothing can start a gateway: red when it tries to."""
    Store(database).close()
    statements: list[str] = []
    with before_statements(database, statements.append):
        Store(database).close()
    assert statements
    assert not [each for each in statements if re.search(r"\b(CREATE|ALTER|DROP)\b", each)]


def test_of_several_first_starts_one_makes_the_tables(database: str) -> None:
    """Eight at once: none fails."""
    start, errors = threading.Barrier(8), list[Exception]()

    def begin() -> None:
        start.wait()
        try:
            Store(database).close()
        except Exception as exc:  # noqa: BLE001 - looked at below
            errors.append(exc)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []


NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade() -> None:
    op.create_table("added", sa.Column("id", sa.Integer(), primary_key=True))
    op.add_column("verdicts", sa.Column("remark", sa.String(), server_default="none"))
"""


@pytest.fixture
def old_database(
    engine: Engine, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The tables before this program's own version, with an active calibration that alarmed."""
    stored = record("cal-1")
    watch = DriftState(delta=0.5, streams={"risk": RiskEProcess(0.1, level=0.4)})
    for _ in range(50):
        watch.streams["risk"].update(1.0)  # type: ignore[call-arg]
    assert watch.raised == ("risk",)
    with Store(database) as store:
        store.add(stored, activate=True)
        with store.transaction() as session:
            session.add(
                WatchRow(
                    calibration_id="cal-1",
                    application="",
                    since=stored.created_at,
                    state=json.dumps(watch.to_state()),
                    raised=json.dumps(watch.raised),
                )
            )
    before = schema.HEAD
    scripts = tmp_path / "migrations"
    shutil.copytree(Path(schema.__file__).parent / "migrations", scripts)
    (scripts / "versions" / "next.py").write_text(NEXT.format(head=before), encoding="utf-8")
    config = Config()
    config.set_main_option("script_location", str(scripts))
    monkeypatch.setattr(schema, "migration_config", lambda: config)
    monkeypatch.setattr(schema, "HEAD", "next")
    return {
        "version": before,
        "scores": stored.calibration.scores,
        "since": stored.created_at,
        "artifact": stored.artifact,
    }


def test_an_old_database_is_refused_until_it_is_upgraded(
    engine: Engine, database: str, old_database: dict[str, Any]
) -> None:
    """Nothing that was in it is lost: the calibration decides, its alarm is still raised."""
    with pytest.raises(SettingsError, match="racer db upgrade"):
        Store(database)
    assert schema.upgrade(engine) == (old_database["version"], "next")
    assert schema.upgrade(engine) == ("next", "next")
    assert "added" in shape(engine)
    with Store(database) as store:
        state = store.shared_state(old_database["artifact"])
        assert state.active_id == "cal-1"
        assert state.alarms == {"": Alarms(since=old_database["since"], raised=("risk",))}
        found = store.record("cal-1").calibration.scores
    np.testing.assert_array_equal(found, old_database["scores"])


def test_an_upgrade_that_fails_changes_nothing(
    engine: Engine, old_database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of the old version, whole: red when a version is upgraded outside a transaction."""
    before = shape(engine)

    def fail(self: Operations, *columns: Any, **options: Any) -> Any:
        raise RuntimeError("the power failed")

    monkeypatch.setattr(Operations, "add_column", fail)
    with pytest.raises(RuntimeError):
        schema.upgrade(engine)
    assert shape(engine) == before
    with engine.connect() as connection:
        assert schema.version(connection) == old_database["version"]


@pytest.mark.parametrize("found", ["0001", "0013", "9999", None])
def test_tables_of_an_unknown_version_are_refused_and_left_alone(
    engine: Engine, database: str, found: str | None
) -> None:
    """By the start and by the upgrade, also without any version: one sentence says what to do."""
    set_version(engine, found)
    before = shape(engine)
    said = (
        f"store: its tables have version {found or 'unknown'}, this program needs {schema.HEAD}: "
        "start the program that wrote it, or give this one an empty database and upload the "
        "labelled rows again"
    )
    for act in (lambda: Store(database), lambda: schema.upgrade(engine)):
        with pytest.raises(SettingsError, match=f"^{re.escape(said)}$"):
            act()
    assert shape(engine) == before
    with engine.connect() as connection:
        assert schema.version(connection) == (found or "unknown")


def upgraded(racer: Command, *options: object) -> dict[str, str]:
    """What ``racer db upgrade`` says."""
    code, output, error = racer("db", "upgrade", *options, "--json")
    assert code == 0, error
    return json.loads(output)


@pytest.mark.parametrize("how", ["option", "variable", "configuration", "renamed variable"])
def test_an_upgrade_needs_the_address_of_the_store_and_no_key(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Keys of candidates, of clients and of samples are not set: a Job holds none of them."""
    monkeypatch.delenv("RACER_STORE_URL", raising=False)
    url = f"sqlite:///{tmp_path / 'own.db'}"
    other = f"sqlite:///{tmp_path / 'other.db'}"
    path = tmp_path / "racer.yaml"
    configured = {
        "schema_version": 1,
        "host": "0.0.0.0",
        "artifact": "artifact",
        "store": url if how == "configuration" else other,
        "candidates": [{"name": "one", "base_url": "http://h:1/v1", "api_key_env": "KEY_OF_ONE"}],
        "watching": {"shadow_rate": 0.1, "store_requests": True},
    }
    options: list[object] = ["--config", path]
    match how:
        case "option":
            options += ["--store", url]
        case "variable":
            monkeypatch.setenv("RACER_STORE_URL", url)
            options = []
        case "renamed variable":
            configured["store_env"] = "OUR_STORE"
            monkeypatch.setenv("OUR_STORE", url)
            monkeypatch.setenv("RACER_STORE_URL", other)
        case _:
            pass
    path.write_text(yaml.safe_dump(configured), encoding="utf-8")
    said = upgraded(racer, *options)
    assert (said["store"], said["before"], said["after"]) == (url, "no tables", schema.HEAD)
    assert [each.name for each in tmp_path.glob("*.db")] == ["own.db"]
    again = upgraded(racer, *options)
    assert again["before"] == again["after"] == schema.HEAD


def test_an_upgrade_without_a_store_says_how_to_name_one(
    racer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and all three ways."""
    monkeypatch.delenv("RACER_STORE_URL", raising=False)
    code, _, error = racer("db", "upgrade")
    assert code == 2
    assert "--config or --store, or set $RACER_STORE_URL" in error
