"""``ray start`` and ``serve run`` from a shell, with the files of deploy/ray as they are."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from app import settings
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRows
from tests.kit import databases
from tests.kit.gateway import ENVIRONMENT, TWO, Gateway, noisy
from tests.kit.network import free_port
from tests.kit.ray_head import Serve, change, ray_head
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from .conftest import ROOT, RUNNING_S, is_serving, titled

pytestmark = pytest.mark.scale

CANDIDATES: Final = {"adder": "candidate-a", "speller": "candidate-b"}


def of_two(rows: LabelledRows) -> LabelledRows:
    """The rows of the candidates that racer.yaml names."""
    renamed = (
        replace(row, correct=frozenset(CANDIDATES[n] for n in row.correct & CANDIDATES.keys()))
        for row in rows.rows
    )
    return LabelledRows(pool=tuple(CANDIDATES.values()), rows=tuple(renamed))


@pytest.fixture
def project(tmp_path: Path, pool: FakePool) -> Path:
    """A folder with deploy/ray, its artifact, a port that is free and candidates that are there."""
    folder = tmp_path / "deploy/ray"
    folder.mkdir(parents=True)
    for name in ("serve.yaml", "racer.yaml"):
        shutil.copy(ROOT / "deploy/ray" / name, folder)
    encoder = CharNgramEncoder()
    train(
        of_two(noisy(0, 400)), of_two(noisy(5_000, 200)), folder / "artifact", encoder=encoder,
        kind="knn",
    )  # fmt: skip
    change(folder / "serve.yaml", r"\b8080\b", str(free_port()))
    change(folder / "racer.yaml", r"http://candidate-\w:8000/v1", pool.url)
    return tmp_path


@pytest.fixture
def shell(
    project: Path, postgres: databases.Postgres
) -> Iterator[tuple[Gateway, psutil.Process, Serve]]:
    """The gateway that a shell started, whose head it runs on, and how to say it again."""
    given = ENVIRONMENT | {"RACER_STORE_URL": postgres.create()}
    config, file = project / "deploy/ray/racer.yaml", "deploy/ray/serve.yaml"
    (port,) = re.findall(r"port: (\d+)", (project / file).read_text(encoding="utf-8"))
    with ray_head(project, os.environ | given) as (ray, serve):
        serve(file)
        gateway = Gateway(f"http://127.0.0.1:{port}", settings.load(config, given)[0])
        try:
            assert until(lambda: is_serving(gateway), RUNNING_S)
            yield gateway, ray, serve
        finally:
            gateway.close()


@pytest.mark.timeout(300)
def test_a_shell_starts_what_the_files_say_and_changes_it(
    shell: tuple[Gateway, psutil.Process, Serve], project: Path
) -> None:
    """As many replicas, and a certificate that holds; another configuration takes over by its name.

    Red when the files are only right for a cluster of tests, or a request fails while every replica
    is replaced.
    """
    gateway, ray, serve = shell

    def replicas(deployment: str) -> set[int]:
        return {each.pid for each in titled(ray, f"ServeReplica:racer:{deployment}")}

    def count() -> tuple[int, int]:
        return len(replicas("Gateway")), len(replicas("Router"))

    assert until(lambda: count() == (2, 1), RUNNING_S)
    active = gateway.calibrate(rows=of_two(noisy(10_000, 300)), alpha=0.2)["id"]
    # Whichever of them answers: 20 answers of one alone are one chance in half a million.
    assert until(lambda: all(gateway.ready().get("calibration") == active for _ in range(20)), 30)
    certificate = gateway.route(TWO)["certificate"]
    assert (certificate["holds"], certificate["calibration_id"]) == (True, active)
    assert gateway.chat(TWO)["racer"]["served_by"] in CANDIDATES.values()

    files = project / "deploy/ray"
    shutil.copy(files / "racer.yaml", files / "racer-2.yaml")
    change(files / "racer-2.yaml", r"\nrouting:", "\nrouting:\n  observe: candidate-b")
    change(files / "serve.yaml", r"racer\.yaml", "racer-2.yaml")
    first = replicas("Gateway")

    def observed() -> bool:
        return "observe_only" in gateway.chat(TWO)["racer"]["certificate"]["reasons"]

    assert not observed()
    serve("deploy/ray/serve.yaml")

    def replaced() -> bool:
        observed()  # fails when no replica answers
        found = replicas("Gateway")
        return len(found) == 2 and not found & first

    assert until(replaced, RUNNING_S)
    assert all(observed() for _ in range(10))  # whichever of them answers
