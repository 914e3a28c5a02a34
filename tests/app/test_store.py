"""Store of calibrations: content and durability."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.errors import Conflict, NotFound, SettingsError, StoreError, StoreReadOnly
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from app.store.tables import WatchRow
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import RiskTarget, Score
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    TRAINED,
    TWO,
    Gateway,
    Serve,
    as_json,
    candidates,
    labelled,
)
from tests.kit.stores import PARTS, record
from tests.kit.upstream import FakePool


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where SQLite's store of a test is."""
    return tmp_path / "racer.db"


@pytest.fixture
def sqlite_store(file: Path) -> Iterator[Store]:
    """An empty store of SQLite's."""
    with Store(f"sqlite:///{file}") as opened:
        yield opened


def active(store: Store, artifact: str = "a" * 64) -> CalibrationRecord | None:
    """The record that decides for an artifact."""
    found = store.shared_state(artifact).active_id
    return None if found is None else store.record(found)


def same(one: CalibrationRecord, other: CalibrationRecord) -> None:
    """Every field, and every bit of every array."""
    for field in ("id", "created_at", "artifact", "evidence", "void_reasons"):
        assert getattr(one, field) == getattr(other, field)
    for field in ("pool", "fingerprints", "options", "prices", "groups"):
        assert getattr(one.calibration, field) == getattr(other.calibration, field)
    assert one.calibration.scores.tobytes() == other.calibration.scores.tobytes()
    assert one.calibration.labels.tobytes() == other.calibration.labels.tobytes()
    for field in ("neighbours", "projections", "quality", "weights", "unlabelled", "judged"):
        same_array(getattr(one.calibration, field), getattr(other.calibration, field))
    same_patterns(one.calibration.patterns, other.calibration.patterns)


def same_array(one: np.ndarray | None, other: np.ndarray | None) -> None:
    """Both are missing, or of one type and the same values."""
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def same_patterns(one: PatternModel | None, other: PatternModel | None) -> None:
    """Both are missing, or weigh alike."""
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        same_array(one.patterns, other.patterns)
        same_array(one.frequencies, other.frequencies)
        for field in ("neighbours", "prior", "temperature"):
            assert getattr(one, field) == getattr(other, field)


@pytest.mark.parametrize("parts", PARTS)
def test_the_inputs_of_cover_scores_are_stored_exactly(
    store: Store, database: str, parts: str
) -> None:
    """Neighbours, patterns, prices and groups: every score offered has the same thresholds."""
    bound = 3.0 if "weights" in PARTS[parts] else None
    delta = 0.2 if "judged" in PARTS[parts] else None
    stored = record("cal-1", parts=PARTS[parts], max_weight=bound, delta=delta)
    store.add(stored, activate=True)
    with Store(database) as another:
        found = active(another)
    assert found is not None
    same(found, stored)
    assert found.calibration.offered == stored.calibration.offered
    for score in stored.calibration.offered:
        for alpha in (0.05, 0.1, 0.5):
            thresholds = [
                c.lambda_hat(alpha, score) for c in (found.calibration, stored.calibration)
            ]
            assert thresholds[0] == thresholds[1]
    for calibration in (found.calibration, stored.calibration):
        assert calibration.group("a").is_enough(0.1) == (parts == "everything")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 1 / 3, "delta": 0.05, "r": 2, "score": Score.PROB},
        {"risk_target": RiskTarget.PAPER, "smoothing_salt": b"\x00salt\xff"},
        {"null_threshold": 0.1 + 0.2},
    ],
    ids=str,
)
def test_a_record_comes_back_exactly(
    store: Store, database: str, options: dict[str, object]
) -> None:
    """Scores, labels, fingerprints and options are the same bits, in another process too."""
    stored = record("cal-1", **options)
    store.add(stored, activate=True)
    with Store(database) as another:
        found = active(another)
    assert found is not None
    same(found, stored)
    for score in stored.calibration.offered:
        thresholds = [c.lambda_hat(0.1, score) for c in (found.calibration, stored.calibration)]
        assert thresholds[0] == thresholds[1]


def test_no_prompt_is_kept(serve: Serve, tmp_path: Path) -> None:
    """The file holds fingerprints, not queries."""
    serve(folder=tmp_path)
    data = (tmp_path / "racer.db").read_bytes()
    assert b"adder" in data  # the file really is the one
    assert b"plus" not in data


def test_an_empty_store_has_no_active_record(store: Store) -> None:
    """Nothing is made up."""
    assert active(store) is None
    assert store.summaries() == []
    with pytest.raises(NotFound):
        store.summary("cal-1")
    with pytest.raises(NotFound):
        store.activate("cal-1", None, "a" * 64)


