"""`racer doctor`: every check broken and whole, and that it changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app import settings
from app.store import Store, Summary, schema
from app.store.inspection import StoreInspection, inspect_store, read_only
from app.store.traffic import WeekOfTraffic
from app.tools.doctor import run
from app.tools.doctor.run import Finding, GpuStatus, State
from app.upstream.model_list import ModelList
from racer_core.encoder.char_ngrams import SPEC
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, POOL, Command, configure, labelled, running
from tests.kit.lazy import LazyModule
from tests.kit.network import free_port
from tests.kit.stores import record
from tests.kit.upstream import FakePool

torch = LazyModule("torch")

OK, WARNING, FAILED = State.OK, State.WARNING, State.FAILED
UNREACHABLE = "http://127.0.0.1:1/v1"


def is_so(finding: Finding, state: State, *words: str) -> None:
    """Check the state and the words of a finding, and that every problem has a cure."""
    assert finding.state is state, finding
    assert (finding.cure == "") == (state is OK)
    for word in words:
        assert word in f"{finding.found} {finding.cure}"


# The whole --------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[dict[str, FakePool]]:
    """A server for each of the pool."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(FakePool(models=[name])) for name in POOL}


@pytest.fixture
def config(tmp_path: Path, artifact: Path, servers: dict[str, FakePool]) -> Path:
    """A gateway's configuration in front of them."""
    pool = [{"name": name, "base_url": each.url} for name, each in servers.items()]
    return configure(tmp_path / "gateway", artifact, "", candidates=pool)


def examined(racer: Command, config: Path) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings by check; nothing but JSON on stdout, and nothing on stderr."""
    code, out, stderr = racer("doctor", "--config", config, "--json")
    assert stderr == ""
    output = json.loads(out)
    assert output["healthy"] is (code == 0)
    found = {each["check"]: each for each in output["findings"]}
    assert len(found) == len(output["findings"])
    return code, found


def everything_under(folder: Path) -> dict[str, bytes]:
    """Names and contents."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_healthy_gateway_has_nothing_to_cure(
    racer: Command, config: Path, servers: dict[str, FakePool]
) -> None:
    """Calibrated and running. Red when a check fails on what is well, or changes a byte."""
    with running(config, ENVIRONMENT) as gateway:
        gateway.calibrate(80)
        before = everything_under(config.parent)
        code, found = examined(racer, config)
        assert everything_under(config.parent) == before
    assert code == 0
    assert {each["state"] for each in found.values()} == {"OK"}, found
    names = [f"endpoint {name}" for name in POOL]
    assert list(found) == [
        *("configuration", "artifact", "encoder", "GPU", *names, "clock"),
        *("store", "disk", "sampling", "calibration", "risk level", "port"),
    ]
    assert "60 rows count, alpha 0.1" in found["calibration"]["found"]
    assert all(each.seen == ["GET /v1/models"] for each in servers.values())


def test_before_the_first_start_nothing_is_made(racer: Command, config: Path) -> None:
    """A store that is not there is no fault, and is still not there."""
    before = everything_under(config.parent)
    code, found = examined(racer, config)
    assert code == 0
    assert everything_under(config.parent) == before
    assert (found["store"]["state"], found["calibration"]["state"]) == ("OK", "warning")
    assert "racer calibrate" in found["calibration"]["cure"]


def test_without_a_configuration_there_is_only_the_machine(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`racer.yaml` is what it looks for; what cannot be read has one finding, not ten."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = racer("doctor", "--json")
    assert code == 1
    first, second = json.loads(out)["findings"]
    assert (first["check"], second["check"]) == ("configuration", "GPU")
    assert "racer.yaml is not there" in first["found"]
    assert "racer init" in first["cure"]


@pytest.mark.parametrize(
    ("watching", "sampled", "unlabelled", "has_artifact", "state", "words"),
    [
        ({}, 0, 0, False, OK, "off"),
        ({"shadow_rate": 0.1, "store_requests": True}, 0, 0, False, OK, "$RACER_SAMPLES_KEY"),
        ({"shadow_rate": 0.1, "store_requests": True}, 5, 5, False, WARNING, "tab Label"),
        ({"shadow_rate": 0.1, "store_requests": True}, 5, 2, False, WARNING, "racer samples"),
        ({"shadow_rate": 0.1, "store_requests": True}, 5, 2, True, WARNING, "--from-shadow"),
        ({"shadow_rate": 0.1}, 5, 2, False, WARNING, "store_requests"),
        ({"shadow_rate": 0.1}, 5, 2, True, WARNING, "5 sampled, 2 wait"),
    ],
)
def test_the_sample_says_which_command_is_next(
    config: Path,
    watching: dict[str, Any],
    sampled: int,
    unlabelled: int,
    has_artifact: bool,
    state: State,
    words: str,
) -> None:
    """From drawing to labels, a router and a calibration."""
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"watching": watching}))
    read, _ = settings.load(config, {}, serves=False)
    counted = StoreInspection(sampled=sampled, unlabelled=unlabelled)
    is_so(run.check_sampling(read, counted, has_artifact=has_artifact), state, words)


