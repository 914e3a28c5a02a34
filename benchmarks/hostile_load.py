"""Load with hostile traffic: a good key is answered or told when to come back, and nothing else.

    python benchmarks/hostile_load.py
    python benchmarks/hostile_load.py --idle 2000 --seconds 12

Requests of a good key arrive by a Poisson process at twice the gateway's capacity (`overload.py`).
Beside them a tenth as many hostile connections are opened a second, of one kind after the other:
silent, half a head, no HTTP at all, a wrong key, no content type, a page of another site, a body
that never comes, and a body that is no JSON. The exit code is 1 if a request of the good key ends
otherwise than with a right answer or a 429 that names a wait, or if a probe is not answered.

With `--idle` another address opens so many silent connections a second, and keeps 10,000 of them as
far as the gateway lets it. Meanwhile requests of the good key and probes come on new connections,
from that address and from another one: the exit code is 1 if one is not answered with 200.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import load
import overload
import rig
import uvloop
from load import Answer, Ask, Kind, Outcome

SHARE = 0.1  # hostile connections, of the requests of the good key
SILENT_S = 10.0  # how long a hostile client keeps its connection
PROBE_S = 0.5  # between two probes
MOST_IDLE = 10_000  # silent connections that are kept
MOST_OPENED = 25_000  # by one address, whose ports are used again only after a minute
PLACES = {"elsewhere": "127.0.0.1", "the same address": "127.0.0.2"}  # of who asks
AT_ONCE = 4  # newcomers at each place
IDLE_FROM = PLACES["the same address"]
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
KEYED = CHAT + "Authorization: Bearer {key}\r\n"
JSON = "Content-Type: application/json\r\n"
HOSTILE = {
    "silent": "",
    "half a head": CHAT,
    "no HTTP": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "wrong key": CHAT + JSON + "Authorization: Bearer nobody\r\nContent-Length: 2\r\n\r\n{{}}",
    "no content type": KEYED + "Content-Length: 2\r\n\r\n{{}}",
    "another site": KEYED + JSON + "Origin: http://evil.test\r\nContent-Length: 2\r\n\r\n{{}}",
    "no body": KEYED + JSON + "Content-Length: 1000000\r\n\r\n",
    "no JSON": KEYED + JSON + "Content-Length: 4\r\n\r\nnull",
}


def judged(ask: Ask, answer: Answer) -> tuple[Kind, str]:
    """Of a completion: right, a 429 that names a wait, or an error."""
    kind, said = load.judged(ask, answer)
    if kind is Kind.REFUSED and answer.status != 429:
        return Kind.ERROR, f"{answer.status} {said}"
    return kind, said


async def attack(port: int, rate: float, seconds: float, opened: list[str]) -> None:
    """Open hostile connections at a constant rate, each of the next kind."""
    kinds: Iterator[tuple[str, str]] = itertools.cycle(HOSTILE.items())

    async def one(text: str) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text.format(host=f"127.0.0.1:{port}", key=rig.KEY).encode("latin-1"))
            async with asyncio.timeout(SILENT_S):
                while await reader.read(65_536):
                    pass
            writer.close()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            if (wait_s := start + number / rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            kind, text = next(kinds)
            opened.append(kind)
            group.create_task(one(text))


async def probe(port: int, seconds: float) -> dict[str, int]:
    """Ask for the health, each time on a new connection."""
    found = {"probes": 0, "failed": 0}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        found["probes"] += 1
        try:
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0)
            found["failed"] += answer.status_code != 200
        except httpx.HTTPError:
            found["failed"] += 1
        await asyncio.sleep(PROBE_S)
    return found


async def measure(gateway: rig.Gateway, seconds: float) -> dict[str, Any]:
    """The capacity, and the overload with hostile traffic beside it."""
    asks = overload.kinds()["cached"]
    client = load.Client(gateway.port, rig.KEY, judge=judged)
    await load.closed(client, asks, 8, 3.0)  # caches and connections are warm
    curve = await overload.knee(client, asks, max(2.0, seconds / 15))
    rate = overload.TWICE * max(each["goodput"] for each in curve)
    outcomes, opened = list[Outcome](), list[str]()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.open_loop(client, asks, rate, seconds, outcomes.append))
        group.create_task(attack(gateway.port, SHARE * rate, seconds, opened))
        probes = group.create_task(probe(gateway.port, seconds))
    return {
        "rate": rate,
        "hostile": len(opened),
        **overload.summary(outcomes, seconds),
        **probes.result(),
    }


class Silent(asyncio.Protocol):
    """A connection that sends nothing.

    Args:
        held: Those that are open.
    """

    def __init__(self, held: set[asyncio.BaseTransport]) -> None:
        self._held = held

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be held."""
        self._transport = transport
        self._held.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway closed it."""
        self._held.discard(self._transport)


async def idle(port: int, rate: float, seconds: float) -> dict[str, Any]:
    """Open silent connections at a constant rate, as far as fewer than ``MOST_IDLE`` are open."""
    loop, held, opened, most = asyncio.get_running_loop(), set[asyncio.BaseTransport](), 0, 0
    start, number = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - start) < seconds:
        due = int(rate * passed_s) - number
        number += due
        wanted = max(0, min(due, MOST_IDLE - len(held)))
        found = await asyncio.gather(
            *(
                loop.create_connection(
                    lambda: Silent(held), "127.0.0.1", port, local_addr=(IDLE_FROM, 0)
                )
                for _ in range(wanted)
            ),
            return_exceptions=True,
        )
        opened += sum(not isinstance(each, BaseException) for each in found)
        most = max(most, len(held))
        await asyncio.sleep(0.005)
    for each in held:
        each.close()  # type: ignore[attr-defined]
    return {"opened": opened, "opened_s": opened / seconds, "held_most": most}


async def newcomers(gateway: rig.Gateway, place: str, seconds: float) -> Counter[str]:
    """Requests of the good key and probes in turn, each on a new connection: their statuses."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "What is 1 plus 1?"}]}
    found = Counter[str]()
    end = time.perf_counter() + seconds
    for kind in itertools.cycle(("requests", "probes")):
        if time.perf_counter() > end:
            break
        transport = httpx.AsyncHTTPTransport(local_address=PLACES[place], verify=False)
        try:
            async with httpx.AsyncClient(transport=transport, timeout=10.0) as client:
                answer = await (
                    client.get(f"{gateway.url}/healthz")
                    if kind == "probes"
                    else client.post(
                        f"{gateway.url}/v1/chat/completions",
                        json=body,
                        headers={"authorization": f"Bearer {rig.KEY}"},
                    )
                )
            status = str(answer.status_code)
        except httpx.HTTPError as exc:
            status = type(exc).__name__
        found[f"{kind} {status}"] += 1
    return found


