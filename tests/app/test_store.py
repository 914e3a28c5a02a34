"""Store of calibrations: content and durability."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.errors import (
    Conflict,
    NotFound,
    SettingsError,
    StoreDamaged,
    StoreError,
    StoreFileDamaged,
    StoreReadOnly,
)
from app.store import Store
from app.store.answer_calibrations import KEPT, AnswerCalibrationStore
from app.store.calibration_record import CalibrationRecord
from app.store.tables import AnswerCalibrationRow, DecisionRow, WatchRow
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import RiskTarget, Score
from tests.kit.gateway import ADMIN_KEY, ONE, TRAINED, TWO, Serve, as_json, candidates, labelled
from tests.kit.same_answer import calibration, classes
from tests.kit.stores import PARTS, record
from tests.kit.upstream import FakePool
from tests.kit.waiting import until


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


def same(one: Any, other: Any, fields: str) -> None:
    """These fields are equal, arrays to the last bit."""
    for field in fields.split():
        mine, theirs = getattr(one, field), getattr(other, field)
        assert type(mine) is type(theirs), field
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes()), field
        elif isinstance(mine, PatternModel):
            same(mine, theirs, "patterns frequencies neighbours prior temperature")
        else:
            assert mine == theirs, field


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        *((parts, {}) for parts in PARTS),
        ("everything", {"alpha": 1 / 3, "r": 2, "score": Score.PROB, "null_threshold": 0.1 + 0.2}),
        (
            None,
            {
                "is_alpha_fixed": False,
                "risk_target": RiskTarget.PAPER,
                "smoothing_salt": b"\x00salt\xff",
                "delta": 0.05,
            },
        ),
    ],
    ids=str,
)
def test_a_record_comes_back_exactly(
    store: Store, database: str, parts: str | None, options: dict[str, Any]
) -> None:
    """The same bits in another process, and so every score offered has the same thresholds."""
    given = PARTS[parts] if parts else {}
    bounds = {"max_weight": 3.0 if "weights" in given else None}
    bounds |= {"delta": 0.2} if "judged" in given else {}
    stored = record("cal-1", parts=given, **bounds | options)
    store.add(stored, activate=True)
    with Store(database) as another:
        found = active(another)
    assert found is not None
    same(found, stored, "id created_at artifact evidence void_reasons")
    ours, theirs = found.calibration, stored.calibration
    same(ours, theirs, "pool fingerprints options prices groups scores labels neighbours")
    same(ours, theirs, "projections quality weights unlabelled judged patterns offered")
    for score in theirs.offered:
        for alpha in (0.05, 0.1, 0.5):
            assert ours.lambda_hat(alpha, score) == theirs.lambda_hat(alpha, score)


def test_no_prompt_is_kept(serve: Serve, tmp_path: Path) -> None:
    """The file holds fingerprints, not queries."""
    serve(folder=tmp_path)
    data = (tmp_path / "racer.db").read_bytes()
    assert b"adder" in data  # the file really is the one
    assert b"plus" not in data


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


def test_a_conflict_keeps_nothing(store: Store) -> None:
    """Compare-and-set fails as a whole; an empty id expects that none is active."""
    assert active(store) is None
    for unknown in (store.summary, lambda name: store.activate(name, None, "a" * 64)):
        with pytest.raises(NotFound):
            unknown("cal-1")
    with pytest.raises(Conflict):
        store.add(record("cal-0"), activate=True, expected_active_id="cal-9")
    assert store.summaries() == []
    store.add(record("cal-1"), activate=True, expected_active_id="")
    for expected in ("", "cal-0"):
        with pytest.raises(Conflict):
            store.add(record("cal-2"), activate=True, expected_active_id=expected)
        with pytest.raises(Conflict):
            store.activate("cal-1", expected, "a" * 64)
    assert [(each.id, each.active) for each in store.summaries()] == [("cal-1", True)]


def together(*acts: Callable[[], object]) -> list[Exception | None]:
    """Do these at the same moment; returns the error of each."""
    start = threading.Barrier(len(acts))

    def do(act: Callable[[], object]) -> Exception | None:
        start.wait()
        try:
            act()
        except Exception as exc:  # noqa: BLE001 - looked at by the test
            return exc
        return None

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(do, acts))


def test_of_two_activations_that_expect_the_same_one_wins(store: Store, database: str) -> None:
    """Two processes' worth of stores race twenty times; exactly one gets through each time."""
    names = [f"cal-{number}" for number in range(3)]
    for name in names:
        store.add(record(name), activate=name == names[0])
    with Store(database) as other:
        for _ in range(20):
            store.activate(names[0], None, "a" * 64)
            errors = together(
                partial(store.activate, names[1], names[0], "a" * 64),
                partial(other.activate, names[2], names[0], "a" * 64),
            )
            (winner,) = [
                name for name, error in zip(names[1:], errors, strict=True) if error is None
            ]
            assert sum(isinstance(error, Conflict) for error in errors) == 1
            assert store.shared_state("a" * 64).active_id == winner