def test_a_store_counts_its_sample(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """Decisions that were drawn, and those of them that wait; a calibration needs no cure."""
    watching = {"shadow_rate": 1.0, "feedback": "all"}
    path = configure(tmp_path, artifact, pool.url, watching=watching)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate(60)
        ids = [gateway.chat(row.query)["id"] for row in labelled(20_000, 3).rows]
        verdicts = {"decision_id": ids[0], "correct": dict.fromkeys(POOL, True)}
        gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
        store_url = gateway.settings.store
    found = inspect_store(store_url, None)
    assert (found.sampled, found.unlabelled) == (3, 2)


@pytest.mark.parametrize(
    ("bound", "traffic", "state", "words"),
    [
        (0.137, WeekOfTraffic(judged=700, requests=7_000), OK, "11 days at 700 judged a week"),
        (0.137, WeekOfTraffic(judged=7, requests=7_000), WARNING, "sampling rate of 0.18"),
        (0.137, WeekOfTraffic(judged=0, requests=10), WARNING, "never, as none is judged"),
        (0.4, WeekOfTraffic(judged=700, requests=7_000), WARNING, "no alarm sees a risk of 20%"),
        (
            0.137,
            WeekOfTraffic(judged=700, requests=7_000, labelled=0.5),
            WARNING,
            "no alarm sees a risk of 20%: 50% of the sample get a label",
        ),
    ],
)
def test_it_says_how_late_an_alarm_is(
    config: Path, bound: float, traffic: WeekOfTraffic, state: State, words: str
) -> None:
    """At alpha 0.1; where that is late, what would make it a week."""
    values = yaml.safe_load(config.read_text())
    config.write_text(
        yaml.safe_dump(values | {"watching": {"false_alarm": 0.01, "shadow_rate": 0.1}})
    )
    read, _ = settings.load(config, {}, serves=False)
    evidence = {"alpha": 0.1, "risk_q95": bound, "n": 160, "rows": 200}
    active = Summary(
        id="cal-1",
        created_at="",
        active=True,
        chosen=False,
        artifact="a",
        options={},
        evidence=evidence,
    )
    found = StoreInspection(active=active, traffic=traffic)
    finding = run.check_alarms(read, found)
    assert finding is not None
    is_so(finding, state, words)
    assert run.check_alarms(read, StoreInspection()) is None


# Configuration, artifact, encoder ---------------------------------------------------------------


def test_a_configuration_is_read_with_its_keys(config: Path) -> None:
    """Whole, misspelt, and with a key that is not there."""
    finding, opened = run.check_configuration(config, ENVIRONMENT)
    is_so(finding, OK, "3 candidates")
    assert opened is not None
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"prot": 80}))
    is_so(run.check_configuration(config, {})[0], FAILED, "prot")
    values["candidates"][0]["api_key_env"] = "NO_SUCH_KEY"
    config.write_text(yaml.safe_dump(values))
    is_so(run.check_configuration(config, {})[0], FAILED, "$NO_SUCH_KEY")


def test_an_artifact_is_whole_and_of_this_pool(config: Path, tmp_path: Path) -> None:
    """Whole, none, not there, half there, and of another pool."""
    configured, _ = settings.load(config, ENVIRONMENT)
    finding, trained = run.check_artifact(configured)
    is_so(finding, OK, "knn, 3 candidates")
    assert trained is not None

    def at(**changes: Any) -> Finding:
        return run.check_artifact(configured.model_copy(update=changes))[0]

    is_so(at(artifact=None), WARNING, "racer train")
    is_so(at(artifact=tmp_path / "none"), WARNING, "adder answers")
    half = tmp_path / "half"
    shutil.copytree(configured.artifact or "", half)
    (half / "router.safetensors").unlink()
    is_so(at(artifact=half), FAILED, "router.safetensors")
    is_so(at(candidates=configured.candidates[::-1]), FAILED, "trained for the pool")


