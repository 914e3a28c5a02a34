"""A gateway's own copy of the active calibration: a start while the database is away."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from app.calibrations.carried import FILE
from app.errors import SettingsError, StoreError
from app.routing.calibration_copy import CalibrationCopies
from app.store import KeyPurpose, Store, schema
from app.store.backup import calibrations
from app.store.engine import open_engine
from app.store.tables import WatchRow
from tests.kit.databases import Postgres
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    TWO,
    Command,
    Gateway,
    as_json,
    configure,
    noisy,
    running,
)
from tests.kit.stores import record, set_version
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

AGREED_S = 20.0
SETUP = "a" * 64  # of `record`


# The file --------------------------------------------------------------------------------------


@pytest.fixture
def copies(tmp_path: Path, database: str) -> CalibrationCopies:
    """In a folder that is not there yet."""
    return CalibrationCopies(tmp_path / "cache", database)


def test_a_copy_holds_the_calibration_its_alarms_and_the_samples_key(
    store: Store, copies: CalibrationCopies, tmp_path: Path
) -> None:
    """Red when a start from it forgets an alarm, or draws other samples."""
    one = record("cal-1")
    store.add(one, activate=True)
    assert (copies.read(SETUP), copies.samples_key()) == (None, None)
    with store.transaction() as session:
        row = {"since": "2026", "state": "{}", "raised": '["risk"]'}
        session.add(WatchRow(calibration_id="cal-1", application="bot", **row))
    copies.write(store, "cal-1")
    found = copies.read(SETUP)
    assert found is not None
    assert found[0].encoded()[0] == one.encoded()[0]
    assert found[1] == store.shared_state(SETUP)
    assert copies.samples_key() == store.key(KeyPurpose.SAMPLES)
    assert [each.stat().st_mode & 0o777 for each in copies.folder.iterdir()] == [0o600]
    other = CalibrationCopies(tmp_path / "cache", "postgresql://elsewhere/racer")
    assert (other.read(SETUP), other.samples_key()) == (None, None)
    assert copies.read("b" * 64) is None


def test_a_damaged_copy_is_not_used(
    store: Store, copies: CalibrationCopies, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hundred changed bytes, one at a time: noticed, or without effect."""
    one = record("cal-1")
    store.add(one, activate=True)
    copies.write(store, "cal-1")
    (file,) = copies.folder.iterdir()
    data, refused = file.read_bytes(), 0
    for place in np.random.default_rng(0).integers(0, len(data), 200):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = copies.read(SETUP)
        if found is None:
            refused += 1
        else:
            assert found[0].encoded()[0] == one.encoded()[0]
    assert refused > 100
    assert "a copy of the active calibration is not used" in caplog.text


# A store that is away --------------------------------------------------------------------------

AWAY = "postgresql://racer@127.0.0.1:9/racer"


def test_a_store_may_be_opened_while_its_database_is_away(tmp_path: Path) -> None:
    """Every use says so; without leave, and for a file, the start is refused as ever."""
    with pytest.raises(SettingsError):
        Store(f"sqlite:///{tmp_path / 'nowhere' / 'racer.db'}", may_be_away=True)
    with pytest.raises(SettingsError, match=r"store postgresql://.*127\.0\.0\.1:9/racer"):
        Store(AWAY)
    with Store(AWAY, may_be_away=True) as store:
        assert store.is_away
        with pytest.raises(StoreError, match="cannot be reached"):
            store.shared_state(SETUP)


