"""Three vLLM servers on the CPU, a router trained for them, and gateways in front.

`make test-vllm` says where vLLM is; without it these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.train import train
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.gateway import ENVIRONMENT, Gateway, running
from tests.kit.lazy import LazyModule

from .servers import CONTEXT_TOKENS, VllmServer, start_all, stopped_after

run = LazyModule("app.tools.demo.run")

PYTHON: Final = "RACER_VLLM_PYTHON"
POOL: Final = ("abacus", "mirror", "tribune")
GREEDY: Final = {"temperature": 0, "max_tokens": 16}  # as the demo's rows were labelled
WHOLE_POOL: Final = {"alpha": 1e-4}  # too small for any number of rows here
# An answer that no test waits for: a server generates it until it is aborted.
ENDLESS: Final = {"ignore_eos": True, "max_tokens": CONTEXT_TOKENS - 1000, "temperature": 0}
LIMIT_S: Final = 300  # longer than anything here waits: no call ends because of the gateway's clock

Servers = dict[str, VllmServer]
Serve = Callable[..., Gateway]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need vLLM if the environment does not say where it is."""
    if item.get_closest_marker("vllm") and PYTHON not in os.environ:
        pytest.skip(f"no vLLM here (${PYTHON}): run `make test-vllm`")


def rows_of(split: str, count: int) -> LabelledRows:
    """The first of the demo's rows of a split, as this pool sees them."""
    rows = [
        LabelledRow(
            query=row.query,
            correct=row.correct & set(POOL),
            answers={name: row.answers[name] for name in POOL},
            reference=row.reference,
        )
        for row in read_rows(run.FOLDER / "data" / f"{split}.jsonl").rows[:count]
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


def configure(
    folder: Path,
    artifact: Path,
    servers: Servers,
    parameters: Mapping[str, Mapping[str, Any]],
    **changes: Any,
) -> Path:
    """Write a configuration for the three servers; ``parameters`` are some candidates' own."""
    candidates = [
        {
            "name": name,
            "base_url": f"{servers[name].url}/v1",
            "parameters": dict(parameters.get(name, GREEDY)),
            "timeout_s": LIMIT_S,
        }
        for name in POOL
    ]
    values = {
        "schema_version": 1,
        "port": 0,
        "artifact": str(artifact),
        "candidates": candidates,
        "limits": {"deadline_s": LIMIT_S},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    python = Path(os.environ[PYTHON]).absolute()
    folder = tmp_path_factory.mktemp("vllm")
    servers = {name: VllmServer(python, run.FOLDER / "pool" / name, folder) for name in POOL}
    with stopped_after(list(servers.values())):
        yield servers


@pytest.fixture
def servers(_servers: Servers) -> Servers:
    """All three, up; one that an earlier test killed is started again."""
    start_all(list(_servers.values()))
    return _servers


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KNN router for the three, on the demo's encoder."""
    encoder = HuggingFaceEncoder(
        str(run.FOLDER / "encoder"), max_tokens=128, backend="cpu", dtype="float32"
    )
    folder = tmp_path_factory.mktemp("artifact")
    train(rows_of("train", 600), rows_of("validation", 200), folder, encoder=encoder, kind="knn")
    return folder


@pytest.fixture(scope="session")
def _gateway(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, _servers: Servers
) -> Iterator[Gateway]:
    path = configure(tmp_path_factory.mktemp("gateway"), artifact, _servers, {})
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate(rows=rows_of("calibration", 300))
        yield gateway


@pytest.fixture
def gateway(_gateway: Gateway, servers: Servers) -> Gateway:
    """A gateway calibrated on 300 rows at alpha 0.1; shared, so leave it so."""
    assert all(server.is_running for server in servers.values())
    return _gateway


@pytest.fixture
def serve(tmp_path: Path, artifact: Path, servers: Servers) -> Iterator[Serve]:
    """Start gateways of one's own: ``serve(aggregation={...})`` changes the configuration.

    ``calibrated=False`` leaves out the 60 rows; ``parameters`` are some candidates' own.
    """
    with ExitStack() as stack:

        def start(
            *,
            calibrated: bool = True,
            parameters: Mapping[str, Mapping[str, Any]] | None = None,
            **changes: Any,
        ) -> Gateway:
            path = configure(tmp_path / "served", artifact, servers, parameters or {}, **changes)
            gateway = stack.enter_context(running(path, ENVIRONMENT))
            if calibrated:
                gateway.calibrate(rows=rows_of("calibration", 60))
            return gateway

        yield start
