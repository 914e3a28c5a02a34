"""`racer backup` and `racer restore`: what is carried from one store to another, what refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from sqlalchemy import select

from app import settings
from app.calibrations.seen_rows import SeenRows
from app.errors import Conflict, SettingsError, StoreError
from app.settings.access import Access
from app.store import KeyPurpose, Store, answer_calibrations, now
from app.store.answer_calibrations import AnswerCalibrationStore
from app.store.backup import calibrations
from app.store.backup import file as backup_file
from app.store.backup.file import Backup
from app.store.calibration_record import CalibrationRecord, Population
from app.store.engine import open_engine
from app.store.tables import ActiveRow, AnswerCalibrationRow, CalibrationRow, WatchRow
from racer_core.calibration.shadow import is_sampled
from racer_core.errors import InputError
from tests.kit.accounts import configured_key
from tests.kit.databases import Postgres, before_statements
from tests.kit.gateway import ENVIRONMENT, TWO, Command, Serve, configure
from tests.kit.same_answer import calibration, classes
from tests.kit.stores import PARTS, record, set_version
from tests.kit.waiting import until

TABLES = (CalibrationRow, ActiveRow, WatchRow, AnswerCalibrationRow)
OTHER = "b" * 64  # another artifact than that of `record`


def rows(store: Store) -> dict[str, set[tuple[Any, ...]]]:
    """All that a backup is about, to the last byte."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    with store.transaction() as session:
        for table in TABLES:
            columns = table.__table__.columns
            found[table.__tablename__] = {tuple(row) for row in session.execute(select(*columns))}
    return found


def watch(store: Store, name: str, raised: str = '["risk"]', application: str = "") -> None:
    """Keep alarms of a calibration, or of its application."""
    with store.transaction() as session:
        row = {"since": now(), "state": '{"ü": [1e300]}', "raised": raised}
        session.merge(WatchRow(calibration_id=name, application=application, **row))


def fill(store: Store) -> None:
    """Three calibrations of one artifact, one of another; two are active, three are watched.

    One of these has alarms by application.
    """
    later = Population(calibration=record("x", 3).calibration, later=True, text="conversation")
    store.add(record("cal-1"), activate=True)
    everything = record("cal-2", 2, PARTS["everything"], smoothing_salt=b"\x00salt\xff")
    store.add(replace(everything, populations=(*everything.populations, later)), activate=True)
    store.add(record("cal-3", 3), activate=False)
    store.add(replace(record("cal-4", 4), artifact=OTHER), activate=False)
    store.activate("cal-4", None, OTHER)  # chosen by its figures
    watch(store, "cal-1")
    watch(store, "cal-2", raised="[]")
    for application in ("bot", "größe"):
        watch(store, "cal-3", application=application)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the backup of a test is."""
    return tmp_path / "racer-backup.zip"


@pytest.fixture
def saved(store: Store, file: Path) -> Path:
    """A backup of a store that was filled."""
    fill(store)
    calibrations.save(store, (), file)
    return file


def restored(store: Store, file: Path, *, activate: bool = False) -> calibrations.RestoreResult:
    """Restore a backup."""
    with Backup(file) as opened:
        return calibrations.restore(store, opened, activate=activate)


KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.scale)]


@pytest.fixture(params=KINDS)
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A second empty store, of every kind beside every kind of the first."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'another.db'}"
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create()
    with Store(url) as opened:
        yield opened


# What is carried ------------------------------------------------------------------------------


def test_every_byte_comes_back_in_any_kind_of_store(
    store: Store, another: Store, saved: Path
) -> None:
    """Calibrations with their digests, which are active, alarms: SQLite and PostgreSQL alike."""
    done = restored(another, saved)
    assert done.added == ["cal-1", "cal-2", "cal-3", "cal-4"]
    assert sorted(done.activated) == ["cal-2", "cal-4"]
    assert [another.shared_state(each).is_chosen for each in ("a" * 64, OTHER)] == [False, True]
    assert rows(another) == rows(store)
    for name in done.added:
        another.record(name)  # its digest is verified
    again = restored(another, saved, activate=True)
    assert (again.added, again.activated, again.left, len(again.there)) == ([], [], [], 4)
    assert rows(another) == rows(store)


def test_a_restored_store_has_other_keys(store: Store, another: Store, saved: Path) -> None:
    """They are secrets: rows of earlier draws are refused, and what was shown is forgotten."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(2**63, size=50, dtype=np.uint64)
    SeenRows(store).add("digest", hashes, [])
    assert SeenRows(store).fixed_terms(hashes) == []
    keys = {purpose: store.key(purpose) for purpose in KeyPurpose}
    restored(another, saved)
    assert SeenRows(another).fixed_terms(hashes) is None
    assert not any(another.key(purpose) == key for purpose, key in keys.items())
    samples = KeyPurpose.SAMPLES
    drawn = [each for each in range(20_000) if is_sampled(keys[samples], b"%d" % each, 0.01)]
    again = [each for each in drawn if is_sampled(another.key(samples), b"%d" % each, 0.01)]
    assert len(drawn) > 100
    assert len(again) < len(drawn) / 5  # false alarm below 1e-9


