"""Soak test: all features at once at 70 % of the capacity, with a check for leaks.

    python benchmarks/soak.py --minutes 30

Sets of one to three candidates, half of the answers streamed, faults of candidates in 5 % of the
calls (500, cut, hanging, garbage), disconnects of 5 % of the clients, a calibration and an
activation a minute, shadow samples, decisions and feedback. Every answer is checked. The injected
fault is a function of the query, so an error that was not injected is found. The exit code is 1 if
a target is missed.
"""

import argparse
import asyncio
import itertools
import json
import math
import random
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import load
import overload
import queries
import rig
import uvloop
from load import Ask, Kind, Outcome
from measures import held, quantile, theil_sen

LOAD = 0.7
WATCHING = {"shadow_rate": 0.02, "feedback": "all"}
STREAMED, LEAVING, JUDGED = 0.5, 0.05, 0.02
FIRST_REQUESTS = 10_000  # caches and pools fill; the slope is that of the rest
DISTINCT = 3_000  # queries, so that the gateway knows all of them by then: it remembers 100,000
SLOPE_KIB, GROWN, DRIFTED = 50, 2, 1.2
SETTLE_S = 90.0  # for connections that are kept to go


@dataclass
class Soak:
    """What is collected on the way."""

    gateway: rig.Gateway
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[tuple[float, float]] = field(default_factory=list)  # of undisturbed answers
    samples: list[dict[str, float]] = field(default_factory=list)
    to_judge: list[Outcome] = field(default_factory=list)
    calibrated: int = 0

    def note(self, outcome: Outcome) -> None:
        """One request is over."""
        self.kinds[outcome.kind] += 1
        query = outcome.ask.query
        if outcome.kind in (Kind.ERROR, Kind.WRONG):
            self.errors[outcome.message] += 1
        elif outcome.kind is Kind.RIGHT and not queries.may_fail(query):
            self.latencies.append((outcome.due, outcome.latency_s))
            if outcome.served_by and random.random() < JUDGED:
                self.to_judge.append(outcome)

    async def watch(self) -> None:
        """Sample once a second, until cancelled."""
        while True:
            self.samples.append(await asyncio.to_thread(self.sample))
            await asyncio.sleep(1)

    def sample(self) -> dict[str, float]:
        """What the gateway holds now; blocks."""
        tasks = self.gateway.metric("racer_tasks")
        requests = sum(self.kinds.values())
        return {"requests": requests, "tasks": tasks, **asdict(held(self.gateway.pid))}

    async def judge(self) -> None:
        """Give feedback on what was answered, until cancelled."""
        while True:
            await asyncio.sleep(1)
            while self.to_judge:
                right = self.to_judge.pop()  # its candidate is one of the decision's pool
                verdict = {right.served_by: True}
                await self._call(self.gateway.judge, right.decision, verdict)

    async def calibrate(self, every_s: float) -> None:
        """A new calibration, and the one before it made active again, until cancelled."""
        before = None
        for seed in itertools.count(100):
            await asyncio.sleep(every_s / 2)
            made = await self._call(self.gateway.calibrate, seed)
            await asyncio.sleep(every_s / 2)
            if before is not None:
                await self._call(self.gateway.admin, f"/calibrations/{before}/activate", {})
            before, self.calibrated = made, self.calibrated + 1

    async def _call(self, do: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(do, *arguments)
        except urllib.error.HTTPError as exc:
            if exc.code != 429:  # come back later, which the next round is
                self.errors[f"{exc.code} {do.__name__} {exc.read()[:200]!r}"] += 1


def traffic(seed: int) -> Iterator[Ask]:
    """Queries on which candidates may break, from clients some of which leave."""
    rng = random.Random(seed)
    distinct = list(itertools.islice(queries.endless(seed, breakable=True), DISTINCT))
    while True:
        query = rng.choice(distinct)
        leaves = rng.random() < LEAVING
        stay_s = rng.uniform(0.001, 0.06) if leaves else None
        yield Ask(query, stream=rng.random() < STREAMED, stay_s=stay_s)


async def run(gateway: rig.Gateway, minutes: float, rate: float | None) -> dict[str, Any]:
    """Find the knee, soak, let everything settle."""
    client = load.Client(gateway.port, rig.KEY)
    if rate is None:
        curve = await overload.knee(client, map(Ask, queries.endless(21)), 5.0)
        rate = LOAD * max(each["goodput"] for each in curve)
    soak, asks, seconds = Soak(gateway), traffic(22), 60 * minutes
    await load.open_loop(client, asks, rate, 15.0, lambda _: None)
    client.close()
    looks = (asyncio.to_thread(gateway.admin, "/calibrations") for _ in range(64))
    await asyncio.gather(*looks)  # at once, so that the gateway's pool has all its threads
    await asyncio.sleep(5)
    start = await asyncio.to_thread(soak.sample)
    begun = time.perf_counter()
    beside = [asyncio.create_task(each) for each in (soak.watch(), soak.judge())]
    beside.append(asyncio.create_task(soak.calibrate(min(60.0, seconds / 3))))
    await load.open_loop(client, asks, rate, seconds, soak.note)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    client.close()
    end = await settled(soak, start)
    tenths: list[list[float]] = [[] for _ in range(10)]
    for due, took in soak.latencies:
        tenths[min(9, int(10 * (due - begun) / seconds))].append(took)
    return {
        "rate": rate,
        "outcomes": dict(soak.kinds),
        "errors": dict(soak.errors.most_common(20)),
        "calibrated": soak.calibrated,
        "start": start,
        "end": end,
        "slope": slope(soak.samples),
        "p99_s_by_tenth": [quantile(each, 0.99) for each in tenths],
        "samples": soak.samples,
    }


async def settled(soak: Soak, start: dict[str, float]) -> dict[str, float]:
    """What is held once it is as little as at the start, or has had time to be."""
    end = time.monotonic() + SETTLE_S
    while True:
        now = await asyncio.to_thread(soak.sample)
        if time.monotonic() > end or all(now[name] <= start[name] + GROWN for name in FLAT):
            return now
        await asyncio.sleep(1)


FLAT = ("descriptors", "threads", "tasks")


def slope(samples: list[dict[str, float]]) -> list[float] | None:
    """KiB of resident memory per 1,000 requests with its interval; None of too few samples."""
    late = [each for each in samples if each["requests"] >= FIRST_REQUESTS]
    if len(late) < 30:
        return None
    x = [each["requests"] / 1000 for each in late]
    return list(theil_sen(x, [each["rss_kib"] for each in late]))


def bars(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What is promised: a name, what was seen, and the most that it may be."""
    start, end, tenths = result["start"], result["end"], result["p99_s_by_tenth"]
    return [
        ("errors that were not injected", sum(result["errors"].values()), 0),
        *((f"{name} more than at the start", end[name] - start[name], GROWN) for name in FLAT),
        ("memory, KiB per 1,000 requests", (result["slope"] or [math.nan])[0], SLOPE_KIB),
        ("p99 of the last tenth, of the second", tenths[9] / tenths[1], DRIFTED),
    ]


def show(result: dict[str, Any]) -> None:
    """What came of the requests, and the bars."""
    print(f"{result['rate']:.0f} requests/s, {result['calibrated']} calibrations\n")
    print("| outcome | requests |\n| --- | --- |")
    for kind, count in result["outcomes"].items():
        print(f"| {kind} | {count:,} |")
    for message, count in result["errors"].items():
        print(f"\n{count} x {message}")
    print(f"\nmemory {result['start']['rss_kib'] / 1024:.0f} MiB at the start, ", end="")
    print(f"{result['end']['rss_kib'] / 1024:.0f} at the end")
    if result["slope"] is None:
        print("no slope: too few requests")
    else:
        print("slope {:.1f} KiB per 1,000 requests, 95 % {:.1f} to {:.1f}".format(*result["slope"]))
    print(
        "p99 by tenth, ms: " + ", ".join(f"{1e3 * each:.0f}" for each in result["p99_s_by_tenth"])
    )
    overload.show_bars(bars(result))


def main() -> None:
    """Soak, print, and fail where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--rate", type=float, help="requests a second, instead of 70 %% of the knee"
    )
    parser.add_argument("--latency-ms", type=float, default=20, help="of a candidate, +- 25 %%")
    parser.add_argument("--json", type=Path, help="write the document with all samples here")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.running(Path(folder), args.latency_ms, watching=WATCHING) as gateway,
    ):
        result = uvloop.run(run(gateway, args.minutes, args.rate))
    show(result)
    if args.json is not None:
        settings = {"minutes": args.minutes, "latency_ms": args.latency_ms}
        document = {"manifest": rig.manifest(**settings), **result}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if any(not seen <= most for _, seen, most in bars(result)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
