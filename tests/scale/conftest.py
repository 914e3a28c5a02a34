"""A Ray cluster of two nodes on this machine, a PostgreSQL and scripted candidates."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil
import pytest
import yaml

from app import settings
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit import databases, ray_head
from tests.kit.gateway import ENVIRONMENT, Gateway, configure, noisy
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

ROOT: Final = Path(__file__).parents[2]
RUNNING_S: Final = 90.0  # ten times what replicas take here to start


class Cluster:
    """Two nodes that share this machine; the second can be lost with all that runs there."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.scale.two_nodes", str(folder)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        message = json.loads(self._process.stdout.readline())
        self.address: str = message["address"]
        self.metrics: list[str] = message["metrics"]
        self._second = psutil.Process(message["second"])

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Replicas of a deployment on both nodes."""
        return titled(psutil.Process(self._process.pid), f":{deployment}")

    def on_second(self, deployment: str) -> list[psutil.Process]:
        """Replicas of a deployment that run on the second node."""
        return self.titled_on_second(f":{deployment}")

    def titled_on_second(self, part: str) -> list[psutil.Process]:
        """Processes of the second node that have this in their title."""
        return titled(self._second, part)

    def lose_second(self) -> None:
        """Every process of the node ends at once, as where the power goes."""
        for each in (self._second, *self._second.children(recursive=True)):
            each.kill()

    def close(self) -> None:
        """End all nodes."""
        self._process.communicate(timeout=60)


def titled(node: psutil.Process, part: str) -> list[psutil.Process]:
    """Processes of a node that have this in their title."""
    return [each for each in node.children(recursive=True) if part in _title(each)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """PostgreSQL on a port of its own."""
    if databases.binaries() is None:
        pytest.skip(databases.WHY_NOT)
    with databases.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pool() -> Iterator[FakePool]:
    """Scripted candidates; each answers 42."""
    with FakePool() as fake:
        yield fake


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router that is unsure, so that calibrations differ."""
    folder = tmp_path_factory.mktemp("artifact")
    train(noisy(0, 400), noisy(5_000, 200), folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def configuration(tmp_path_factory: pytest.TempPathFactory, artifact: Path, pool: FakePool) -> Path:
    """A configuration that scores every query, also those that came before."""
    folder = tmp_path_factory.mktemp("configuration")
    return configure(folder, artifact, pool.url, limits={"decisions_kept": 0})


@contextmanager
def two_nodes(**environment: str) -> Generator[Cluster]:
    """Two nodes with this in their environment, in which this process is, too."""
    folder = Path(tempfile.mkdtemp(prefix="racer-ray-"))  # short: sockets are below it
    token = secrets.token_hex(32)  # or Ray writes one into the home folder
    given = environment | ray_head.ENVIRONMENT | {"RAY_AUTH_TOKEN": token}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        opened = Cluster(folder)
        try:
            yield opened
        finally:
            opened.close()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(postgres: databases.Postgres) -> Iterator[Cluster]:
    """Two nodes with what a gateway takes from the environment; their store is new."""
    proxy = {
        # The head's proxy stands for those of all nodes, so it must not keep to its own.
        "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
        "RAY_metrics_report_interval_ms": "3000",  # instead of ten seconds
    }
    with two_nodes(**ENVIRONMENT, **proxy, RACER_STORE_URL=postgres.create()) as opened:
        yield opened


Deploy = Callable[..., None]


def serve_run(
    cluster: Cluster,
    path: Path,
    configuration: Path,
    port: int,
    user_config: dict[str, Any] | None = None,
    *,
    calibrated: bool = False,
    **replicas: int,
) -> None:
    """Run ``deploy/ray/serve.yaml`` with a configuration and numbers of replicas.

    Args:
        cluster: Where.
        path: Takes the file that is run.
        configuration: The gateway's.
        port: Of Serve's proxy.
        user_config: Settings in place of the configuration's.
        calibrated: No requests without a calibration.
        **replicas: By deployment.
    """
    values = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text(encoding="utf-8"))
    values |= {"proxy_location": "HeadOnly"}  # both nodes are this machine
    values["http_options"] = {"host": "127.0.0.1", "port": port}
    arguments = {"config": str(configuration), "calibrated": calibrated}
    values["applications"][0]["args"] = arguments
    for each in values["applications"][0]["deployments"]:
        if each["name"] == "Gateway":
            each["user_config"] = user_config or {}
        del each["autoscaling_config"]
        each["num_replicas"] = replicas[each["name"]]
        each["max_replicas_per_node"] = 2 if each["name"] == "Gateway" else 1
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = ["serve", "run", f"--address={cluster.address}", "--non-blocking", str(path)]
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [program, *command[1:]], cwd=ROOT, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]


@pytest.fixture(scope="module")
def served(
    cluster: Cluster, configuration: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Deploy]]:
    """What ``deploy/ray/serve.yaml`` serves on the cluster, and how to change its replicas."""
    port = free_port()
    path = tmp_path_factory.mktemp("serve") / "serve.yaml"
    deploy = partial(serve_run, cluster, path, configuration, port)
    deploy(Gateway=1, Router=1)
    gateway = Gateway(f"http://127.0.0.1:{port}", settings.load(configuration, ENVIRONMENT)[0])
    try:
        assert until(lambda: is_serving(gateway), RUNNING_S)
        yield gateway, deploy
    finally:
        gateway.close()


def is_serving(gateway: Gateway) -> bool:
    """Whether a gateway answers, calibrated or not."""
    try:
        return gateway.get("/healthz").status_code == 200
    except httpx2.TransportError:
        return False