def test_restoring_keeps_the_calibrations_of_the_store(another: Store, saved: Path) -> None:
    """The calibration that decides and its alarms, unless the backup's are to be activated."""
    another.add(record("cal-9", 9), activate=True)
    watch(another, "cal-9", raised='["set_size"]')
    done = restored(another, saved)
    assert (done.activated, done.left) == (["cal-4"], ["cal-2"])
    assert another.shared_state("a" * 64).active_id == "cal-9"
    watch(another, "cal-1", raised='["mean_score"]')
    before = rows(another)
    restored(another, saved)
    assert rows(another) == before
    done = restored(another, saved, activate=True)
    assert (done.activated, done.left) == (["cal-2"], [])
    assert another.shared_state("a" * 64).active_id == "cal-2"
    assert another.shared_state("a" * 64).is_chosen, "an operator put it in the place of cal-9"
    assert another.shared_state(OTHER).active_id == "cal-4"


def test_one_with_other_content_is_refused_and_nothing_is_changed(
    another: Store, saved: Path
) -> None:
    """The others are not added either: red when each calibration is a transaction."""
    another.add(record("cal-3", 33), activate=False)
    before = rows(another)
    with pytest.raises(Conflict, match="cal-3 is there with other content"):
        restored(another, saved, activate=True)
    assert rows(another) == before


def test_a_damaged_one_is_not_taken_for_the_same(saved: Path, tmp_path: Path) -> None:
    """Its digest says so, its content does not."""
    path = tmp_path / "another.db"
    with Store(f"sqlite:///{path}") as another:
        restored(another, saved)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE calibrations SET document = '{}' WHERE id = 'cal-3'")
        with pytest.raises(Conflict, match="cal-3"):
            restored(another, saved)


def answers(store: Store, name: str, *, setup: str = "one", activate: bool = True) -> None:
    """Keep a calibration of `same_answer`."""
    made = calibration(classes(0, 20), classes(20, 30), salt=name.encode())
    made = replace(made, id=name, answer_setup=setup, created_at="2026-01-01")
    made = replace(made, evidence={**made.evidence, "until": "2026-01-01"})
    AnswerCalibrationStore(store).add(made, activate=activate)


def answers_active(store: Store, setup: str) -> str | None:
    """The calibration of `same_answer` that decides where no application is configured."""
    found = AnswerCalibrationStore(store).active(setup).get("")
    return found and found[0]


def test_calibrations_of_same_answer_come_back(store: Store, another: Store, file: Path) -> None:
    """With rows, salts, alarms and history; each decides under its own setup alone."""
    for name in ("answers-1", "answers-2"):
        answers(store, name)
    answers(store, "answers-3", setup="two")
    answers(store, "answers-4", activate=False)
    AnswerCalibrationStore(store).raise_alarm("answers-2", "2026-01-01")
    counts = calibrations.save(store, (), file).manifest.counts
    assert (counts.calibrations, counts.answer_calibrations, counts.active) == (0, 4, 2)
    done = restored(another, file)
    assert (len(done.added), done.activated) == (4, ["answers-2", "answers-3"])
    assert rows(another) == rows(store)
    kept = AnswerCalibrationStore(another)
    decide = [answers_active(another, setup) for setup in ("one", "two", "three")]
    assert decide == ["answers-2", "answers-3", None]
    assert kept.record("answers-2").salt == b"answers-2"
    assert len(restored(another, file, activate=True).there) == 4
    assert rows(another) == rows(store)
    rewritten(file, lambda members: members.update({"answer_calibrations/answers-2": b"x"}))
    with pytest.raises(InputError, match="answers-2 is not what the manifest says"):
        restored(another, file)


