"""A calibration that an artifact carries: written without a gateway, taken over at a start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from app.calibrations.carried import FILE, read_carried, take_over
from app.calibrations.evidence import evidence
from app.calibrations.seen_rows import SeenRows
from app.store import KeyPurpose, Store
from app.store.backup import calibrations
from app.store.backup import file as backup_file
from app.store.calibration_record import CalibrationRecord
from app.store.inspection import StoreInspection
from app.store.tables import WatchRow
from app.tools.doctor import run
from app.tools.doctor.run import State
from racer_core.errors import ArtifactError
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Command,
    Gateway,
    Serve,
    as_json,
    configure,
    labelled,
    noisy,
    running,
)
from tests.kit.stores import record
from tests.kit.upstream import FakePool

SETUP = "a" * 64  # of `record`
ROWS = noisy(20_000, 150)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(noisy_artifact: Path, tmp_path: Path) -> Path:
    """An artifact of one's own, which carries nothing yet."""
    return shutil.copytree(noisy_artifact, tmp_path / "artifact")


@pytest.fixture
def config(folder: Path, tmp_path: Path, pool: FakePool) -> Path:
    """The configuration of gateways with that artifact."""
    return configure(tmp_path / "gateway", folder, pool.url)


@pytest.fixture
def offline(racer: Command, folder: Path, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """``racer calibrate --artifact``, on rows in a file: exit code, and the result or the error."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in as_json(ROWS)), encoding="utf-8")

    def run(*options: object, rows: Path = file) -> tuple[int, Any]:
        arguments = (rows, "--artifact", folder, "--config", config, "--json", *options)
        code, output, error = racer("calibrate", *arguments)
        return code, json.loads(output) if output else error

    return run


def basis(gateway: Gateway, **options: Any) -> str:
    """Of the alpha of an upload of the same rows."""
    body = {"rows": as_json(ROWS), **options}
    return gateway.post("/calibrate", ADMIN_KEY, json=body).json()["evidence"]["alpha_basis"]


# From rows to a certificate --------------------------------------------------------------------


def test_a_gateway_is_calibrated_at_its_first_start(
    offline: Callable[..., Any], config: Path, folder: Path
) -> None:
    """No key, no upload: /readyz names the calibration, and its certificate holds."""
    text = config.read_text(encoding="utf-8")
    keyed = text.replace("name: adder", "name: adder\n  api_key_env: NO_SUCH_VARIABLE")
    config.write_text(keyed, encoding="utf-8")  # a build has no secrets
    code, result = offline("--alpha", 0.2)
    assert code == 0, result
    assert (folder / FILE).stat().st_mode & 0o777 == 0o644  # gateways run as other users
    config.write_text(text, encoding="utf-8")
    with running(config, ENVIRONMENT) as gateway:
        ready = gateway.get("/readyz?calibrated=true")
        assert (ready.status_code, ready.json()["calibration"]) == (200, result["id"])
        assert "missing" not in ready.json()
        certificate = gateway.chat(TWO)["racer"]["certificate"]
        assert certificate["holds"]
        assert certificate["calibration_id"] == result["id"]
        guarantee = certificate["guarantee"]
        assert (guarantee["alpha"], guarantee["alpha_basis"]) == (0.1, "declared")


def test_it_is_what_an_upload_of_the_same_rows_would_be(
    offline: Callable[..., Any], config: Path, folder: Path, tmp_path: Path, pool: FakePool
) -> None:
    """The same evidence and the same decisions; only id, time and sender differ."""
    code, carried = offline()
    assert code == 0, carried
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns(FILE))
    other = configure(tmp_path / "other", bare, pool.url)
    with running(config, ENVIRONMENT) as one, running(other, ENVIRONMENT) as two:
        uploaded = two.calibrate(rows=ROWS)
        found = [
            json.dumps(
                {name: value for name, value in {**each["evidence"], "source": None}.items()},
                sort_keys=True,
            )
            for each in (carried, uploaded)
        ]
        assert found[0] == found[1]
        for query in (ONE, TWO):
            mine, theirs = one.decided(query), two.decided(query)
            for each in (mine, theirs):
                each["certificate"].pop("calibration_id")
            assert mine == theirs
        assert one.get("/readyz").json()["calibration"] == carried["id"]


@pytest.mark.parametrize("option", ["--from-shadow", "--same-answer"])
def test_a_gateways_sample_is_calibrated_there(racer: Command, folder: Path, option: str) -> None:
    """One sentence, exit code 2."""
    code, _, error = racer("calibrate", "--artifact", folder, option)
    assert (code, "--artifact takes ROWS" in error) == (2, True)


def test_rows_that_cannot_be_read_leave_the_artifact_as_it_was(
    offline: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    """A file that is not there, and one that has no rows."""
    code, error = offline(rows=tmp_path / "nothing.jsonl")
    assert (code, "cannot be read (No such file or directory)" in error) == (1, True)
    (tmp_path / "bad.jsonl").write_text('{"query": 1}\n', encoding="utf-8")
    code, error = offline(rows=tmp_path / "bad.jsonl")
    assert code == 1
    assert not (folder / FILE).exists()


# Rows that were shown --------------------------------------------------------------------------


def test_an_alpha_picked_offline_is_certified_by_the_band_alone(
    offline: Callable[..., Any], config: Path
) -> None:
    """The artifact remembers a dry run, and so does every gateway that takes it over."""
    assert offline("--alpha", 0.25, "--dry-run")[1]["evidence"]["alpha_basis"] == "band"
    code, picked = offline("--alpha", 0.25)
    assert (code, picked["evidence"]["alpha_basis"]) == (0, "band")
    with running(config, ENVIRONMENT) as gateway:
        for asked, found in (({}, (0.1, "fixed")), ({"alpha": 0.25}, (0.25, "band"))):
            guarantee = gateway.route(TWO, **asked)["certificate"]["guarantee"]
            assert (guarantee["alpha"], guarantee["alpha_basis"]) == found
        assert basis(gateway, alpha=0.3) == "band"


def test_a_gateway_knows_the_rows_that_its_artifact_was_calibrated_on(
    offline: Callable[..., Any], config: Path
) -> None:
    """Red when another alpha on the same rows counts as fixed after they were shown elsewhere.

    Also where the store has shown rows of its own before, and so has a key of its own.
    """
    with running(config, ENVIRONMENT) as gateway:
        gateway.calibrate(rows=noisy(40_000, 100))
    assert offline("--alpha", 0.25)[1]["evidence"]["alpha_basis"] == "fixed"
    with running(config, ENVIRONMENT) as gateway:
        assert basis(gateway, alpha=0.15, activate=False) == "band"
        assert basis(gateway, alpha=0.25, activate=False) == "fixed"
        other = {"rows": as_json(noisy(60_000, 100)), "alpha": 0.15, "activate": False}
        response = gateway.post("/calibrate", ADMIN_KEY, json=other)
        assert response.json()["evidence"]["alpha_basis"] == "fixed"


def test_a_refused_calibration_leaves_the_earlier_one(
    offline: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    """No alpha below 1/(n + 1) is feasible."""
    code, first = offline()
    assert code == 0
    code, error = offline("--alpha", 0.001)
    assert (code, "no finite threshold" in error) == (1, True)
    with backup_file.Backup(folder / FILE) as carried:
        assert [each.id for each in carried.manifest.calibrations] == [first["id"]]


# Who decides -----------------------------------------------------------------------------------


def made(name: str, *, day: int, mean_size: float = 1.5, seed: int = 0) -> CalibrationRecord:
    """A calibration of a day, with evidence as the activation rule reads it."""
    found = record(name, seed)
    facts = evidence(found.calibration) | {"feasible": True, "mean_size": mean_size}
    at = (START + timedelta(days=day)).isoformat(timespec="microseconds")
    return replace(found, created_at=at, evidence=facts)


@pytest.fixture
def carries(tmp_path: Path) -> Callable[..., Path]:
    """Write what a folder carries; returns the folder."""

    def write(one: CalibrationRecord, *, raised: str | None = None, is_shown: bool = False) -> Path:
        file = tmp_path / "carried" / FILE
        file.parent.mkdir(exist_ok=True)
        with TemporaryDirectory() as source, Store(f"sqlite:///{source}/racer.db") as store:
            store.add(one, activate=True)
            if raised is not None:
                row = {"since": one.created_at, "state": "{}", "raised": raised}
                with store.transaction() as session:
                    session.add(WatchRow(calibration_id=one.id, application="", **row))
            if is_shown:
                SeenRows(store).add("digest", np.arange(9, dtype=np.uint64), [])
            calibrations.save_carried(store, one.artifact, file)
        return file.parent

    return write


def taken_over(store: Store, folder: Path) -> str | None:
    """Take over what a folder carries, as a start does; returns what is active then."""
    carried = read_carried(folder, SETUP, POOL)
    assert carried is not None
    take_over(store, carried)
    return store.shared_state(SETUP).active_id


def test_a_store_without_a_calibration_takes_it_over(
    store: Store, carries: Callable[..., Path]
) -> None:
    """Every byte, and its time, so that its age is that of its rows; other artifacts stay."""
    store.add(replace(made("cal-9", day=9, seed=9), artifact="b" * 64), activate=True)
    one = made("cal-1", day=0)
    assert taken_over(store, carries(one)) == "cal-1"
    assert store.record("cal-1").created_at == one.created_at
    assert store.record("cal-1").encoded()[0] == one.encoded()[0]
    assert taken_over(store, carries(one)) == "cal-1"
    assert store.shared_state("b" * 64).active_id == "cal-9"


@pytest.mark.parametrize("stored", [1, 3])
def test_the_newer_one_of_store_and_artifact_decides(
    store: Store, carries: Callable[..., Path], stored: int
) -> None:
    """So a deployment can bring a new calibration; an older one is stored, and not activated."""
    store.add(made(f"cal-{stored}", day=stored, seed=stored), activate=True)
    newer = max(stored, 2)
    assert taken_over(store, carries(made("cal-2", day=2, seed=2))) == f"cal-{newer}"
    assert store.record("cal-2").id == "cal-2"


def test_a_roll_back_lasts(store: Store, carries: Callable[..., Path]) -> None:
    """Red when a restart activates what the artifact carries again."""
    store.add(made("cal-1", day=1), activate=True)
    folder = carries(made("cal-2", day=2, seed=2))
    assert taken_over(store, folder) == "cal-2"
    store.activate("cal-1", None, SETUP)
    assert taken_over(store, folder) == "cal-1"
    assert taken_over(store, carries(store.record("cal-2"), is_shown=True)) == "cal-1"
    assert SeenRows(store).fixed_terms(np.arange(9, dtype=np.uint64)) == []


def test_a_carried_calibration_is_active_whatever_its_figures(
    store: Store, carries: Callable[..., Path]
) -> None:
    """By its time alone, so it is not marked; that of a store that rolled back to it stays so."""
    store.add(made("cal-1", day=1, mean_size=1.0), activate=True)
    assert taken_over(store, carries(made("cal-2", day=2, mean_size=2.0, seed=2))) == "cal-2"
    assert not store.shared_state(SETUP).is_chosen
    store.activate("cal-1", "cal-2", SETUP)
    store.activate("cal-2", "cal-1", SETUP)
    assert store.shared_state(SETUP).is_chosen


def test_too_few_carried_rows_are_stored_and_logged(
    store: Store, carries: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """As those of an upload are refused: by their number alone."""
    store.add(made("cal-1", day=1), activate=True)
    few = made("cal-2", day=2, seed=2)
    few = replace(few, evidence=few.evidence | {"feasible": False})
    assert taken_over(store, carries(few)) == "cal-1"
    assert "cal-2 of the artifact has too few rows for its alpha" in caplog.text


def test_alarms_are_carried_too(store: Store, carries: Callable[..., Path]) -> None:
    """Of a calibration that was exported while an alarm stood."""
    taken_over(store, carries(made("cal-1", day=1), raised='["risk"]'))
    alarms = store.shared_state(SETUP).alarms
    assert {name: each.raised for name, each in alarms.items()} == {"": ("risk",)}


def test_two_gateways_that_start_take_it_over_once(
    database: str, carries: Callable[..., Path]
) -> None:
    """Sixteen at once: none fails, and one record is there."""
    folder = carries(made("cal-1", day=1))

    def start(_: int) -> str | None:
        with Store(database) as opened:
            return taken_over(opened, folder)

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(start, range(16))) == {"cal-1"}
    with Store(database) as opened:
        assert opened.ids(SETUP) == ["cal-1"]


def test_hashes_of_shown_rows_are_found_under_the_key_of_either_store(
    store: Store, carries: Callable[..., Path], tmp_path: Path
) -> None:
    """A store without a key takes the carried one as its own, else keeps it beside its own."""
    with Store(f"sqlite:///{tmp_path / 'source.db'}") as source:
        source.add(made("cal-1", day=1), activate=True)
        hashes = np.random.default_rng(0).integers(2**63, size=50, dtype=np.uint64)
        SeenRows(source).add("digest", hashes, [["fixed"]])
        theirs = source.key(KeyPurpose.SEEN_ROWS)
        calibrations.save_carried(source, SETUP, tmp_path / FILE)
    taken_over(store, tmp_path)
    assert store.keys(KeyPurpose.SEEN_ROWS) == (theirs,)
    with Store(f"sqlite:///{tmp_path / 'another.db'}") as another:
        mine = another.key(KeyPurpose.SEEN_ROWS)
        taken_over(another, tmp_path)
        assert another.keys(KeyPurpose.SEEN_ROWS) == (mine, theirs)
        own = hashes + np.uint64(1)
        assert SeenRows(another).fixed_terms(own) is None
        assert SeenRows(another).fixed_terms(own, others=hashes[:, None]) == [["fixed"]]
        grouped = SeenRows(another).fixed_terms(own, ["a"] * 49 + ["b"], others=hashes[:, None])
        assert grouped == [["fixed"]]


# What is refused -------------------------------------------------------------------------------


def refusal(folder: Path, setup: str = SETUP, pool: tuple[str, ...] = POOL) -> str:
    """Why a start is refused; the cure is in every one of them."""
    with pytest.raises(ArtifactError) as caught:
        read_carried(folder, setup, pool)
    sentence = str(caught.value)
    assert f"racer calibrate ROWS --artifact {folder}" in sentence
    assert f"remove {FILE}" in sentence
    return sentence


def test_a_calibration_of_another_artifact_or_pool_is_refused(carries: Callable[..., Path]) -> None:
    """The sentence names what differs."""
    folder = carries(made("cal-1", day=1))
    assert "made with another artifact" in refusal(folder, "b" * 64)
    reordered = refusal(folder, pool=("speller", "adder", "poet"))
    assert "made for the candidates ['adder', 'speller', 'poet']" in reordered


def test_a_member_that_unpacks_to_too_much_is_not_read(
    carries: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when the size is found out by unpacking."""
    folder = carries(made("cal-1", day=1))
    monkeypatch.setattr(backup_file, "MEMBER_BYTES", 2_000)
    assert "has more than 2000 bytes" in refusal(folder)


def test_a_backup_of_a_whole_store_is_refused(store: Store, tmp_path: Path) -> None:
    """It says how to write what an artifact carries."""
    store.add(made("cal-1", day=1), activate=True)
    store.add(made("cal-2", day=2), activate=False)
    calibrations.save(store, (), tmp_path / FILE)
    with pytest.raises(ArtifactError, match=r"`racer backup FILE --active`"):
        read_carried(tmp_path, SETUP, POOL)


def test_another_id_with_the_same_name_is_refused(
    store: Store, carries: Callable[..., Path]
) -> None:
    """The store has other rows under the same id."""
    store.add(made("cal-1", day=1, seed=5), activate=False)
    with pytest.raises(ArtifactError, match="cal-1 is there with other content"):
        taken_over(store, carries(made("cal-1", day=1)))


def test_a_start_is_refused_and_says_what_to_do(
    offline: Callable[..., Any], folder: Path, config: Path
) -> None:
    """Decoding parameters changed since: the rows were labelled with others."""
    assert offline()[0] == 0
    text = config.read_text(encoding="utf-8").replace(
        "name: adder", "name: adder\n  parameters: {temperature: 0.7}"
    )
    config.write_text(text, encoding="utf-8")
    with (
        pytest.raises(ArtifactError, match=r"served otherwise .*racer calibrate ROWS --artifact"),
        running(config, ENVIRONMENT),
    ):
        pass
    (folder / FILE).unlink()
    with running(config, ENVIRONMENT) as gateway:
        assert gateway.ready()["calibration"] is None


# Export ----------------------------------------------------------------------------------------


def test_a_gateways_calibration_can_be_exported_into_its_artifact(
    serve: Serve, racer: Command, folder: Path, config: Path, tmp_path: Path
) -> None:
    """`racer backup --active`: a gateway elsewhere starts with it, and knows the rows."""
    gateway = serve(calibrated=False, artifact=folder, folder=tmp_path / "one")
    first = gateway.calibrate(rows=labelled(10_000, 60), activate=True)["id"]
    wanted = gateway.calibrate(rows=ROWS, alpha=0.2)["id"]
    source = tmp_path / "one" / "racer.yaml"
    code, output, error = racer("backup", folder / FILE, "--config", source, "--active", "--json")
    assert code == 0, error
    assert json.loads(output)["calibration"] == wanted
    with running(config, ENVIRONMENT) as other:
        assert other.ready()["calibration"] == wanted
        assert other.decided(TWO) == gateway.decided(TWO)
        assert basis(other, alpha=0.15, activate=False) == "band"
        listed = [each["id"] for each in other.get("/calibrations", ADMIN_KEY).json()["data"]]
        assert first not in listed


def test_doctor_counts_what_the_artifact_carries(carries: Callable[..., Path]) -> None:
    """Before the first start nothing is missing; what a start refuses is a failure with a cure."""
    one = made("cal-1", day=1)
    found = run.check_calibration(StoreInspection(), 0.1, START, one)
    assert (found.state, found.cure) == (State.OK, "")
    assert "cal-1" in found.found
    folder = carries(one)
    with pytest.raises(ArtifactError) as caught:
        read_carried(folder, "b" * 64, POOL)
    failed = run.refused_calibration(caught.value)
    assert (failed.state, "another artifact" in failed.found) == (State.FAILED, True)
    assert failed.cure.startswith("write it again with `racer calibrate ROWS")
