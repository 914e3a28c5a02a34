"""CPU time of one call to a candidate, by client: the gateway's own, aiohttp, and pyreqwest.

    PYTHONPATH=. python benchmarks/upstream_call.py
    PYTHONPATH=. python benchmarks/upstream_call.py --stream

One process calls `upstream.py`, which answers at once, over 16 kept connections. The arms take
turns; each has an event loop of its own, and calls for warming up that are not counted. All threads
of the process count. Arms whose package is not installed are left out (`pip install aiofastnet
pyreqwest`).
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import aiohttp
import rig
import uvloop
from verdict import table

from app.settings import FleetSettings, Limits
from app.upstream.http_client import UpstreamClient
from app.upstream.replicas import Replicas, Target

CONNECTIONS = 16
WARM_UP = 20  # calls of each connection
HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
Call = Callable[[], Awaitable[None]]
Arm = Callable[[str, bytes], AbstractAsyncContextManager[Call]]


@asynccontextmanager
async def own(base_url: str, data: bytes) -> AsyncGenerator[Call]:
    """The gateway's client, as the fleet uses it."""
    replicas = Replicas("adder", [base_url], rules=FleetSettings(), concurrency=CONNECTIONS)
    target = Target(name="adder", replicas=replicas, headers=HEADERS, timeout_s=10)
    async with UpstreamClient(FleetSettings(), Limits()) as client:

        async def call() -> None:
            answer = await client.post(
                target,
                replicas.all[0],
                "chat/completions",
                data,
                limit_s=10,
                may_reconnect=True,
            )
            try:
                if answer.is_stream:
                    while await answer.read_part():
                        pass
                else:
                    await answer.read_all()
            finally:
                answer.close()

        yield call


@asynccontextmanager
async def aiohttp_alone(base_url: str, data: bytes) -> AsyncGenerator[Call]:
    """A session of aiohttp as a proxy without limits uses it."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def call() -> None:
            url = f"{base_url}/chat/completions"
            async with session.post(url, data=data, headers=HEADERS) as answer:
                async for _ in answer.content.iter_any():
                    pass

        yield call


@asynccontextmanager
async def aiohttp_on_aiofastnet(base_url: str, data: bytes) -> AsyncGenerator[Call]:
    """The same on other transports."""
    import aiofastnet

    aiofastnet.patch_loop(asyncio.get_running_loop())
    async with aiohttp_alone(base_url, data) as call:
        yield call


@asynccontextmanager
async def pyreqwest(base_url: str, data: bytes) -> AsyncGenerator[Call]:
    """reqwest, on a thread of its own."""
    from pyreqwest.client import ClientBuilder

    async with ClientBuilder().http1_only().no_proxy().build() as client:

        async def call() -> None:
            url = f"{base_url}/chat/completions"
            request = client.post(url).headers(HEADERS).body_bytes(data)
            async with request.build_streamed() as answer:
                while await answer.body_reader.read_chunk():
                    pass

        yield call


ARMS: dict[str, tuple[str, Arm]] = {
    "the gateway's client": ("app", own),
    "aiohttp": ("aiohttp", aiohttp_alone),
    "aiohttp on aiofastnet": ("aiofastnet", aiohttp_on_aiofastnet),
    "pyreqwest": ("pyreqwest", pyreqwest),
}


async def cpu_us(arm: Arm, base_url: str, data: bytes, calls: int) -> float:
    """CPU time of one call, in microseconds."""

    async def repeat(call: Call, count: int) -> None:
        for _ in range(count):
            await call()

    async with arm(base_url, data) as call:
        await asyncio.gather(*(repeat(call, WARM_UP) for _ in range(CONNECTIONS)))
        each = calls // CONNECTIONS
        started = time.process_time()
        await asyncio.gather(*(repeat(call, each) for _ in range(CONNECTIONS)))
        return (time.process_time() - started) / (each * CONNECTIONS) * 1e6


def main() -> None:
    """Measure the arms and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000, help="of an arm in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stream", action="store_true", help="answers are streams")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    arms = {name: arm for name, (package, arm) in ARMS.items() if find_spec(package)}
    settings = {"calls": args.calls, "rounds": args.rounds, "stream": args.stream}
    manifest = rig.manifest(**settings, connections=CONNECTIONS)
    body = {"model": "adder", "messages": [{"role": "user", "content": "12 plus 30"}]}
    data = json.dumps(body | {"stream": args.stream, "user": "x" * 200}).encode()
    upstream = subprocess.Popen(
        [sys.executable, str(rig.HERE / "upstream.py"), "--latency-ms", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert upstream.stdout is not None
        base_url = f"http://127.0.0.1:{int(upstream.stdout.readline())}/v1"
        rounds = [
            {
                name: uvloop.run(cpu_us(arm, base_url, data, args.calls))
                for name, arm in arms.items()
            }
            for _ in range(args.rounds)
        ]
    finally:
        upstream.kill()
        upstream.wait()
    rows = [
        (
            name,
            f"{median(each[name] for each in rounds):.1f}",
            f"{min(each[name] for each in rounds):.1f}",
        )
        for name in arms
    ]
    document = {"manifest": manifest, "rounds": rounds}
    head = ("client", "CPU of a call, µs: median", "least")
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{table(head, rows)}", args.json)


if __name__ == "__main__":
    main()