def test_calibrations_of_same_answer_that_decide_stay(
    store: Store, another: Store, file: Path
) -> None:
    """Unless the backup's are wanted; red when a later time of activation lets one decide."""
    kept = AnswerCalibrationStore(another)
    for name in ("answers-1", "answers-9"):
        answers(another, name)
    for name in ("answers-1", "answers-2"):
        answers(store, name)
    AnswerCalibrationStore(store).raise_alarm("answers-1", "2026-01-02")
    calibrations.save(store, (), file)
    done = restored(another, file)
    assert (done.there, done.activated, done.left) == (["answers-1"], [], ["answers-2"])
    assert answers_active(another, "one") == "answers-9"
    assert kept.record("answers-1").evidence["alarm_at"] == "2026-01-02"
    done = restored(another, file, activate=True)
    assert (done.activated, answers_active(another, "one")) == (["answers-2"], "answers-2")
    assert kept.record("answers-2").is_chosen
    with another.transaction() as session:
        session.get_one(AnswerCalibrationRow, "answers-1").application = "bot"
    with pytest.raises(Conflict, match="answers-1 is there with other content"):
        restored(another, file)


def test_a_backup_of_same_answer_adds_no_calibration_that_would_be_deleted(
    store: Store, another: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when restoring lets the records of an application grow."""
    answers(another, "answers-9")
    for name in ("answers-1", "answers-2", "answers-3"):
        answers(store, name)
    calibrations.save(store, (), file)
    monkeypatch.setattr(answer_calibrations, "KEPT", 2)
    assert restored(another, file).added == ["answers-3"]
    there = AnswerCalibrationStore(another).summaries("one")
    assert {each.id for each in there} == {"answers-3", "answers-9"}


# What is damaged ------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """The same zip with other members."""
    with ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    change(members)
    with ZipFile(path, "w") as opened:
        for name, data in members.items():
            opened.writestr(name, data)


def head_changed(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """Another head of the last calibration, with its digest in the manifest made to fit."""

    def change(members: dict[str, bytes]) -> None:
        line, _, arrays = members["calibrations/cal-4"].partition(b"\n")
        data = json.dumps(json.loads(line) | changes).encode() + b"\n" + arrays
        members["calibrations/cal-4"] = data
        listed = json.loads(members["manifest.json"])["calibrations"]
        listed[-1]["sha256"] = hashlib.sha256(data).hexdigest()
        manifest_changed(calibrations=listed)(members)

    return change


def manifest_changed(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """Another manifest."""

    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"]) | changes
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def member_changed(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    """Other bytes in a member; the zip's own checksums fit."""

    def change(members: dict[str, bytes]) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return change


CAL_3, CAL_4, MANIFEST = "calibrations/cal-3", "calibrations/cal-4", "manifest.json"
DAMAGES: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "arrays": (
        lambda members: members.update({CAL_4: members[CAL_4][:-1] + b"?"}),
        "cal-4 is not what the manifest says",
    ),
    "active": (
        member_changed(CAL_3, b'"active":false', b'"active":true'),
        "cal-3 is not what the manifest says",
    ),
    "document": (head_changed(document="{}"), "digest of calibration cal-4"),
    "artifact": (head_changed(artifact="a" * 64), "digest of calibration cal-4"),
    "another's": (head_changed(id="cal-5"), "digest of calibration cal-4"),
    "no head": (head_changed(digest=None), "cal-4 cannot be read"),
    "missing": (lambda members: members.pop(CAL_4), "cal-4 cannot be read"),
    "no manifest": (lambda members: members.pop(MANIFEST), "manifest.json cannot be read"),
    "manifest": (manifest_changed(counts=None), "its manifest: counts"),
    "no object": (lambda members: members.update({MANIFEST: b"[]"}), "zip is damaged: its m"),
    "newer": (manifest_changed(format=2, program="9.0"), "with racer 9.0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused_before_anything_is_written(
    saved: Path, tmp_path: Path, damage: str
) -> None:
    """Damage of the last calibration, too: the locked store is not read."""
    change, message = DAMAGES[damage]
    rewritten(saved, change)
    path = tmp_path / "locked.db"
    with Store(f"sqlite:///{path}") as locked, closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=message):
            restored(locked, saved)
        connection.rollback()
        assert rows(locked) == {table.__tablename__: set() for table in TABLES}