def test_each_artifact_has_an_active_calibration_of_its_own(store: Store) -> None:
    """Gateways with a new one can be started beside those with the old one."""
    old, new = record("cal-1"), replace(record("cal-2"), artifact="b" * 64)
    store.add(old, activate=True)
    store.add(new, activate=True)
    assert [store.shared_state(each).active_id for each in ("a" * 64, "b" * 64)] == [
        "cal-1",
        "cal-2",
    ]
    assert {each.id for each in store.summaries() if each.active} == {"cal-1", "cal-2"}
    assert store.others("a" * 64) == "cal-2"
    assert store.shared_state("c" * 64).active_id is None
    with pytest.raises(Conflict):
        store.add(record("cal-3"), activate=True, expected_active_id="cal-2")


def test_at_most_one_is_active(store: Store) -> None:
    """Whatever the order of changes."""
    for number in range(4):
        store.add(record(f"cal-{number}"), activate=number != 2)
    store.activate("cal-1", None, "a" * 64)
    assert [each.id for each in store.summaries() if each.active] == ["cal-1"]
    found = active(store)
    assert found is not None
    assert found.id == "cal-1"


def test_a_first_one_can_be_expected(store: Store) -> None:
    """An empty id finds none active: the first wins, and overrules no other."""
    store.add(record("cal-0"), activate=True, expected_active_id="")
    with pytest.raises(Conflict):
        store.add(record("cal-1"), activate=True, expected_active_id="")
    with pytest.raises(Conflict):
        store.activate("cal-0", "", "a" * 64)
    assert [(each.id, each.active) for each in store.summaries()] == [("cal-0", True)]


def test_a_conflict_keeps_nothing(store: Store) -> None:
    """Compare-and-set fails as a whole: no record, no change."""
    with pytest.raises(Conflict):
        store.add(record("cal-0"), activate=True, expected_active_id="cal-9")
    assert store.summaries() == []
    store.add(record("cal-1"), activate=True)
    with pytest.raises(Conflict):
        store.add(record("cal-2"), activate=True, expected_active_id="cal-0")
    with pytest.raises(Conflict):
        store.activate("cal-1", "cal-0", "a" * 64)
    assert [(each.id, each.active) for each in store.summaries()] == [("cal-1", True)]


def test_of_two_activations_that_expect_the_same_one_wins(store: Store, database: str) -> None:
    """Two processes' worth of stores race twenty times; exactly one gets through each time."""
    names = [f"cal-{number}" for number in range(3)]
    for name in names:
        store.add(record(name), activate=name == names[0])
    with Store(database) as other:
        for _ in range(20):
            store.activate(names[0], None, "a" * 64)
            outcomes: list[str] = []
            start = threading.Barrier(2)

            def race(
                one: Store,
                name: str,
                start: threading.Barrier = start,
                outcomes: list[str] = outcomes,
            ) -> None:
                start.wait()
                try:
                    one.activate(name, names[0], "a" * 64)
                    outcomes.append(name)
                except Conflict:
                    outcomes.append("conflict")

            racers = [
                threading.Thread(target=race, args=pair)
                for pair in zip((store, other), names[1:], strict=True)
            ]
            for each in racers:
                each.start()
            for each in racers:
                each.join()
            assert sorted(outcomes)[1] == "conflict", outcomes
            found = active(store)
            assert found is not None
            assert found.id == sorted(outcomes)[0]


def test_two_first_activations_do_not_break_each_other(database: str) -> None:
    """For a new artifact both succeed one after the other, or one gets a conflict."""
    for number in range(10):
        artifact = f"{number}" * 64
        with Store(database) as one, Store(database) as other:
            start = threading.Barrier(2)
            errors: list[Exception] = []

            def add(
                store: Store,
                name: str,
                artifact: str = artifact,
                start: threading.Barrier = start,
                errors: list[Exception] = errors,
            ) -> None:
                start.wait()
                try:
                    store.add(replace(record(name), artifact=artifact), activate=True)
                except Exception as exc:  # noqa: BLE001 - looked at below
                    errors.append(exc)

            racers = [
                threading.Thread(target=add, args=pair)
                for pair in ((one, f"cal-{number}-1"), (other, f"cal-{number}-2"))
            ]
            for each in racers:
                each.start()
            for each in racers:
                each.join()
            assert all(isinstance(each, Conflict) for each in errors)
            assert sum(each.active for each in one.summaries()) == number + 1


def test_sqlite_has_its_durability_settings(sqlite_store: Store) -> None:
    """DELETE journal, FULL sync and foreign keys, on every connection that is used."""
    with sqlite_store.transaction() as session:
        connection = session.connection()
        read = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert read == ["delete", 2, 1]