def test_a_database_that_is_away_is_tried_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when each of the readings of a start waits for a connection of its own."""
    tries: list[object] = []

    def prepare(engine: object) -> None:
        tries.append(engine)
        raise OperationalError("connect", None, psycopg.OperationalError("refused"))

    monkeypatch.setattr(schema, "prepare", prepare)
    with Store(AWAY, may_be_away=True) as store:
        for _ in range(5):
            with pytest.raises(StoreError):
                store.shared_state(SETUP)
    assert len(tries) == 2  # to open it, and then one for all readings


@pytest.mark.scale
def test_tables_are_checked_once_the_database_is_back(postgres: Postgres) -> None:
    """Made where there are none; those of another version are refused, and not written."""
    empty, older = postgres.create(), postgres.create()
    engine = open_engine(older)
    set_version(engine, "0013")
    engine.dispose()
    with postgres.stopped():
        one, two = Store(empty, may_be_away=True), Store(older, may_be_away=True)
    with one, two:
        assert one.is_away
        assert one.shared_state(SETUP).active_id is None
        assert not one.is_away
        with pytest.raises(StoreError, match="give this one an empty database"):
            two.shared_state(SETUP)


# A gateway -------------------------------------------------------------------------------------


@pytest.fixture
def environment(postgres: Postgres) -> dict[str, str]:
    """Of gateways on an empty database."""
    return ENVIRONMENT | {"RACER_STORE_URL": postgres.create()}


@pytest.fixture
def config(noisy_artifact: Path, pool: FakePool, tmp_path: Path) -> Path:
    """Of one gateway, which is started several times."""
    return configure(tmp_path / "gateway", noisy_artifact, pool.url)


def is_copied(gateway: Gateway, calibration_id: str) -> bool:
    """Whether the gateway's copy is of this calibration."""
    found = list(gateway.settings.cache.glob("calibrations/*/*.zip"))
    if not found:
        return False
    with calibrations.Backup(found[0]) as backup:
        return [each.id for each in backup.manifest.calibrations] == [calibration_id]


def calibrated(gateway: Gateway, seed: int = 0, **options: Any) -> str:
    """Upload noisy rows, and wait for the copy."""
    made = gateway.calibrate(rows=noisy(20_000 + 1_000 * seed, 120), **options)["id"]
    assert until(lambda: is_copied(gateway, made), AGREED_S)
    return made


@pytest.mark.scale
def test_a_gateway_starts_while_its_database_is_away(
    environment: dict[str, str], config: Path, postgres: Postgres
) -> None:
    """Certified as before; `store_unreachable` is said until the database is back."""
    with running(config, environment) as gateway:
        calibrated(gateway)
        second = calibrated(gateway, 1)
        before = gateway.decided(TWO)
        assert before["certificate"]["holds"]
    with postgres.stopped(), running(config, environment) as gateway:
        ready = gateway.get("/readyz?calibrated=true")
        assert (ready.status_code, ready.json()["calibration"]) == (200, second)
        assert ready.json()["degraded"] == ["store"]
        certificate = gateway.chat(TWO)["racer"]["certificate"]
        assert certificate["holds"]
        assert certificate["reasons"] == [*before["certificate"]["reasons"], "store_unreachable"]
        assert gateway.decided_without_store(TWO) == before
        code = gateway.get("/calibrations", ADMIN_KEY).json()["error"]["code"]
        assert code == "store_unavailable"
        made = gateway.route(TWO)["decision_id"]
        postgres.start()
        assert until(lambda: "degraded" not in gateway.ready(), AGREED_S)
        assert gateway.decided(TWO) == before
        assert until(
            lambda: gateway.get(f"/decisions/{made}", ADMIN_KEY).status_code == 200, AGREED_S
        )
        third = calibrated(gateway, 2)
        assert gateway.ready()["calibration"] == third
        postgres.stop()


@pytest.mark.scale
def test_a_gateway_starts_while_its_database_hangs(
    environment: dict[str, str], config: Path, postgres: Postgres
) -> None:
    """It accepts connections and never answers; the gateway follows it once it wakes."""
    with running(config, environment) as gateway:
        made = calibrated(gateway)
    with ExitStack() as stack:
        with postgres.frozen():
            gateway = stack.enter_context(running(config, environment))
            assert gateway.ready()["calibration"] == made
            assert "store_unreachable" in gateway.route(TWO)["certificate"]["reasons"]
        assert until(lambda: "degraded" not in gateway.ready(), AGREED_S)


