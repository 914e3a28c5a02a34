"""Code blocks of the documents that no other test runs, with addresses, names and ids replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.cli.console import DEFAULT_URL
from app.settings import Settings
from app.store import Store
from racer_core.records.reader import read_rows
from tests.docs.blocks import ROOT, Block, blocks
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    Gateway,
    as_json,
    configure,
    labelled,
    running,
)
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

pytestmark = pytest.mark.usefixtures("pool")  # reset after the test of another module
MINE = [block for block in blocks() if block.run_by is None and block.needs is None]
ANYWHERE = {
    "SCHEMA": "",
    "NO_PROXY": "*",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),  # `racer` runs this checkout, whichever one is installed
    "OMP_NUM_THREADS": "1",  # as `make test` has it: other processes have the other cores
}
NAMES = {"qwen": "adder", "llama": "speller"}  # the documents' candidates, and the tests'
SHIPPED = (".venv/bin/", "deploy/demo/")  # in the folder of the repository itself


def of(kind: str) -> Any:
    """Parametrize over the blocks of a kind; equal blocks run once."""
    mine = list({block.text: block for block in MINE if block.kind == kind}.values())
    return pytest.mark.parametrize("block", mine, ids=[block.place for block in mine])


def test_every_kind_has_a_test() -> None:
    """Red when a block is of a kind that no test below runs."""
    assert {block.kind for block in MINE} <= {"sh", "python", "json", "yaml", "text"}


@of("json")
def test_rows_are_rows(block: Block, tmp_path: Path) -> None:
    """Every line of a JSON block that no other test reads is a labelled row."""
    path = tmp_path / "rows.jsonl"
    path.write_text(block.text, encoding="utf-8")
    assert len(read_rows(path)) == len(block.text.splitlines())


@of("yaml")
def test_settings_are_settings(block: Block) -> None:
    """Alone, or in a configuration with the candidates that documents name."""
    server = {"base_url": "http://10.0.0.1:8000/v1", "price": 1.0}  # budgets need prices
    pool = [{"name": name} | server for name in NAMES]
    least = {"schema_version": 1, "artifact": "artifact", "candidates": pool}
    Settings.model_validate(least | yaml.safe_load(block.text))


@pytest.fixture(scope="module")
def example_gateway(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """A gateway without a data key, calibrated twice, so that it can be rolled back."""
    path = configure(tmp_path_factory.mktemp("examples"), artifact, shared_pool.url)
    with running(path, {"RACER_ADMIN_KEY": ADMIN_KEY}) as gateway:
        gateway.calibrate()
        gateway.calibrate(300)
        yield gateway


def filled(text: str, gateway: Gateway) -> str:
    """Return a block with this gateway's address, candidates and ids."""
    made = gateway.chat(ONE)["racer"]["decision_id"]
    known = NAMES | {
        DEFAULT_URL: gateway.url,
        "chatcmpl-...": made,
        "cal-...": gateway.ready()["calibration"],
    }
    for documented, here in known.items():
        text = text.replace(documented, here)
    return text


@pytest.mark.slow
@of("python")
def test_python_runs(block: Block, example_gateway: Gateway) -> None:
    """As a program of its own, in the folder of the repository."""
    done = subprocess.run(
        [sys.executable, "-c", filled(block.text, example_gateway)],
        cwd=ROOT,
        env=ANYWHERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def is_server(block: Block) -> bool:
    """Whether the block starts a server, which runs until it is stopped."""
    return "racer serve" in block.text


@pytest.mark.slow
@of("sh")
def test_commands_run(
    block: Block, example_gateway: Gateway, pool: FakePool, artifact: Path, tmp_path: Path
) -> None:
    """In bash, in a folder with the files that documents name."""
    folder = tmp_path / "folder"
    prepare(folder, artifact, pool, example_gateway)
    text = filled(block.text, example_gateway)
    at = ROOT if text.startswith(SHIPPED) else folder
    if text.startswith(SHIPPED):
        text = text.replace("racer route", f"racer route --url {example_gateway.url}")
    command = ["bash", "-euo", "pipefail", "-c", text]
    environment = ANYWHERE | {"HOME": str(tmp_path)} | ENVIRONMENT
    if is_server(block):
        serves(command, at, environment)
        return
    done = subprocess.run(
        command, cwd=at, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout, done.stdout


def prepare(folder: Path, artifact: Path, pool: FakePool, gateway: Gateway) -> None:
    """Write the files that the documents assume: rows, two configurations, a store, keys.

    Commands find the gateway by the configuration's port.
    """
    store = f"sqlite:///{folder}/racer.db"
    port = int(gateway.url.rpartition(":")[2])
    path = configure(folder, artifact, pool.url, store=store, port=port)
    decision_id = gateway.chat(ONE)["racer"]["decision_id"]
    judgement = {"decision_id": decision_id, "correct": {"adder": True}}
    (folder / "judgements.jsonl").write_text(json.dumps(judgement) + "\n", encoding="utf-8")
    (folder / "other.yaml").write_text(
        path.read_text(encoding="utf-8").replace("racer.db", "other.db"), encoding="utf-8"
    )
    Store(f"sqlite:///{folder}/racer.db").close()
    rows = "".join(json.dumps(row) + "\n" for row in as_json(labelled(20_000, 100)))
    for name in ("rows", "calibration"):
        (folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    keys = " ".join(f"{name}={key}" for name, key in ENVIRONMENT.items())
    (folder / "keys.sh").write_text(f"export {keys}\n", encoding="utf-8")


def serves(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Check that a gateway starts with the keys of the block and stops on SIGTERM."""
    port = free_port()
    path = folder / "racer.yaml"
    text = re.sub(r"(?m)^port: \d+$", f"port: {port}", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True) as server:
        try:
            assert until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), 60)
            keys = (folder / "keys.sh").read_text(encoding="utf-8")
            assert DATA_KEY not in keys
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def answers(url: str) -> bool:
    """Whether the address answers with 200."""
    try:
        return httpx2.get(url, verify=False, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False