def test_an_encoder_opens_as_recorded_in_the_artifact(tmp_path: Path) -> None:
    """The one without weights, another version of it, a folder that is gone, one of the hub."""
    is_so(run.check_encoder(SPEC), OK, "char-ngrams")
    is_so(run.check_encoder(replace(SPEC, digest="x")), FAILED, "digest")
    gone = replace(SPEC, kind="huggingface", name=str(tmp_path / "gone"), backend="cpu")
    is_so(run.check_encoder(gone), FAILED, "gone")
    is_so(run.check_encoder(replace(gone, name="unknown/model")), WARNING, "not on this machine")


# The machine ------------------------------------------------------------------------------------

TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update"
CPU_BUILD = GpuStatus(built_for=None, devices=())
CUDA_BUILD = GpuStatus(built_for="13.0", devices=())


@pytest.mark.parametrize(
    ("machine", "backend", "state", "words"),
    [
        (CPU_BUILD, "cpu", OK, "none"),
        (CPU_BUILD, "cuda", FAILED, "trained for one"),
        (CUDA_BUILD, "numpy", OK, "none"),
        (CUDA_BUILD, "cuda", FAILED, "trained for one"),
        (replace(CUDA_BUILD, devices=("H100",)), "cuda", OK, "H100 (CUDA 13.0)"),
        (replace(CUDA_BUILD, devices=("H100",)), "cpu", OK, "does not use it"),
        (replace(CUDA_BUILD, complaint=TOO_OLD, driver=True), "cuda", FAILED, "newer driver"),
        (replace(CUDA_BUILD, complaint=TOO_OLD, driver=True), "cpu", WARNING, "too old"),
        (replace(CUDA_BUILD, driver=True), "cuda", FAILED, "nvidia-smi"),
        (replace(CUDA_BUILD, driver=True), None, WARNING, "nvidia-smi"),
        (replace(CPU_BUILD, driver=True), "cuda", FAILED, "CUDA build"),
        (replace(CPU_BUILD, driver=True), None, WARNING, "CUDA build"),
    ],
)
def test_a_gpu_is_seen_or_missed(
    machine: GpuStatus, backend: str | None, state: State, words: str
) -> None:
    """A missing GPU is a failure if the encoder needs one, else a warning at most."""
    is_so(run.check_gpu(machine, backend), state, words)


def test_torchs_warning_about_the_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns instead of raising. Red when the warning goes past us."""

    def unavailable() -> bool:
        warnings.warn(TOO_OLD, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    assert run.inspect_gpu().complaint == TOO_OLD


def test_an_unusable_gpu_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may hold it in exclusive mode."""

    def busy(_: int) -> str:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", busy)
    assert run.inspect_gpu().devices == ()


@pytest.mark.gpu
def test_a_real_gpu_is_seen() -> None:
    """By its name."""
    is_so(run.check_gpu(run.inspect_gpu(), "cuda"), OK, torch.cuda.get_device_name(0))


def test_a_clock_is_compared_with_all_servers() -> None:
    """The own clock is wrong if it differs from all servers, a server's if only it differs."""

    def finding_of(*ahead: float | None) -> Finding:
        return run.check_clock(
            [ModelList(f"http://s{i}", (), each) for i, each in enumerate(ahead)]
        )

    is_so(finding_of(0.4, -2.0), OK, "all 2 servers")
    is_so(finding_of(None), OK, "no server")
    is_so(finding_of(60.0, 61.0), WARNING, "61 s behind all 2 servers", "this machine's")
    is_so(finding_of(-60.0, -61.0), WARNING, "61 s ahead of")
    is_so(finding_of(0.0, -3600.0), WARNING, "http://s1 is 3600 s behind")


# Endpoints --------------------------------------------------------------------------------------


def endpoint(config: Path, **candidate: Any) -> Finding:
    """The finding of one candidate in the place of the pool."""
    values = {"schema_version": 1, "candidates": [{"name": "qwen"} | candidate]}
    environment = {"RIGHT": "right-key", "WRONG": "wrong-key"}
    configured, secrets = settings.parse(json.dumps(values), config, environment)
    (finding,), _ = run.check_endpoints(configured, secrets)
    assert finding.check == "endpoint qwen"
    return finding