def test_a_file_that_takes_no_writes_is_said_to_be_read_only(sqlite_store: Store) -> None:
    """As a standby of PostgreSQL is: an operator can tell it from an unreachable one."""
    with sqlite_store.transaction() as session:
        session.connection().exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly, match="read-only"):
        sqlite_store.add(record("cal-1"), activate=True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE calibrations SET arrays = CAST(replace(hex(arrays), '3F', '3E') AS BLOB)",
        "UPDATE calibrations SET arrays = substr(arrays, 1, 500)",
        "UPDATE calibrations SET document = replace(document, '0.1', '0.2')",
        "UPDATE calibrations SET document = replace(document, 'training_overlap', '')",
        "UPDATE calibrations SET artifact = 'b'",
        "UPDATE calibrations SET digest = 'b'",
    ],
)
def test_a_record_that_was_tampered_with_is_refused(
    sqlite_store: Store, file: Path, statement: str
) -> None:
    """Every part that a decision or a certificate rests on is under the digest."""
    sqlite_store.add(record("cal-1"), activate=True)
    with sqlite3.connect(file) as connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()
    with pytest.raises(StoreError, match="cal-1"):
        active(sqlite_store)
    with pytest.raises((StoreError, Conflict)):
        sqlite_store.activate("cal-1", None, "a" * 64)


def test_a_record_of_another_artifact_cannot_be_activated(store: Store) -> None:
    """Its scores are another router's."""
    store.add(record("cal-1"), activate=False)
    with pytest.raises(Conflict, match="another artifact"):
        store.activate("cal-1", None, "b" * 64)
    assert active(store) is None


@pytest.mark.parametrize(
    "url",
    ["sqlite:////no/such/folder/racer.db", "sqlite:///{here}", "sqlite:///{text}", "nonsense",
     "sqlite:///{here}/x/y.db", "postgresql://user:SECRET@127.0.0.1:1/db", "mystery://x",
     "postgresql://127.0.0.1:1/db?password=SECRET", "postgresql://user:SE@SECRET@127.0.0.1:1/db",
     "postgresql://user:SECRET@127.0.0.1:port/db"],
)  # fmt: skip
def test_a_store_that_cannot_be_opened_is_one_sentence(tmp_path: Path, url: str) -> None:
    """A folder, a text file, no such place, no such database: named without the password."""
    (tmp_path / "text").write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(SettingsError) as caught:
        Store(url.format(here=tmp_path, text=tmp_path / "text"))
    assert str(caught.value).startswith("store")
    assert "\n" not in str(caught.value)
    assert "SECRET" not in str(caught.value)


# Through the gateway --------------------------------------------------------------------------


def test_a_restart_keeps_the_active_record(serve: Serve, tmp_path: Path) -> None:
    """A second gateway on the same store decides with the same record at once."""
    first = serve(calibrated=False, folder=tmp_path)
    stored = [first.calibrate(100, alpha=alpha) for alpha in (0.1, 0.2, 0.3)]
    first.post(f"/calibrations/{stored[1]['id']}/activate", ADMIN_KEY)
    second = serve(calibrated=False, folder=tmp_path)
    ready = {"status": "ready", "calibration": stored[1]["id"]}
    assert second.ready() == ready | {"artifact": first.ready()["artifact"]}
    assert second.decided(TWO) == first.decided(TWO)
    assert history(second) == history(first)


def history(gateway: Gateway) -> list[dict[str, object]]:
    """Every kept record."""
    return gateway.get("/calibrations", ADMIN_KEY).json()["data"]


def test_smoothing_survives_a_restart(serve: Serve, tmp_path: Path) -> None:
    """The salt is kept: a query gets the set it got before."""
    first = serve(calibrated=False, folder=tmp_path)
    first.calibrate(100, smoothing="hash")
    second = serve(calibrated=False, folder=tmp_path)
    for query in (ONE, TWO):
        assert second.decided(query) == first.decided(query)


def test_an_overlap_stays_void_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    """A premise that never held is part of the record."""
    first = serve(calibrated=False, folder=tmp_path)
    first.calibrate(rows=labelled(TRAINED - 10, 40), allow_overlap=True)
    second = serve(calibrated=False, folder=tmp_path)
    assert second.route(ONE)["certificate"]["reasons"] == ["training_overlap"]


