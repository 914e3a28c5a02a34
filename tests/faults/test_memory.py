"""Memory limits: no hostile answer takes more than the caps, for any declared size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.gateway import DATA_KEY, TWO, user
from tests.kit.hostile.process import ROOT
from tests.kit.network import free_port

from .bench import Bench, Limits

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read from Linux's /proc"
)
MIB = 2**20
# Twice what one exchange may hold: a request of 4 MiB and three answers of 8 MiB.
GROWTH_MIB = 56
LIMITS = Limits(candidate_s=5, request_s=8, answer_bytes=8 * MIB)
HOSTILE = (
    "huge:64",
    "infinite",
    "endless_line",
    "endless_comments",
    "bomb:gzip",
    "bomb:deflate",
    "many_headers",
    "big_header",
    "endless_headers",
    "interim:endless",
)


@contextmanager
def served(config: Path, environment: dict[str, str], url: str) -> Generator[int]:
    """``racer serve`` in a process; gives its id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--config", str(config)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx2.Client(base_url=url, trust_env=False, verify=False) as client:
            _wait(client, process)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _wait(client: httpx2.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.get("/healthz")
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the gateway did not start")


def grown_mib(pid: int, act: Callable[[], object]) -> float:
    """How far the peak of a process's memory rises above where it was."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is now what it has
    before = _kib(pid, "VmRSS")
    act()
    return (_kib(pid, "VmHWM") - before) / 1024


def _kib(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def gateway(bench: Bench) -> Iterator[tuple[int, httpx2.Client]]:
    """A gateway in a process of its own, and a client for it."""
    port = free_port()
    config = bench.configure("memory", LIMITS, port=port)
    url = f"http://127.0.0.1:{port}"
    headers = {"authorization": f"Bearer {DATA_KEY}"}
    with (
        served(config, bench.environment, url) as pid,
        httpx2.Client(
            base_url=url, headers=headers, trust_env=False, verify=False, timeout=60
        ) as client,
    ):
        yield pid, client


def ask(client: httpx2.Client, bench: Bench, mode: str, *, stream: bool) -> None:
    """Three candidates at once behave so; whatever comes of it."""
    cell = f"memory {mode} {stream}"
    plan = {"cell": cell, "modes": dict.fromkeys(("adder", "speller", "poet"), mode)}
    httpx2.put(
        f"{bench.upstream.url}/_plan", json=plan, verify=False, trust_env=False
    ).raise_for_status()
    body: dict[str, Any] = {
        "model": "auto",
        "messages": user(TWO),
        "user": cell,
        "stream": stream,
        "racer": {"alpha": 0.001},  # the whole pool
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 502, 503, 504), answer.text


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("mode", HOSTILE)
def test_three_hostile_answers_at_once_stay_within_the_caps(
    bench: Bench, gateway: tuple[int, httpx2.Client], mode: str, stream: bool
) -> None:
    """A GiB that is announced, packed or dripped never is a GiB in memory."""
    pid, client = gateway
    for _ in range(5):
        ask(client, bench, "healthy", stream=stream)
    grown = grown_mib(pid, lambda: ask(client, bench, mode, stream=stream))
    assert grown <= GROWTH_MIB, f"{mode}: {grown:.0f} MiB"