def test_an_endpoint_serves_its_model_to_this_key(tmp_path: Path) -> None:
    """Cases: it serves its model, another model, no key, a wrong key, no list, no server."""
    with FakePool(models=["qwen", "org/qwen"]) as server:
        is_so(endpoint(tmp_path, base_url=server.url), OK, "serves qwen")
        is_so(endpoint(tmp_path, base_url=server.url, model="org/qwen"), OK, "serves org/qwen")
        other = endpoint(tmp_path, base_url=server.url, model="llama")
        is_so(other, FAILED, "qwen, org/qwen, not llama", "`model`")
        server.key = "right-key"
        is_so(endpoint(tmp_path, base_url=server.url), FAILED, "401", "`api_key_env`")
        is_so(endpoint(tmp_path, base_url=server.url, api_key_env="WRONG"), FAILED, "$WRONG")
        is_so(endpoint(tmp_path, base_url=server.url, api_key_env="RIGHT"), OK)
        for urls in ([server.url, UNREACHABLE], [UNREACHABLE, server.url]):  # the worst counts
            replicas = endpoint(tmp_path, base_urls=urls, api_key_env="RIGHT")
            is_so(replicas, FAILED, UNREACHABLE)
    is_so(endpoint(tmp_path, base_url=UNREACHABLE), FAILED, "cannot be reached")
    with FakePool() as server:
        is_so(endpoint(tmp_path, base_url=server.url), WARNING, "lists no model")
        for status, state in ((404, WARNING), (500, WARNING), (502, FAILED), (503, FAILED)):
            server.models_status = status
            is_so(endpoint(tmp_path, base_url=server.url), state, f"answers {status}")
        server.models_status, server.models_body = 200, b"<html>"
        is_so(endpoint(tmp_path, base_url=server.url), WARNING, "no list of models")


def test_an_evaluator_of_its_own_is_looked_at_too(
    config: Path, servers: dict[str, FakePool]
) -> None:
    """Its server may be down while all candidates are up."""
    values = yaml.safe_load(config.read_text())
    rater = {"base_url": servers["poet"].url, "model": "judge"}
    values["aggregation"] = {"method": "weighted", "weight": "verbal", "evaluator": rater}
    configured, secrets = settings.parse(json.dumps(values), config, {})
    findings, _ = run.check_endpoints(configured, secrets)
    assert [each.state for each in findings] == [OK, OK, OK, FAILED]
    is_so(findings[-1], FAILED, "poet, not judge")


@pytest.mark.parametrize("ahead_s", [0.0, 100.0, -100.0])
def test_a_server_s_clock_is_read_off_its_answer(ahead_s: float, tmp_path: Path) -> None:
    """To the second or two that a header leaves open."""
    with FakePool(models=["qwen"], ahead_s=ahead_s) as server:
        values = {"schema_version": 1, "candidates": [{"name": "qwen", "base_url": server.url}]}
        configured, secrets = settings.parse(json.dumps(values), tmp_path, {})
        _, (listing,) = run.check_endpoints(configured, secrets)
        assert listing.ahead_s == pytest.approx(ahead_s, abs=3)
        server.ahead_s = None
        _, (listing,) = run.check_endpoints(configured, secrets)
        assert listing.ahead_s is None


# Store and calibration --------------------------------------------------------------------------


def test_a_store_is_there_and_of_this_version(database: str) -> None:
    """Either kind: empty, made, and older than the program; looking makes no table."""
    findings, found = run.check_store(database, None)
    is_so(findings[0], OK, "empty")
    assert found == StoreInspection()
    with Store(database):
        pass
    findings, found = run.check_store(database, "a" * 64)
    is_so(findings[0], OK, f"version {schema.HEAD}")
    assert found == StoreInspection(version=schema.HEAD)


def test_a_store_is_found_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """Beside the configuration. Red when a character of the folder's means something in a URL."""
    folder = tmp_path / "a b%20c?#d"
    folder.mkdir()
    values = {"schema_version": 1, "candidates": [{"name": "qwen", "base_url": UNREACHABLE}]}
    configured, _ = settings.parse(json.dumps(values), folder / "racer.yaml", {})
    assert run.check_store(configured.store, None)[1] == StoreInspection()
    with Store(configured.store):
        pass
    assert [path.name for path in folder.iterdir()] == ["racer.db"]
    assert run.check_store(configured.store, None)[1] == StoreInspection(version=schema.HEAD)


