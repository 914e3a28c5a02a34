"""What a load benchmark runs against: candidates and a gateway, each a process, on known cores.

The gateway has core 0 to itself; candidates and the generator share core 1. On a machine with one
core they all share it, and the manifest says so.
"""

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import queries
import yaml

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRow, LabelledRows

HERE = Path(__file__).resolve().parent
KEY = "data-key-of-the-benchmarks"
ADMIN_KEY = "admin-key-of-the-benchmarks"
CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORES, OTHER_CORES = {CORES[0]}, {CORES[-1]}
_START_S = 60.0


@dataclass(frozen=True)
class Gateway:
    """A running gateway."""

    url: str
    port: int
    pid: int
    folder: Path  # its log is here

    def admin(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask as an admin; blocks."""
        return json.loads(self._ask(path, ADMIN_KEY, body))

    def metric(self, name: str) -> float:
        """The sum of one metric over its labels; blocks."""
        lines = self._ask("/metrics", KEY).decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((name + " ", name + "{"))
        )

    def calibrate(self, seed: int, rows: int = 400) -> str:
        """Calibrate on fresh rows; the new calibration's id."""
        body = {
            "rows": [
                {"query": query, "correct": {name: name in right for name in queries.POOL}}
                for query, right in queries.labelled(seed, rows)
            ]
        }
        return self.admin("/calibrate", body)["id"]

    def judge(self, decision: str, correct: dict[str, bool]) -> None:
        """Say which candidates were right, as the client that asked; blocks."""
        body = {"decision_id": decision, "correct": correct}
        self._ask("/feedback", KEY, body)

    def _ask(self, path: str, key: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"authorization": f"Bearer {key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read()


@contextlib.contextmanager
def running(folder: Path, latency_ms: float, **changes: Any) -> Generator[Gateway]:
    """Candidates and a calibrated gateway; ``changes`` go into its configuration."""
    os.sched_setaffinity(0, OTHER_CORES)
    artifact = folder / "artifact"
    train(_rows(1, 600), _rows(2, 300), artifact, encoder=CharNgramEncoder(), kind="knn")
    command = [sys.executable, str(HERE / "upstream.py"), "--latency-ms", str(latency_ms)]
    with _process(command, stdout=subprocess.PIPE, text=True) as upstream:
        assert upstream.stdout is not None
        base = f"http://127.0.0.1:{int(upstream.stdout.readline())}/v1"
        candidate = {"base_url": base, "timeout_s": 2}
        values = {
            "schema_version": 1,
            "port": _free_port(),
            "artifact": str(artifact),
            "candidates": [{"name": name, **candidate} for name in queries.POOL],
            "routing": {"score": "gap"},  # `cover` calls one of those who are right together
            **changes,
        }
        config = folder / "racer.yaml"
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        with _gateway(config, values["port"]) as gateway:
            gateway.calibrate(3)
            yield gateway


@contextlib.contextmanager
def _gateway(config: Path, port: int) -> Generator[Gateway]:
    environment = os.environ | {"RACER_DATA_KEY": KEY, "RACER_ADMIN_KEY": ADMIN_KEY}
    command = [sys.executable, "-m", "app", "serve", "--config", str(config)]
    with (
        (config.parent / "gateway.log").open("wb") as log,
        _process(command, stderr=log, env=environment, cwd=HERE.parent) as process,
    ):
        os.sched_setaffinity(process.pid, GATEWAY_CORES)
        gateway = Gateway(f"http://127.0.0.1:{port}", port, process.pid, config.parent)
        _wait_for(gateway.url + "/healthz", process)
        yield gateway


@contextlib.contextmanager
def _process(command: list[str], **options: Any) -> Generator[subprocess.Popen[Any]]:
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(url: str, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit("the gateway did not start: see gateway.log")


def _rows(seed: int, count: int) -> LabelledRows:
    labelled = queries.labelled(seed, count)
    rows = [LabelledRow(query=text, correct=frozenset(right)) for text, right in labelled]
    return LabelledRows(pool=queries.POOL, rows=tuple(rows))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def manifest(**settings: Any) -> dict[str, Any]:
    """Where and with what figures were taken."""
    git = ["git", "-C", str(HERE.parent), "describe", "--always", "--dirty"]
    packages = ("aiohttp", "fastapi", "httptools", "numpy", "starlette", "uvicorn", "uvloop")
    return {
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.processor() or platform.machine(),
        "cores": len(CORES),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "settings": settings,
    }