def test_any_byte_that_is_changed_is_noticed_or_changes_nothing(saved: Path) -> None:
    """Two hundred of them, anywhere in the file; a file that was cut off is always refused."""
    data = saved.read_bytes()
    with Backup(saved) as opened:
        wanted = [stored.row.digest for stored in opened.calibrations()]
    for share in (0.0, 0.3, 0.999):
        saved.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(InputError, match=r"racer-backup\.zip"):
            Backup(saved)
    refused = 0
    for place in np.random.default_rng(0).integers(0, len(data), 200):
        saved.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            with Backup(saved) as opened:
                assert [stored.row.digest for stored in opened.calibrations()] == wanted
        except InputError:
            refused += 1
    assert refused > 100


def test_a_calibration_damaged_in_the_store_is_left_out_and_reported(
    serve: Serve, racer: Command, tmp_path: Path, file: Path
) -> None:
    """Exit code 1 and its name; all the others are in the backup."""
    gateway = serve(folder=tmp_path)
    bad, good = gateway.calibrate(60)["id"], gateway.calibrate(60)["id"]
    with closing(sqlite3.connect(tmp_path / "racer.db")) as connection, connection:
        connection.execute("UPDATE calibrations SET document = '{}' WHERE id = ?", (bad,))
    code, output, error = racer("backup", file, "--config", tmp_path / "racer.yaml", "--json")
    assert code == 1
    assert bad in error
    assert json.loads(output)["calibrations"] == 2
    with Backup(file) as opened:
        assert [each.row.id for each in opened.calibrations() if each.active] == [good]


# The file -------------------------------------------------------------------------------------


