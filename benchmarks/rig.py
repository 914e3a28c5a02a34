"""Test bed of the load benchmarks: candidates and gateways as processes pinned to cores.

Gateways run on core 0; candidates and the generator share core 1. On a machine with one core all
share it, and the manifest of the results says so.
"""

import contextlib
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import sysconfig
import time
import timeit
import urllib.request
from collections.abc import Generator, Mapping, Set
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
# As where the package is installed: bytecode is kept, and not made anew in every start.
_INSTALLED = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True)
class Server:
    """A process that listens."""

    port: int
    pid: int
    ready_s: float  # from its start to its first answer

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Gateway(Server):
    """A running gateway."""

    def admin(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask as an admin; blocks."""
        return json.loads(self._ask(path, ADMIN_KEY, None if body is None else json.dumps(body)))

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
        self._ask("/feedback", KEY, json.dumps(body))

    def _ask(self, path: str, key: str, body: str | None = None) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else body.encode(),
            {"authorization": f"Bearer {key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read()


@contextlib.contextmanager
def running(folder: Path, latency_ms: float, **changes: Any) -> Generator[Gateway]:
    """Candidates and a calibrated gateway; ``changes`` go into its configuration."""
    with (
        candidates(latency_ms) as upstream,
        gateway(configure(folder, upstream.url + "/v1", **changes)) as started,
    ):
        started.calibrate(3)
        yield started


@contextlib.contextmanager
def candidates(latency_ms: float, gap_ms: float = 0.0) -> Generator[Server]:
    """All of the pool in one process; from here on this process has their core too."""
    os.sched_setaffinity(0, OTHER_CORES)
    command = [sys.executable, str(HERE / "upstream.py")]
    command += ["--latency-ms", str(latency_ms), "--gap-ms", str(gap_ms)]
    begun = time.perf_counter()
    with process(command, stdout=subprocess.PIPE, text=True) as upstream:
        assert upstream.stdout is not None
        port = int(upstream.stdout.readline())
        yield Server(port, upstream.pid, time.perf_counter() - begun)


def configure(folder: Path, base_url: str, **changes: Any) -> Path:
    """A router for the pool, and the configuration of a gateway that has it."""
    artifact = folder / "artifact"
    train(_rows(1, 600), _rows(2, 300), artifact, encoder=CharNgramEncoder(), kind="knn")
    candidate = {"base_url": base_url, "timeout_s": 2}
    values = {
        "schema_version": 1,
        "artifact": str(artifact),
        "candidates": [{"name": name, **candidate} for name in queries.POOL],
        "routing": {"score": "gap"},  # `cover` calls one of those who are right together
        **changes,
    }
    return written(folder, values)


def written(folder: Path, values: dict[str, Any]) -> Path:
    """A configuration as a file, on a port that is free."""
    config = folder / "racer.yaml"
    config.write_text(yaml.safe_dump({**values, "port": free_port()}), encoding="utf-8")
    return config


@contextlib.contextmanager
def gateway(config: Path, cores: Set[int] = GATEWAY_CORES) -> Generator[Gateway]:
    """Not yet calibrated, unless its store is; its log is beside its configuration."""
    port = yaml.safe_load(config.read_text(encoding="utf-8"))["port"]
    keys = {"RACER_DATA_KEY": KEY, "RACER_ADMIN_KEY": ADMIN_KEY}
    command = [sys.executable, "-m", "app", "serve", "--config", str(config)]
    log = config.with_name("gateway.log")
    with listening(command, port, "/healthz", log, keys, cores) as started:
        yield Gateway(started.port, started.pid, started.ready_s)


@contextlib.contextmanager
def listening(
    command: list[str],
    port: int,
    healthy: str,
    log: Path,
    environment: dict[str, str],
    cores: Set[int] = GATEWAY_CORES,
) -> Generator[Server]:
    """A process on the gateways' core, or on others, once it answers at ``healthy``."""
    begun = time.perf_counter()
    with (
        log.open("wb") as file,
        process(
            command, stdout=file, stderr=file, env=_INSTALLED | environment, cwd=HERE.parent
        ) as started,
    ):
        os.sched_setaffinity(started.pid, cores)
        _wait_for(f"http://127.0.0.1:{port}{healthy}", started, log)
        yield Server(port, started.pid, time.perf_counter() - begun)


@contextlib.contextmanager
def process(command: list[str], **options: Any) -> Generator[subprocess.Popen[Any]]:
    """Ends with the block."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(url: str, process: subprocess.Popen[Any], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.02)
    output = log.read_text(encoding="utf-8", errors="replace")
    raise SystemExit(f"{url} does not answer:\n{output[-2000:]}")


def _rows(seed: int, count: int) -> LabelledRows:
    labelled = queries.labelled(seed, count)
    rows = [LabelledRow(query=text, correct=frozenset(right)) for text, right in labelled]
    return LabelledRows(pool=queries.POOL, rows=tuple(rows))


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def manifest(**settings: Any) -> dict[str, Any]:
    """Where, how and with what figures were taken."""
    git = ["git", "-C", str(HERE.parent), "describe", "--always", "--dirty"]
    packages = ("aiohttp", "fastapi", "httptools", "numpy", "starlette", "uvicorn", "uvloop")
    return {
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "processor": _processor(),
        "cores": len(CORES),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "interpreter": _interpreter(),
        "packages": {name: metadata.version(name) for name in packages},
        "settings": settings,
    }


def taken(manifest: Mapping[str, Any]) -> str:
    """Where, how and when, as it stands above a table; without a full stop."""
    return (
        f"`{manifest['command']}` at {manifest['commit']}, {manifest['taken_at'][:10]}: "
        f"{manifest['processor']}, {manifest['cores']} cores, load "
        f"{manifest['load_average'][0]:.1f} at start"
    )


def publish(document: Mapping[str, Any], markdown: str, path: Path | None) -> None:
    """Print the tables of a result; write the file that `document.py` reads."""
    print(markdown)
    if path is not None:
        text = json.dumps({**document, "markdown": markdown}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


_OPTIMISATIONS = ("--enable-optimizations", "--with-lto")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def _interpreter() -> dict[str, Any]:
    """How this Python was built, as far as it says, and its time for a loop.

    Builds of one version differ by a third, and Debian's hides its optimisation: the loop, that of
    deploy/fastest-python, tells them apart.
    """
    arguments = shlex.split(sysconfig.get_config_var("CONFIG_ARGS") or "")
    work = "d = {str(i): i * i for i in range(300)}; sorted(d); sum(len(k) for k in d)"
    return {
        "build": platform.python_build(),
        "compiler": platform.python_compiler(),
        "optimised_by": [each for each in arguments if each.startswith(_OPTIMISATIONS)],
        "loop_ms": min(timeit.repeat(work, number=400, repeat=5)) * 1e3,
    }


def _processor() -> str:
    """The model by Linux's word, or by Python's, which seldom knows more than the architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
