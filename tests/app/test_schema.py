"""Schema versions of the store: creation, upgrade and refusal."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from app.errors import SettingsError
from app.store import Alarms, Store, schema
from app.store.calibration_rows import record_digest
from app.store.engine import open_engine
from app.store.tables import Base
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.risk_e_process import RiskEProcess
from tests.kit.databases import before_statements
from tests.kit.gateway import Command, Serve
from tests.kit.stores import at, record


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
                    each["options"].get("ondelete"),
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
    """A database that was upgraded from the first version is one that was made today."""
    at(engine, "head")
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
    assert scripts.get_bases() == ["0001"]


def test_an_empty_database_gets_its_tables_with_a_message(database: str) -> None:
    """And a second start finds it as it is."""
    for _ in range(2):
        with Store(database) as store, store.transaction() as session:
            assert schema.version(session.connection()) == schema.HEAD


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


def old_database(engine: Engine, *, unversioned: bool) -> dict[str, Any]:
    """The first version with a calibration, a decision, a verdict and a watch that alarmed."""
    at(engine, "0001")
    stored = record("cal-1")
    document, arrays = stored.encoded()
    watch = DriftState(delta=0.5, streams={"risk": RiskEProcess(0.1, level=0.4)})
    for _ in range(50):
        watch.streams["risk"].update(1.0)  # type: ignore[call-arg]
    assert watch.raised == ("risk",)
    rows: list[tuple[str, dict[str, Any]]] = [
        (
            "calibrations",
            {
                "id": "cal-1",
                "created_at": stored.created_at,
                "artifact": stored.artifact,
                "document": document,
                "arrays": arrays,
                "digest": record_digest(
                    "cal-1", stored.created_at, stored.artifact, document, arrays
                ),
            },
        ),
        ("active_calibration", {"slot": 1, "calibration_id": "cal-1"}),
        (
            "decisions",
            {
                "id": "d-1",
                "created_at": stored.created_at,
                "calibration_id": "cal-1",
                "key": "data",
                "selected": "[]",
                "null_selected": False,
                "ordinary": True,
                "shadow": False,
                "judged": False,
                "loss": None,
                "document": "{}",
                "neighbours": None,
            },
        ),
        (
            "verdicts",
            {
                "decision_id": "d-1",
                "candidate": "adder",
                "correct": True,
                "counts": True,
                "key": "data",
                "created_at": stored.created_at,
            },
        ),
        (
            "watches",
            {
                "calibration_id": "cal-1",
                "since": stored.created_at,
                "state": json.dumps(watch.to_state()),
            },
        ),
    ]
    with engine.begin() as connection:
        for table, row in rows:
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
        if unversioned:
            connection.execute(text("DROP TABLE alembic_version"))
    return {"scores": stored.calibration.scores, "since": stored.created_at}


@pytest.mark.parametrize("unversioned", [True, False], ids=["unversioned", "versioned"])
def test_an_old_database_is_refused_until_it_is_upgraded(
    engine: Engine, database: str, *, unversioned: bool
) -> None:
    """Nothing that was in it is lost: the calibration decides, its alarm is still raised."""
    was = old_database(engine, unversioned=unversioned)
    with pytest.raises(SettingsError, match="racer db upgrade"):
        Store(database)
    assert schema.upgrade(engine) == ("0001", schema.HEAD)
    assert schema.upgrade(engine) == (schema.HEAD, schema.HEAD)
    with Store(database) as store:
        state = store.shared_state("a" * 64)
        assert state.active_id == "cal-1"
        assert state.alarms == {"": Alarms(since=was["since"], raised=("risk",))}
        found = store.record("cal-1").calibration.scores
        np.testing.assert_array_equal(found, was["scores"])
        with store.transaction() as session:
            counted = session.execute(text("SELECT count(*) FROM verdicts")).scalar()
    assert counted == 1


def test_a_newer_database_is_refused_and_left_alone(engine: Engine, database: str) -> None:
    """By the start and by the upgrade: this program does not know what is in it."""
    schema.prepare(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SettingsError, match="newer program"):
        Store(database)
    with pytest.raises(SettingsError, match="newer program"):
        schema.upgrade(engine)
    with engine.connect() as connection:
        assert schema.version(connection) == "9999"


def test_an_upgrade_that_fails_changes_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of the old version, whole: red when a version is upgraded outside a transaction."""
    old_database(engine, unversioned=False)
    before = shape(engine)
    made = Operations.create_table

    def fail(self: Operations, name: str, *columns: Any, **options: Any) -> Any:
        if name == "leases":
            raise RuntimeError("the power failed")
        return made(self, name, *columns, **options)

    monkeypatch.setattr(Operations, "create_table", fail)
    with pytest.raises(RuntimeError):
        schema.upgrade(engine)
    assert shape(engine) == before
    with engine.connect() as connection:
        assert schema.version(connection) == "0001"


def upgraded(racer: Command, *options: object) -> dict[str, str]:
    """What ``racer db upgrade`` says."""
    code, output, error = racer("db", "upgrade", *options, "--json")
    assert code == 0, error
    return json.loads(output)


def test_the_command_upgrades(serve: Serve, racer: Command, tmp_path: Path) -> None:
    """``racer db upgrade`` says from where and to where."""
    serve(folder=tmp_path)
    said = upgraded(racer, "--config", tmp_path / "racer.yaml")
    assert said["before"] == said["after"] == schema.HEAD


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


def test_an_upgrade_without_a_store_says_how_to_name_one(
    racer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and all three ways."""
    monkeypatch.delenv("RACER_STORE_URL", raising=False)
    code, _, error = racer("db", "upgrade")
    assert code == 2
    assert "--config or --store, or set $RACER_STORE_URL" in error
