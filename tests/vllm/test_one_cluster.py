"""deploy/ray/one_cluster.yaml with vLLM on the CPU: gateway, router and candidates together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from app import settings
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRows
from tests.kit import databases
from tests.kit.gateway import ENVIRONMENT, Gateway
from tests.kit.lazy import LazyModule
from tests.kit.network import free_port
from tests.kit.ray_head import change, ray_head
from tests.kit.waiting import until

from .conftest import PYTHON, rows_of
from .servers import ENVIRONMENT as VLLM

run = LazyModule("app.tools.demo.run")

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT: Final = Path(__file__).parents[2]
FILE: Final = "deploy/ray/one_cluster.yaml"
CANDIDATES: Final = {"abacus": "candidate-a", "mirror": "candidate-b"}
KEY: Final = "key-of-the-candidates"
STARTED_S: Final = 600.0


def of_two(rows: LabelledRows) -> LabelledRows:
    """The demo's rows, with the candidates that racer.yaml names."""
    renamed = (
        replace(
            row,
            correct=frozenset(CANDIDATES[n] for n in row.correct & CANDIDATES.keys()),
            answers={CANDIDATES[n]: row.answers[n] for n in CANDIDATES},
        )
        for row in rows.rows
    )
    return LabelledRows(pool=tuple(CANDIDATES.values()), rows=tuple(renamed))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with deploy/ray, where the candidates are the demo's, on the CPU."""
    folder = tmp_path / "deploy/ray"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "deploy/ray/racer.yaml", folder)
    rows = of_two(rows_of("train", 600)), of_two(rows_of("validation", 200))
    train(*rows, folder / "artifact", encoder=CharNgramEncoder(), kind="knn")
    values: Any = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))
    candidates, racer = values["applications"]
    candidates["runtime_env"]["py_executable"] = str(Path(os.environ[PYTHON]).absolute())
    for each, name in zip(candidates["args"]["llm_configs"], CANDIDATES, strict=True):
        each["model_loading_config"]["model_source"] = str(run.FOLDER / "pool" / name)
        each["engine_kwargs"] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024}
        each["placement_group_config"]["bundles"] = [{"CPU": 1}]
    racer["deployments"][0]["autoscaling_config"] |= {"min_replicas": 1, "max_replicas": 1}
    (tmp_path / FILE).write_text(yaml.safe_dump(values), encoding="utf-8")
    change(tmp_path / FILE, r"\b8080\b", str(free_port()))
    return tmp_path


@pytest.fixture
def gateway(project: Path) -> Iterator[Gateway]:
    """What one command serves, on a node that says it has a GPU."""
    if databases.binaries() is None:
        pytest.skip(databases.WHY_NOT)
    port = yaml.safe_load((project / FILE).read_text(encoding="utf-8"))["http_options"]["port"]
    with databases.postgres() as postgres:
        given = ENVIRONMENT | {"RACER_STORE_URL": postgres.create(), "RACER_CANDIDATES_KEY": KEY}
        with ray_head(project, os.environ | given | VLLM, "--num-gpus=1", "--num-cpus=12") as (
            _,
            serve,
        ):
            serve(FILE)
            loaded, _ = settings.load(project / "deploy/ray/racer.yaml", given)
            found = Gateway(f"http://127.0.0.1:{port}", loaded)
            try:
                assert until(lambda: answers(found), STARTED_S, every_s=1.0)
                yield found
            finally:
                found.close()


def answers(gateway: Gateway) -> bool:
    """Whether both candidates answer through the gateway."""
    try:
        return all(
            gateway.ask("What is 3 plus 4?", model=name, max_tokens=4).status_code == 200
            for name in CANDIDATES.values()
        )
    except httpx2.TransportError:
        return False


def test_one_file_serves_gateway_router_and_candidates(gateway: Gateway) -> None:
    """Answers under a calibrated threshold, by vLLM behind the proxies that serve the gateway."""
    gateway.calibrate(rows=of_two(rows_of("calibration", 300)), alpha=0.2)
    answer = gateway.chat(rows_of("test", 1).rows[0].query, max_tokens=16)
    assert answer["racer"]["certificate"]["lambda_hat"] is not None
    assert answer["choices"][0]["message"]["content"]
    assert gateway.get("/candidates/v1/models").status_code == 401
    assert gateway.get("/candidates/v1/models", KEY).status_code == 200