def test_two_first_activations_do_not_break_each_other(database: str) -> None:
    """For a new artifact both succeed one after the other, or one gets a conflict."""
    for number in range(10):
        with Store(database) as one, Store(database) as other:
            first, second = (
                replace(record(f"cal-{number}-{place}"), artifact=f"{number}" * 64)
                for place in (1, 2)
            )
            errors = together(
                partial(one.add, first, activate=True), partial(other.add, second, activate=True)
            )
            assert all(error is None or isinstance(error, Conflict) for error in errors)
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


PAGE: int = 4096  # bytes, as SQLite writes them


def overwrite(file: Path, page: int, content: bytes) -> None:
    """Replace a page of a database, the first of which is 0."""
    whole = bytearray(file.read_bytes())
    whole[page * PAGE : (page + 1) * PAGE] = content
    file.write_bytes(whole)


@pytest.mark.parametrize("byte", [b"\xff", b"\0"])
def test_a_damaged_page_is_a_damaged_file_or_changes_nothing(file: Path, byte: bytes) -> None:
    """Whichever page it is: no other error, and what was found damaged is written no more."""
    url = f"sqlite:///{file}"
    with Store(url) as opened:
        opened.add(record("cal-1"), activate=True)
    good, found = file.read_bytes(), list[str]()
    for page in range(len(good) // PAGE):
        file.write_bytes(good)
        overwrite(file, page, byte * PAGE)
        with contextlib.ExitStack() as stack:
            try:
                opened = stack.enter_context(Store(url))
            except SettingsError as exc:
                found.append(str(exc))
                continue
            with contextlib.suppress(StoreDamaged, StoreFileDamaged):  # the record, or the file
                active(opened)
            if not opened.is_damaged:
                continue
            damaged = file.read_bytes()
            with pytest.raises(StoreFileDamaged) as caught:
                opened.add(record("cal-2"), activate=True)
            assert file.read_bytes() == damaged
            found.append(str(caught.value))
    assert len(found) > 3
    assert all("restore a backup" in each for each in found)


# Through the gateway --------------------------------------------------------------------------


def test_a_start_on_a_damaged_file_asks_for_a_backup_and_takes_no_upload(
    serve: Serve, tmp_path: Path
) -> None:
    """Readiness knows, the fallback answers, and new rows do not go where old ones were lost."""
    file = tmp_path / "racer.db"
    serve(folder=tmp_path)
    with sqlite3.connect(file) as connection:
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'active_calibrations'"
        ((page,),) = connection.execute(root)
    connection.close()
    overwrite(file, page - 1, b"\xff" * PAGE)
    gateway = serve(calibrated=False, folder=tmp_path)
    ready = gateway.ready()
    (missing,) = ready["missing"]
    assert "restore a backup" in missing["reason"]
    assert "upload" not in str(missing)
    assert ready["degraded"] == ["store_damaged"]
    rows = as_json(labelled(10_000, 40))
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "store_damaged"
    assert response.headers["x-should-retry"] == "false"
    assert gateway.route(ONE)["certificate"]["reasons"] == ["not_calibrated"]


def test_a_file_that_is_damaged_while_serving_is_known_to_readiness(
    serve: Serve, tmp_path: Path
) -> None:
    """The calibration in memory decides as before."""
    gateway = serve(folder=tmp_path)
    before = gateway.decided(ONE)
    overwrite(tmp_path / "racer.db", 0, b"\xff" * PAGE)
    assert until(lambda: gateway.degraded() == ["store_damaged"], 30)
    assert gateway.decided(ONE) == before


@pytest.mark.parametrize(
    "options",
    [{}, {"rows": labelled(TRAINED - 10, 40), "allow_overlap": True}],
    ids=["plain", "overlapping"],
)
def test_a_restart_keeps_the_active_record(
    serve: Serve, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A second gateway on the same store decides alike at once, void reasons and salt included."""
    first = serve(calibrated=False, folder=tmp_path)
    active_id = first.calibrate(100, alpha=0.2, **options)["id"]
    first.calibrate(100, alpha=0.3, activate=False)
    second = serve(calibrated=False, folder=tmp_path)
    assert second.ready() == first.ready()
    assert second.ready()["calibration"] == active_id
    for query in (ONE, TWO):
        assert second.decided(query) == first.decided(query)
    kept, found = (each.get("/calibrations", ADMIN_KEY).json() for each in (first, second))
    assert found == kept


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


@pytest.mark.parametrize("change", ["digest = 'x'", "document = substr(document, 1, 50)"])
def test_a_damaged_active_record_is_not_used(serve: Serve, tmp_path: Path, change: str) -> None:
    """Nothing is routed on it; the others are listed, and new rows can still be uploaded."""
    gateway = serve(folder=tmp_path)
    other, damaged = gateway.ready()["calibration"], gateway.calibrate(100)["id"]
    with sqlite3.connect(tmp_path / "racer.db") as connection:
        connection.execute(f"UPDATE calibrations SET {change} WHERE id = ?", (damaged,))
    connection.close()
    gateway = serve(calibrated=False, folder=tmp_path)
    (missing,) = gateway.ready()["missing"]
    assert damaged in missing["reason"]
    assert "POST /calibrate" in missing["reason"]
    assert gateway.route(ONE)["certificate"]["reasons"] == ["not_calibrated"]
    listed = [each["id"] for each in gateway.get("/calibrations", ADMIN_KEY).json()["data"]]
    assert listed == ([damaged] if change.startswith("digest") else []) + [other]
    one = gateway.get(f"/calibrations/{damaged}", ADMIN_KEY)
    assert (one.status_code, damaged in one.text) == (200 if damaged in listed else 500, True)
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


# Calibrations of same_answer -------------------------------------------------------------------


def add(store: Store, number: int, *, setup: str = "one", activate: bool = False) -> int:
    """Keep the calibration of a day; its number among those of the application."""
    made = replace(
        calibration(classes(0, 20), classes(20, 30)),
        id=f"answers-{number}",
        answer_setup=setup,
        created_at=f"2026-01-01T{number:06}",
    )
    return AnswerCalibrationStore(store).add(made, activate=activate).evidence["ordinal"]


def test_old_calibrations_that_nothing_needs_are_deleted(store: Store) -> None:
    """Red when what decides, or explains a decision, is deleted, or a level is spent twice."""
    add(store, 0, setup="another")
    add(store, 1, activate=True)
    add(store, 2)
    with store.transaction() as session:
        session.add(
            DecisionRow(
                id="chatcmpl-1", created_at="2026", calibration_id="answers-2", key="",
                selected="[]", null_selected=False, ordinary=True, shadow=False, judged=False,
                watched=False, document="{}", application="",
            )
        )  # fmt: skip
    ordinals = [add(store, number) for number in range(3, KEPT + 10)]
    assert ordinals == list(range(3, KEPT + 10))  # another setup's count, too
    kept = AnswerCalibrationStore(store)
    numbers = [*range(KEPT + 9, 9, -1), 2, 1, 0]
    assert [each.id for each in kept.summaries("one")] == [f"answers-{each}" for each in numbers]
    assert kept.active("one")[""][0] == "answers-1"
    with pytest.raises(NotFound, match="answers-3"):
        kept.record("answers-3")


def test_ids_of_rows_are_beside_the_rows(store: Store) -> None:
    """Lists of records read no ids."""
    add(store, 1)
    assert AnswerCalibrationStore(store).record("answers-1").rows.fingerprints == (
        classes(20, 30).fingerprints
    )
    with store.transaction() as session:
        row = session.scalars(select(AnswerCalibrationRow)).one()
        assert "ids" not in json.loads(row.document)


def test_rows_keep_verdicts_labels_and_comparisons(store: Store) -> None:
    """Each of them is optional."""
    add(store, 1)
    plain = AnswerCalibrationStore(store).record("answers-1").rows
    assert (plain.verdicts, plain.labels, plain.equal) == (None, None, None)
    part = classes(0, 20)
    given = {
        "verdicts": (part.classes % 6).astype(np.int8),
        "labels": part.classes == 0,
        "equal": part.same,
    }
    made = replace(calibration(replace(part, **given), replace(part, **given)), id="answers-2")
    AnswerCalibrationStore(store).add(made, activate=False)
    kept = AnswerCalibrationStore(store).record("answers-2")
    for found in (kept.fitting, kept.rows):
        np.testing.assert_array_equal(found.verdicts, given["verdicts"])
        np.testing.assert_array_equal(found.labels, given["labels"])
        np.testing.assert_array_equal(found.equal, given["equal"])