@pytest.mark.scale
def test_an_alarm_is_in_the_copy(
    environment: dict[str, str], config: Path, postgres: Postgres, tmp_path: Path
) -> None:
    """Red when a restart in an outage makes void certificates valid."""
    with running(config, environment) as gateway:
        made = calibrated(gateway)
        with Store(environment["RACER_STORE_URL"]) as store:
            with store.transaction() as session:
                row = {"since": "2026", "state": "{}", "raised": '["mean_score"]'}
                session.add(WatchRow(calibration_id=made, application="", **row))
            wanted = store.shared_state(store.summary(made).artifact)
            copies = CalibrationCopies(gateway.settings.cache, environment["RACER_STORE_URL"])
            setup = store.summary(made).artifact

        def is_known() -> bool:
            found = copies.read(setup)
            return found is not None and found[1] == wanted

        assert until(is_known, AGREED_S)
    text = config.read_text(encoding="utf-8").replace("false_alarm: null", "false_alarm: 0.01")
    config.write_text(text, encoding="utf-8")
    with postgres.stopped(), running(config, environment) as gateway:
        certificate = gateway.route(TWO)["certificate"]
        assert not certificate["holds"]
        assert "stale:mean_score" in certificate["reasons"]


@pytest.mark.scale
def test_without_a_copy_a_gateway_does_not_start_without_its_database(
    environment: dict[str, str], config: Path, postgres: Postgres
) -> None:
    """Nothing says what is active there, or whether an alarm stands."""
    with (
        postgres.stopped(),
        pytest.raises(SettingsError, match="store postgresql"),
        running(config, environment),
    ):
        pass


@pytest.mark.scale
def test_a_copy_of_another_artifact_decides_nothing(
    environment: dict[str, str], config: Path, postgres: Postgres, artifact: Path, pool: FakePool
) -> None:
    """The fallback answers, and /readyz says why, until the database is back."""
    with running(config, environment) as gateway:
        calibrated(gateway)
    other = configure(config.parent, artifact, pool.url)
    with postgres.stopped(), running(other, environment) as gateway:
        ready = gateway.ready()
        assert ready["calibration"] is None
        assert "no copy of a calibration is on this machine" in ready["missing"][0]["reason"]


def listed(gateway: Gateway) -> list[str]:
    """The calibrations of the store; none while it cannot be read."""
    answer = gateway.get("/calibrations", ADMIN_KEY).json()
    return [each["id"] for each in answer.get("data", [])]


@pytest.mark.scale
def test_the_copy_wins_over_what_the_artifact_carries(
    environment: dict[str, str], postgres: Postgres, noisy_artifact: Path, tmp_path: Path,
    pool: FakePool, racer: Command,
) -> None:  # fmt: skip
    """In an outage the last active one decides; afterwards the store does, as at any start."""
    folder = shutil.copytree(noisy_artifact, tmp_path / "artifact")
    path = configure(tmp_path / "gateway", folder, pool.url)
    with running(path, environment) as gateway:
        made = calibrated(gateway)
    rows = tmp_path / "rows.jsonl"
    lines = as_json(noisy(50_000, 120))
    rows.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    code, output, error = racer("calibrate", rows, "--artifact", folder, "--config", path, "--json")
    assert code == 0, error
    assert (folder / FILE).exists()
    carried = json.loads(output)["id"]
    with postgres.stopped(), running(path, environment) as gateway:
        assert gateway.ready()["calibration"] == made
        postgres.start()
        assert until(lambda: carried in listed(gateway), AGREED_S)
        postgres.stop()


@pytest.mark.scale
def test_a_copy_that_cannot_be_written_is_logged_and_costs_nothing(
    environment: dict[str, str], config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as on a read-only file system: requests are certified as ever."""
    (config.parent / "cache").write_text("a file where the folder would be", encoding="utf-8")
    with running(config, environment) as gateway:
        gateway.calibrate(rows=noisy(20_000, 120))
        assert until(lambda: "and a start needs the database" in caplog.text, AGREED_S)
        assert gateway.decided(TWO)["certificate"]["holds"]
