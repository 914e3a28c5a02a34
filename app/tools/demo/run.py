"""Demo run: starts a pool on the CPU and a gateway, calibrates, and measures.

Starts ``transformers serve`` with the pool and a gateway, uploads the calibration rows through
``POST /calibrate``, and sends test queries through the official ``openai`` client.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import yaml
from rich.console import Console
from rich.progress import Progress

from app.errors import SettingsError, UpstreamUnavailable
from app.settings.loading import read
from app.tools.demo.measure import MergeAnswers, measure
from app.tools.gateway_client import GatewayClient
from racer_core import artifacts
from racer_core.aggregation.vote import aggregate
from racer_core.errors import install_hint
from racer_core.records.reader import read_rows

# In a checkout beside the package; an installed package uses the current folder.
_ROOTS = (Path(__file__).resolve().parents[3], Path.cwd())
FOLDER = next((root / "deploy/demo" for root in _ROOTS if (root / "deploy/demo").is_dir()), Path())
CALIBRATION = FOLDER / "data" / "calibration.jsonl"
START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDemo:
    """A running demo."""

    url: str
    pool_url: str  # of the models' server
    admin_key: str
    seconds: float  # from the start of the command until ready
    processes: tuple[subprocess.Popen[bytes], ...]


def run(
    *,
    port: int,
    queries: int,
    once: bool,
    quiet: bool,
    show_result: Callable[[dict[str, Any]], None],
) -> None:
    """Start everything, measure, show the result, and stay up unless ``once``.

    Raises:
        SettingsError: The demo's files are missing, or the port is in use.
        UpstreamUnavailable: The pool or the gateway does not start.
    """
    console = Console(stderr=quiet, width=None if sys.stdout.isatty() else 120)
    with start_demo(port, console) as running:
        console.print(f"\nready after {running.seconds:.0f} s. In a browser: {running.url}/ui")
        console.print(f"(this demo's admin key, for Calibrate and Watch: {running.admin_key})")
        console.print("From another terminal:\n")
        console.print(_example_requests(running.url), markup=False, highlight=False, soft_wrap=True)
        with (
            Progress(console=console) as bars,
            GatewayClient(running.url, running.admin_key) as client,
        ):
            result = measure(
                client,
                running.url,
                CALIBRATION,
                read_rows(FOLDER / "data" / "test.jsonl"),
                queries=queries,
                merge=gateway_merge(),
                progress=_bar_per_stage(bars),
            )
        result["ready_seconds"] = running.seconds
        show_result(result)
        if not once:
            console.print(f"\nThe gateway stays up at {running.url}; Ctrl-C stops it.")
            while all(process.poll() is None for process in running.processes):
                time.sleep(1)
            raise UpstreamUnavailable("the pool or the gateway has exited")


def gateway_merge() -> MergeAnswers:
    """How the demo's gateway merges answers: its settings, and what is fitted in its router."""
    rule = read(FOLDER / "racer.yaml").aggregation
    return partial(
        aggregate,
        method=rule.method,
        weight=rule.weight,
        temperature=rule.temperature,
        options=rule.options,
        stacked=artifacts.load(FOLDER / "router").stacked,
    )


@contextmanager
def start_demo(port: int, console: Console) -> Generator[RunningDemo]:
    """Start the pool and a calibrated gateway; stop both on exit."""
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, _exit)  # otherwise the child processes would survive
    if not (FOLDER / "racer.yaml").is_file():
        raise SettingsError(
            "deploy/demo is not in this folder: run `racer demo` in a checkout of the repository"
        )
    _check_free(port)
    admin_key = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="racer-demo-")))
        pool_port = free_port()
        serve_pool = stack.enter_context(child_process(pool_command(pool_port), home / "pool.log"))
        command = [
            sys.executable,
            "-P",
            "-m",
            "racer_gateway",
            "serve",
            "--config",
            str(_config(home, pool_port)),
        ]
        environment = {"RACER_ADMIN_KEY": admin_key, "RACER_DATA_KEY": ""}
        gateway = stack.enter_context(
            child_process([*command, "--port", str(port)], home / "gateway.log", environment)
        )
        url = f"http://127.0.0.1:{port}"
        with console.status("starting five language models and the gateway ..."):
            wait_until_ready(f"http://127.0.0.1:{pool_port}/health", serve_pool, home / "pool.log")
            wait_until_ready(f"{url}/healthz", gateway, home / "gateway.log")
        calibrating = console.status("calibrating on 2,000 labelled queries ...")
        with calibrating, GatewayClient(url, admin_key) as client:
            client.calibrate(CALIBRATION, {})
        yield RunningDemo(
            url=url,
            pool_url=f"http://127.0.0.1:{pool_port}/v1",
            admin_key=admin_key,
            seconds=time.monotonic() - begun,
            processes=(serve_pool, gateway),
        )


def _exit(*_: object) -> None:
    sys.exit(143)


def pool_command(port: int) -> list[str]:
    """Command of one server for all five models; it loads a checkpoint on its first request."""
    executable = Path(sys.executable).parent / "transformers"
    if not executable.is_file():
        raise SettingsError(f"`transformers serve` is not installed: {install_hint('demo')}")
    return [
        str(executable), "serve", "--host", "127.0.0.1", "--port", str(port),
        "--device", "cpu", "--dtype", "float32", "--model-timeout", "86400",
    ]  # fmt: skip


def _config(home: Path, pool_port: int) -> Path:
    """Write the demo's configuration with the ports of this run and a new store."""
    values = yaml.safe_load((FOLDER / "racer.yaml").read_text(encoding="utf-8"))
    for candidate in values["candidates"]:
        candidate["base_url"] = f"http://127.0.0.1:{pool_port}/v1"
    values["artifact"] = str(FOLDER / values["artifact"])
    values["store"] = f"sqlite:///{home / 'racer.db'}"
    path = home / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@contextmanager
def child_process(
    command: Sequence[str], log: Path, environment: dict[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """A child process in the demo's folder: terminated on exit, killed after 10 s."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=FOLDER,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | (environment or {}),
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Poll ``url`` until it answers 200.

    Raises:
        UpstreamUnavailable: The process has ended, or ``START_LIMIT_S`` is over.
    """
    deadline = time.monotonic() + START_LIMIT_S
    with httpx2.Client(timeout=2.0, trust_env=False) as client:  # a client takes long to make
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(httpx2.TransportError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.1)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise UpstreamUnavailable(f"{url} did not start: {''.join(last)}")


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise SettingsError(f"port {port} is in use: choose another with --port") from exc


def free_port() -> int:
    """A port of the loopback address that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _example_requests(url: str) -> str:
    message = '{"role": "user", "content": "What is 17 plus 25?"}'
    return (
        f"curl {url}/v1/chat/completions -H 'content-type: application/json' "
        f"""-d '{{"model": "auto", "messages": [{message}]}}'\n\n"""
        'python -c "from openai import OpenAI; '
        f"print(OpenAI(base_url='{url}/v1', api_key='unused').chat.completions.create("
        "model='auto', messages=[{'role': 'user', 'content': 'What is 17 plus 25?'}]))\"\n"
    )


def _bar_per_stage(bars: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, Any] = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done)

    return show