def test_doctor_opens_the_store_read_only(database: str) -> None:
    """Either kind. Red when the store is opened as a gateway opens it."""
    with Store(database):
        pass
    opened = read_only(database)
    assert opened is not None
    with opened.connect() as connection, pytest.raises(DBAPIError, match=r"read-?only"):
        connection.execute(text("CREATE TABLE mine (x INTEGER)"))
    opened.dispose()


DYING = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
connection.execute("BEGIN")
connection.execute("CREATE TABLE cut (short)")
connection.executemany("INSERT INTO cut VALUES (?)", [("x" * 4000,)] * 50)
os._exit(9)
"""


def test_an_interrupted_write_is_reported_and_not_rolled_back(tmp_path: Path) -> None:
    """A start undoes it. Red when looking does, which changes the file and removes its journal."""
    url = f"sqlite:///{tmp_path}/racer.db"
    with Store(url):
        pass
    subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "racer.db")], check=False)
    before = everything_under(tmp_path)
    assert [Path(name).name for name in sorted(before)] == ["racer.db", "racer.db-journal"]
    findings, found = run.check_store(url, "a" * 64)
    is_so(findings[0], WARNING, "died while it wrote", "start the gateway")
    assert found is None
    assert everything_under(tmp_path) == before
    with Store(url):
        pass
    is_so(run.check_store(url, "a" * 64)[0][0], OK, schema.HEAD)


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        (None, OK, "empty"),
        (schema.HEAD, OK, schema.HEAD),
        ("9999", FAILED, "give this one an empty database"),
    ],
)
def test_the_finding_of_another_schema_version_says_what_to_do(
    version: str | None, state: State, words: str
) -> None:
    """An unknown one: another program, or another database."""
    is_so(run.version("store", version), state, words)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///{folder}/none/racer.db", "no folder"),
        ("sqlite:///{folder}/text", "not a database"),
        ("sqlite:///{folder}", "is a folder"),
        ("postgresql://racer:hunter2@127.0.0.1:1/racer", "cannot be read"),
        ("mysql://x", "neither sqlite nor postgresql"),
    ],
)
def test_an_unusable_store_is_reported(tmp_path: Path, url: str, words: str) -> None:
    """One finding with a cure, without the password."""
    (tmp_path / "text").write_text("no database" * 100)
    findings, found = run.check_store(url.format(folder=tmp_path), None)
    assert found is None
    is_so(next(each for each in findings if each.check == "store"), FAILED, words)
    assert "hunter2" not in str(findings)


def test_a_read_only_store_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user would see it; root may write everywhere."""

    def denied(*_: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", denied)
    findings, _ = run.check_store(f"sqlite:///{tmp_path}/racer.db", None)
    is_so(findings[0], FAILED, "cannot be written")


@pytest.mark.parametrize(
    ("free", "state"), [(2**40, OK), (2**30, OK), (2**30 - 1, WARNING), (2**20, FAILED)]
)
def test_little_disk_space_is_a_warning(tmp_path: Path, free: int, state: State) -> None:
    """Little is a warning, next to nothing a failure."""
    is_so(run.room(tmp_path, free), state, "GiB free")


def test_doctor_finds_the_active_calibration(database: str) -> None:
    """The one for this artifact and fleet; else whose it is instead."""
    with Store(database) as store:
        store.add(record("first"), activate=True)
        store.add(record("second"), activate=True)
        store.add(record("third"), activate=False)
    here, elsewhere = inspect_store(database, "a" * 64), inspect_store(database, "b" * 64)
    assert here.active is not None
    assert (here.active.id, here.other) == ("second", None)
    assert elsewhere.other is not None
    assert (elsewhere.active, elsewhere.other.id) == (None, "second")


def test_a_calibration_is_there_and_enough_for_alpha() -> None:
    """Alpha >= 1/(n + 1) to the row; none, another's, old, and from the future."""
    now = datetime(2026, 5, 1, tzinfo=UTC)

    def made(n: int, *, age: timedelta = timedelta(days=40), **evidence: Any) -> StoreInspection:
        reported = {"n": n, "delta": None, **evidence}
        created = (now - age).isoformat(timespec="microseconds")
        active = Summary(
            id="c1",
            created_at=created,
            active=True,
            chosen=False,
            artifact="a",
            options={},
            evidence=reported,
        )
        return StoreInspection(version=schema.HEAD, active=active)

    is_so(
        run.check_calibration(made(500), 0.1, now), OK, "c1, 40 days old, 500 rows count, alpha 0.1"
    )
    is_so(run.check_calibration(made(9), 0.1, now), OK)
    is_so(run.check_calibration(made(8), 0.1, now), WARNING, "needs 9", "all candidates are called")
    is_so(run.check_calibration(made(28, delta=0.05), 0.1, now), WARNING, "needs 29")
    is_so(run.check_calibration(made(29, delta=0.05), 0.1, now), OK)
    future = made(500, age=timedelta(hours=-1))
    is_so(run.check_calibration(future, 0.1, now), WARNING, "clock")
    for age, words in (
        (timedelta(days=1), "1 day old"),
        (timedelta(hours=23, minutes=59), "23 hours old"),
        (timedelta(hours=1), "1 hour old"),
        (timedelta(minutes=59), "made within the hour"),
        (timedelta(seconds=-30), "made within the hour"),  # two clocks never quite agree
    ):
        is_so(run.check_calibration(made(500, age=age), 0.1, now), OK, words)
    is_so(
        run.check_calibration(StoreInspection(), 0.1, now),
        WARNING,
        "no calibration",
        "racer calibrate",
    )
    other = replace(made(500), active=None, other=made(500).active)
    is_so(run.check_calibration(other, 0.1, now), FAILED, "c1 is of another artifact")


# Ports ------------------------------------------------------------------------------------------


def test_a_port_is_free_taken_or_a_gateway_s(config: Path) -> None:
    """And free again afterwards."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    for _ in range(2):
        is_so(run.check_port("port", "127.0.0.1", port), OK, "is free")
    is_so(run.check_port("port", "127.0.0.1", 0), OK, "picks a free port")
    with FakePool(models=["qwen"]) as server:
        taken = int(server.url.removesuffix("/v1").rpartition(":")[2])
        is_so(run.check_port("port", "127.0.0.1", taken), FAILED, "in use", "--port")
        assert server.seen == ["GET /healthz"]
    with running(config, ENVIRONMENT | {"RACER_ADMIN_KEY": ADMIN_KEY}) as gateway:
        taken = int(gateway.url.rpartition(":")[2])
        is_so(run.check_port("port", "127.0.0.1", taken), OK, "a gateway serves")
    is_so(run.check_port("port", "192.0.2.1", 80), FAILED, "cannot be bound")


def test_the_admin_port_is_another(config: Path) -> None:
    """Two sockets, two findings; one number for both is a failure."""

    def found(port: int, admin: int) -> list[Finding]:
        values = yaml.safe_load(config.read_text()) | {"port": port}
        values["access"] = {"admin": {"port": admin}}
        return run.check_ports(settings.parse(json.dumps(values), config, {})[0])

    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        free = one.getsockname()[1], two.getsockname()[1]
    assert [each.state for each in found(*free)] == [OK, OK]
    is_so(found(free[0], free[0])[1], FAILED, "the gateway's own")


def test_an_older_file_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its version."""
    url = f"sqlite:///{tmp_path / 'racer.db'}"
    with Store(url):
        pass
    monkeypatch.setattr(schema, "HEAD", "next")
    is_so(run.check_store(url, None)[0][0], FAILED, "racer db upgrade")


# Coverage ---------------------------------------------------------------------------------------


def test_it_names_the_requests_without_a_certificate(
    racer: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the gateway serves: the share, what the others send, and the command for all."""
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"port": free_port()}))
    with running(config, ENVIRONMENT) as gateway:
        gateway.calibrate(80)
        gateway.chat("What is 3 plus 4?")
        assert "$RACER_ADMIN_KEY" in examined(racer, config)[1]["coverage"]["found"]
        monkeypatch.setenv("RACER_ADMIN_KEY", ADMIN_KEY)
        is_fine = examined(racer, config)[1]["coverage"]
        gateway.chat("What is 3 plus 4?", temperature=0.7)
        found = examined(racer, config)[1]["coverage"]
        line = f"coverage: {found['cure']}"
        assert line in racer("doctor", "--config", config)[1].splitlines(), "it was wrapped"
    assert (is_fine["state"], is_fine["cure"]) == ("OK", "")
    assert found["state"] == "warning"
    assert found["found"] == ("1 of the last 2 requests are certified; not: 1 with temperature=0.7")
    assert found["cure"].startswith("racer label questions.jsonl --like ")