def test_another_artifact_needs_another_calibration(serve: Serve, tmp_path: Path) -> None:
    """The old router's record is not used, with the cure in /readyz; activating it fails."""
    first = serve(folder=tmp_path)
    old = first.ready()["calibration"]
    other = tmp_path / "other"
    train(labelled(0, 40), labelled(5_000, 40), other, encoder=CharNgramEncoder(), kind="knn")
    second = serve(calibrated=False, folder=tmp_path, artifact=other)
    (missing,) = second.ready()["missing"]
    assert old in missing["reason"]
    assert "POST /calibrate" in missing["reason"]
    assert second.route(ONE)["certificate"]["reasons"] == ["not_calibrated"]
    answer = second.post(f"/calibrations/{old}/activate", ADMIN_KEY)
    assert answer.status_code == 409
    assert "another artifact" in answer.json()["error"]["message"]
    second.calibrate(100)
    assert "missing" not in second.ready()


def test_a_store_that_breaks_while_serving_changes_nothing(serve: Serve, tmp_path: Path) -> None:
    """Calibrating fails with one error; what is in memory goes on serving."""
    gateway = serve(folder=tmp_path)
    before = gateway.decided(ONE)
    with sqlite3.connect(tmp_path / "racer.db") as connection:
        connection.execute("ALTER TABLE calibrations RENAME TO elsewhere")
    connection.close()
    rows = as_json(labelled(10_000, 40))
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert response.status_code == 500
    assert response.json()["error"]["message"].startswith("the store cannot be")
    assert "INSERT" not in response.text
    assert gateway.get("/calibrations", ADMIN_KEY).status_code == 500
    assert gateway.decided(ONE) == before


def test_a_damaged_active_record_is_not_used(serve: Serve, tmp_path: Path) -> None:
    """Nothing is routed on a record that cannot be trusted; new rows can still be uploaded."""
    damaged = serve(folder=tmp_path).ready()["calibration"]
    with sqlite3.connect(tmp_path / "racer.db") as connection:
        connection.execute("UPDATE calibrations SET digest = 'x'")
    connection.close()
    gateway = serve(calibrated=False, folder=tmp_path)
    (missing,) = gateway.ready()["missing"]
    assert damaged in missing["reason"]
    assert "POST /calibrate" in missing["reason"]
    assert gateway.route(ONE)["certificate"]["reasons"] == ["not_calibrated"]
    gateway.calibrate(100)
    assert gateway.route(ONE)["certificate"]["holds"]


@pytest.mark.parametrize("change", [{"parameters": {"temperature": 1}}, {"model": "another"}])
def test_candidates_that_are_served_otherwise_need_another_calibration(
    serve: Serve, pool: FakePool, tmp_path: Path, change: dict[str, object]
) -> None:
    """The labels were about other answers."""
    old = serve(folder=tmp_path).ready()["calibration"]
    changed = candidates(pool.url, poet=change)
    gateway = serve(calibrated=False, folder=tmp_path, candidates=changed)
    assert gateway.ready()["calibration"] is None
    assert gateway.post(f"/calibrations/{old}/activate", ADMIN_KEY).status_code == 409


def test_a_stuck_store_holds_up_no_other_work(sqlite_store: Store) -> None:
    """The store has its own threads. Fails when bodies are parsed on the same threads."""
    free = threading.Event()

    async def story() -> None:
        stuck = [asyncio.create_task(sqlite_store.run(free.wait, 60)) for _ in range(64)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                assert await asyncio.to_thread(int, "7") == 7
        finally:
            free.set()
        assert all(await asyncio.gather(*stuck))

    asyncio.run(story())


def test_a_closed_store_has_no_threads(database: str) -> None:
    """They end with it."""

    async def story() -> threading.Thread:
        with Store(database) as opened:
            return await opened.run(threading.current_thread)

    thread = asyncio.run(story())
    assert thread.name.startswith("racer-store")
    assert not thread.is_alive()


def test_a_record_of_replaced_rows_takes_over_the_alarms_of_the_others(store: Store) -> None:
    """Their rows are the same; the alarms of the replaced application begin again."""
    first = record("first")
    replaced = {"application": "bot", "calibration_id": "first"}
    second = replace(record("second"), evidence={**first.evidence, "replaced": replaced})
    store.add(first, activate=True)
    with store.transaction() as session:
        for name in ("bot", "search"):
            watch = WatchRow(
                calibration_id="first",
                application=name,
                since="then",
                state="{}",
                raised='["risk"]',
            )
            session.add(watch)
    store.add(second, activate=False)
    assert store.shared_state("a" * 64).alarms.keys() == {"bot", "search"}
    store.activate("second", None, "a" * 64)
    state = store.shared_state("a" * 64)
    assert (state.active_id, {*state.alarms}) == ("second", {"search"})
    assert (state.alarms["search"].since, state.alarms["search"].raised) == ("then", ("risk",))
