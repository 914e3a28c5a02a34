"""Does the time of a refusal tell how much of a key was right?

    python benchmarks/key_timing.py --attempts 10000

A key that is wrong in its first byte and one that is wrong in its last are tried in random order,
and their times are compared by Welch's t. Bound: |t| < 4.5, which chance alone breaks with
probability 7e-6 in each row. The slowest tenth of both together is left out: that is other
processes' work. The last row, a comparison that stops at the first wrong byte, must break it.
"""

import argparse
import gc
import math
import platform
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import uvicorn
import uvloop
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.routing import Route

from app.access.api_keys import KeyRing
from app.http.access_control import AccessControl
from app.http.connection import ConnectionConfig
from app.http.connection_limits import UnauthenticatedConnections
from app.http.refused_connections import RefusedConnections
from app.http.request_log import RequestLog
from app.services import Drain
from app.settings import Limits, Secrets, Settings, key_format
from app.settings.access import Access, Key
from app.telemetry.metrics import Metrics

BOUND = 4.5
KEYS = 8
Attempt = Callable[[bytes], None]


def main() -> None:
    """Measure, print a Markdown table, and fail if the bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000)
    attempts = parser.parse_args().attempts
    keys = [key_format.new_key() for _ in range(KEYS)]
    access = Access(keys=tuple(_entry(key, f"k{number}") for number, key in enumerate(keys)))
    ring = KeyRing(access.keys, Secrets())
    right = keys[0].encode()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{attempts:,} attempts each, {KEYS} keys known\n")
    print("| way | median | difference of means | its standard error | t |")
    print("| --- | --- | --- | --- | --- |")
    found = [_row("`KeyRing.find`", _times(lambda key: _refused(ring.find(key)), right, attempts))]
    with _serving(access, ring) as ask:
        found.append(_row("HTTP request to 401", _times(ask, right, attempts)))
    stops_early = _times(lambda key: _compare_early(key, right), right, attempts)
    seen = _row("stops at the first wrong byte", stops_early)
    if any(abs(t) >= BOUND for t in found) or abs(seen) < BOUND:
        sys.exit("the bound is broken")


def _times(attempt: Attempt, right: bytes, attempts: int) -> NDArray[np.float64]:
    """Nanoseconds, shape (2, attempts): wrong in the first byte, wrong in the last."""
    wrong = (b"#" + right[1:], right[:-1] + b"#")
    order = [0, 1] * attempts
    random.Random(0).shuffle(order)
    taken: tuple[list[int], list[int]] = ([], [])
    for which in order[: min(attempts, 1_000)]:  # warms up
        attempt(wrong[which])
    gc.disable()
    for which in order:
        begun = time.perf_counter_ns()
        attempt(wrong[which])
        taken[which].append(time.perf_counter_ns() - begun)
    gc.enable()
    return np.array(taken, dtype=np.float64)


def _row(way: str, times: NDArray[np.float64]) -> float:
    """Print a row; returns Welch's t."""
    first, last = (each[each <= np.quantile(times, 0.9)] for each in times)
    error = math.sqrt(first.var(ddof=1) / first.size + last.var(ddof=1) / last.size)
    difference = float(last.mean() - first.mean())
    t = difference / error
    median = float(np.median(times)) / 1e3
    print(f"| {way} | {median:.1f} us | {difference:+.1f} ns | {error:.1f} ns | {t:+.2f} |")
    return t


@contextmanager
def _serving(access: Access, ring: KeyRing) -> Generator[Attempt]:
    """The front of the gateway on a socket: all that a request passes that is refused."""
    settings = Settings.model_validate(
        {
            "schema_version": 1,
            "artifact": "none",
            "candidates": [{"name": "nobody", "base_url": "http://localhost/v1"}],
            "access": access.model_copy(update={"failures_per_minute": sys.maxsize}),
        }
    )
    metrics, drain = Metrics(), Drain()
    gate = AccessControl(
        Starlette(),
        routes=[Route("/v1/models", _never, methods=["GET"])],
        settings=settings,
        keys=ring,
        drain=drain,
    )
    front = RequestLog(gate, metrics=metrics, drain=drain, log_prompts=False)
    refused = RefusedConnections(metrics.connection_refusals)
    server = uvicorn.Server(
        ConnectionConfig(front, Limits(), UnauthenticatedConnections(None), refused)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[listener])))
        serve.start()
        try:
            with socket.create_connection(listener.getsockname()) as connection:
                yield lambda key: _ask(connection, key)
        finally:
            server.should_exit = True
            serve.join()


def _ask(connection: socket.socket, key: bytes) -> None:
    """One request, to the last byte of its answer."""
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
    connection.sendall(head + key + b"\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(2**16)
    assert answer.startswith(b"HTTP/1.1 401"), answer


def _never() -> None:
    raise AssertionError("nobody gets here")


def _entry(key: str, name: str) -> Key:
    return Key(name=name, hash=key_format.written(key, key_format.new_salt()))


def _refused(found: object) -> None:
    assert found is None


def _compare_early(key: bytes, right: bytes) -> None:
    for one, other in zip(key, right, strict=True):
        if one != other:
            return


if __name__ == "__main__":
    main()