def test_a_backup_replaces_the_last_and_is_readable_by_its_owner_only(
    saved: Path, store: Store
) -> None:
    """Mode 0600, even if the previous backup was readable by all users."""
    saved.chmod(0o644)
    store.add(record("cal-5", 5), activate=False)
    calibrations.save(store, (), saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    with Backup(saved) as opened:
        assert len(opened.manifest.calibrations) == 5


def test_a_backup_that_fails_keeps_the_previous_file(
    saved: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it."""
    before, beside = saved.read_bytes(), set(saved.parent.iterdir())
    add = backup_file.Writer.add

    def fail(self: backup_file.Writer, stored: backup_file.StoredCalibration) -> None:
        if stored.row.id == "cal-3":
            raise StoreError("the power failed")
        add(self, stored)

    monkeypatch.setattr(backup_file.Writer, "add", fail)
    with pytest.raises(StoreError, match="power"):
        calibrations.save(store, (), saved)
    assert saved.read_bytes() == before
    assert set(saved.parent.iterdir()) == beside


def test_a_place_that_cannot_be_written_is_one_sentence(store: Store, tmp_path: Path) -> None:
    """No such folder; a folder itself."""
    for path in (tmp_path / "no" / "backup.zip", tmp_path):
        with pytest.raises(SettingsError, match="cannot be written"):
            calibrations.save(store, (), path)


def large(name: str) -> CalibrationRecord:
    """A record of 50,000 rows: 2.2 MB."""
    rng = np.random.default_rng(len(name))
    small = record(name)
    return replace(
        small,
        populations=(
            Population(
                calibration=replace(
                    small.calibration,
                    fingerprints=tuple(rng.bytes(16) for _ in range(50_000)),
                    scores=rng.random((50_000, 3)),
                    labels=rng.random((50_000, 3)) < 0.5,
                )
            ),
        ),
    )


def test_large_calibrations_are_never_in_memory_together(
    store: Store, another: Store, file: Path
) -> None:
    """Of twenty, 40 MB, at most a few at a time; red when a session or a list keeps them."""
    first = large("cal-0")
    size = len(first.encoded()[1])
    for number in range(20):
        store.add(replace(first, id=f"cal-{number}"), activate=number == 19)
    tracemalloc.start()
    try:
        calibrations.save(store, (), file)
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        restored(another, file)
        restoring = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 8 * size
    assert restoring < 8 * size
    assert another.shared_state("a" * 64).active_id == "cal-19"


# While it is used -----------------------------------------------------------------------------


def test_a_backup_is_of_one_moment_while_calibrations_change(
    store: Store, database: str, file: Path
) -> None:
    """Before each look at the store another gateway activates a new one: one is active, and there.

    Red when it is looked up what is active after what is there.
    """
    store.add(record("cal-0"), activate=True)
    store.add(record("cal-00"), activate=False)
    names = (f"cal-{number}" for number in itertools.count(1))
    with Store(database) as another:

        def activate_another(_: str) -> None:
            another.add(record(next(names)), activate=True)

        with before_statements(database, activate_another):
            calibrations.save(store, (), file)
    with Backup(file) as opened:
        assert [each.row.id for each in opened.calibrations() if each.active] == ["cal-1"]
        assert opened.manifest.counts.calibrations == 4  # two, and one before each of two looks


def test_a_gateway_on_what_was_restored_decides_as_the_one_that_was_saved(
    serve: Serve, racer: Command, tmp_path: Path, file: Path
) -> None:
    """Saved while it runs, restored elsewhere: the same set by the same calibration."""
    gateway = serve(folder=tmp_path / "one")
    code, output, error = racer("backup", file, "--config", tmp_path / "one/racer.yaml", "--json")
    assert code == 0, error
    assert json.loads(output)["calibrations"] == json.loads(output)["active"] == 1
    second = tmp_path / "two"
    configure(second, Path(str(gateway.settings.artifact)), "http://127.0.0.1:1/v1")
    code, output, error = racer("restore", file, "--config", second / "racer.yaml", "--json")
    assert code == 0, error
    result = json.loads(output)
    assert (result["added"], len(result["activated"]), result["keys lacking"]) == (1, 1, [])
    other = serve(calibrated=False, folder=second)
    assert other.ready() == gateway.ready()
    assert other.decided(TWO) == gateway.decided(TWO)


def test_a_running_gateway_follows_what_is_restored_into_its_store(
    serve: Serve, racer: Command, tmp_path: Path, file: Path
) -> None:
    """``--activate`` is an activation like any other."""
    gateway = serve(folder=tmp_path)
    config = tmp_path / "racer.yaml"
    assert racer("backup", file, "--config", config)[0] == 0
    first, second = gateway.ready()["calibration"], gateway.calibrate(100)["id"]
    assert racer("restore", file, "--config", config)[0] == 0
    assert gateway.ready()["calibration"] == second
    assert racer("restore", file, "--config", config, "--activate")[0] == 0
    assert until(lambda: gateway.ready()["calibration"] == first, 30)


def test_a_database_of_another_version_is_refused_as_by_a_start(
    database: str, file: Path, racer: Command, tmp_path: Path, artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By both commands, with the sentence of ``racer serve``; no file is made."""
    engine = open_engine(database)
    set_version(engine, "0013")
    engine.dispose()
    with pytest.raises(SettingsError) as start:
        Store(database)
    assert "give this one an empty database" in str(start.value)
    monkeypatch.setenv("RACER_STORE_URL", database)
    config = configure(tmp_path / "config", artifact, "http://127.0.0.1:1/v1")
    assert racer("backup", file, "--config", config) == (1, "", f"racer: {start.value}\n")
    assert not file.exists()
    with Store(f"sqlite:///{tmp_path / 'newest.db'}") as store:
        calibrations.save(store, (), file)
    assert racer("restore", file, "--config", config) == (1, "", f"racer: {start.value}\n")


def test_a_store_that_is_not_there_has_no_backup(
    file: Path, racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """Red when a path that is misspelt becomes an empty store, and a backup of nothing."""
    store = tmp_path / "misspelt.db"
    changes: dict[str, Any] = {"store": f"sqlite:///{store}"}
    config = configure(tmp_path / "config", artifact, "http://127.0.0.1:1/v1", **changes)
    code, _, error = racer("backup", file, "--config", config)
    assert (code, "misspelt.db does not exist: check `store`" in error) == (2, True)
    assert (store.exists(), file.exists()) == (False, False)


# Keys ------------------------------------------------------------------------------------------


FILE = """\
# Our gateway.
schema_version: 1
candidates:
  - name: adder
    base_url: http://127.0.0.1:1/v1  # the small one

access:   # who may
  hosts: [gateway.example]
  keys:   # one a team
    # the shop
    - name: shop  # since May
      hash: "sha256:00000000000000000000000000000001:{zeros}"
    # the team
    - {{name: team, hash: "sha256:00000000000000000000000000000002:{zeros}"}}

# Limits of the machine.
limits:
  queue: 12
# the end
""".format(zeros="0" * 64)


def key(name: str, salt: int, **more: Any) -> dict[str, Any]:
    """A key of a configuration."""
    return {"name": name, "hash": f"sha256:{salt:032x}:{'0' * 64}", **more}


def with_keys(path: Path, keys: list[dict[str, Any]], file: Path) -> None:
    """A backup of a gateway that had these keys."""
    with Store(f"sqlite:///{path.parent / 'saved.db'}") as store:
        store.add(record("cal-1"), activate=True)
        calibrations.save(store, Access.model_validate({"keys": keys}).keys, file)


LIMITED = key(
    "web", 3, role="admin", requests_per_minute=60, max_alpha=0.2, group="ü", candidates=["adder"]
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That configuration."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "racer.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_keys_are_reported_and_the_configuration_is_left_alone(
    config: Path, file: Path, racer: Command
) -> None:
    """Those that it lacks, by name: one that is not there, and one with another hash."""
    with_keys(config, [key("shop", 1), LIMITED, key("team", 9)], file)
    code, output, error = racer("restore", file, "--config", config, "--json")
    assert code == 0, error
    assert json.loads(output)["keys lacking"] == ["web", "team"]
    assert config.read_text(encoding="utf-8") == FILE


def test_keys_are_added_and_every_other_line_stays(
    config: Path, file: Path, racer: Command
) -> None:
    """To the last character: comments stay above what they are about."""
    with_keys(config, [key("shop", 1), LIMITED, key("mobile", 4)], file)
    code, output, error = racer("restore", file, "--config", config, "--keys", "--json")
    assert code == 0, error
    assert json.loads(output)["keys added"] == ["web", "mobile"]
    lines = config.read_text(encoding="utf-8").splitlines()
    place = lines.index("  keys:   # one a team")
    added = lines[place + 1 : place + 3]
    assert [*lines[: place + 1], *lines[place + 3 :]] == FILE.splitlines()
    assert all(line.startswith('    - {"name": ') for line in added)
    known = {each.name: each for each in settings.load(config)[0].access.keys}
    assert set(known) == {"web", "mobile", "shop", "team"}
    assert known["web"].model_dump(mode="json", exclude_defaults=True) == LIMITED
    assert racer("restore", file, "--config", config, "--keys")[0] == 0  # nothing is lacking
    assert config.read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize(
    "access",
    ["", "access: {}\n", "access:\n  hosts: [a.example]  # us\n",
     "access:\n  keys: []\n", "access: {keys: []}\n",
     f"access:\n  keys: [{json.dumps(key('shop', 1))}]  # one\n"],
)  # fmt: skip
def test_keys_find_a_place_in_any_configuration(
    config: Path, file: Path, racer: Command, access: str
) -> None:
    """Without the section, without the list, with one on a line: comments stay, and it starts."""
    head, _, tail = FILE.partition("access:")
    config.write_text(head + access + tail[tail.index("\n# Limits") :], encoding="utf-8")
    with_keys(config, [LIMITED], file)
    code, _, error = racer("restore", file, "--config", config, "--keys", "--json")
    assert code == 0, error
    assert "web" in {each.name for each in settings.load(config)[0].access.keys}
    text = config.read_text(encoding="utf-8")
    for comment in ("# Our gateway.", "# the small one", "# Limits of the machine.", "# the end"):
        assert comment in text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([key("web", 3), key("team", 9)], "'team' has another hash"),
        ([key("other", 2)], "two keys have the same hash"),
        ([key("web", 3, candidates=["poet"])], "'poet' is no candidate"),
    ],
    ids=["another hash", "another name", "unknown candidate"],
)
def test_keys_that_do_not_fit_are_refused_and_nothing_is_changed(
    config: Path, file: Path, racer: Command, keys: list[dict[str, Any]], message: str
) -> None:
    """Neither the configuration nor the store."""
    with_keys(config, keys, file)
    code, _, error = racer("restore", file, "--config", config, "--keys")
    assert code in (1, 2)
    assert message in error
    assert config.read_text(encoding="utf-8") == FILE
    assert not (config.parent / "racer.db").exists()


def test_no_secret_is_in_a_backup(
    serve: Serve, racer: Command, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes and limits of keys are; no key, and no variable of the environment."""
    secret, line = configured_key("team", requests_per_minute=60)
    serve(folder=tmp_path, access={"keys": [line]})
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert racer("backup", file, "--config", tmp_path / "racer.yaml")[0] == 0
    with ZipFile(file) as opened:
        held = b"".join(opened.read(name) for name in opened.namelist())
    assert line["hash"].encode() in held
    for value in (secret, *ENVIRONMENT.values()):
        assert value.encode() not in held