def open_files(gateway: rig.Gateway) -> int:
    """Number of the files that it holds."""
    return sum(1 for _ in Path(f"/proc/{gateway.pid}/fd").iterdir())


async def measure_idle(gateway: rig.Gateway, rate: float, seconds: float) -> dict[str, Any]:
    """Newcomers of both places beside silent connections, and the files that the gateway holds."""
    most = 0
    async with asyncio.TaskGroup() as group:
        silent = group.create_task(idle(gateway.port, rate, seconds))
        asked = {
            place: [group.create_task(newcomers(gateway, place, seconds)) for _ in range(AT_ONCE)]
            for place in PLACES
        }
        while not silent.done():
            most = max(most, open_files(gateway))
            await asyncio.sleep(PROBE_S)
    found: dict[str, Counter[str]] = {
        place: sum([each.result() for each in tasks], Counter[str]())
        for place, tasks in asked.items()
    }
    good = ("requests 200", "probes 200")
    failed = sum(each.total() - sum(each[kind] for kind in good) for each in found.values())
    return {"idle": rate, **silent.result(), "files_most": most, **found, "failed": failed}


def main() -> None:
    """Measure, print, and fail where a good key or a probe was not served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--latency-ms", type=float, default=20, help="of a candidate, +- 25 %%")
    parser.add_argument("--idle", type=float, help="silent connections a second, and no others")
    parser.add_argument("--json", type=Path, help="write the document here, too")
    args = parser.parse_args()
    if args.idle is not None and args.idle * args.seconds > MOST_OPENED:
        parser.error(f"one address has ports for {MOST_OPENED:,} connections: take fewer seconds")
    gc.disable()
    options = {"watching": {"false_alarm": None}}
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.running(Path(folder), args.latency_ms, **options) as gateway,
    ):
        found = uvloop.run(
            measure(gateway, args.seconds)
            if args.idle is None
            else measure_idle(gateway, args.idle, args.seconds)
        )
    document = {"manifest": rig.manifest(seconds=args.seconds), **found}
    print(json.dumps(document, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if found.get("errors") or found["failed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
