"""Latency of live queries while a calibration runs, on a gateway with the demo's encoder.

    python benchmarks/router_load.py --json benchmarks/results/router_load.json

Every round has two windows of the same length. In one, the encoder scores rows of a calibration job
(`POST /calibrate`), which is cancelled at the window's end; in the other it scores live queries
only. The order alternates by round. Live queries arrive by a Poisson process at `POST /route`, and
the decision cache is off. Ratios are taken within a round. At the end a whole calibration runs
beside live queries, and queries are repeated alone: their sets must equal those under load.
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import load
import rig
import starts
import uvloop
from load import Answer, Ask, Client, Kind, Outcome
from measures import quantile
from verdict import Goal, aims, table

DATA = rig.HERE.parent / "deploy" / "demo" / "data"
UNUSED_URL = "http://127.0.0.1:9/v1"  # candidates are not called
SLICE_S = 1.0  # of live traffic, between two looks at the job
POLL_S = 0.05
READY = 400  # rows of the first calibration, which makes the gateway ready and warm
SERIAL = 200  # queries that are asked again, alone
SETTINGS = ("rows", "rounds", "rate", "window")
WITH, WITHOUT = "beside a calibration", "alone"
AIMS = {"p50_ms": 1.2, "p99_ms": 1.5}


@dataclass
class Sets:
    """A judge that records the sets of each query."""

    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def __call__(self, ask: Ask, answer: Answer) -> tuple[Kind, str]:
        """Every decision counts as right."""
        if answer.status != 200:
            return load.refused(answer)
        self.seen[ask.query].add(answer.headers[b"x-racer-selected"].decode())
        return Kind.RIGHT, ""


@dataclass(frozen=True)
class Live:
    """A gateway, its calibration rows, and an endless source of live queries."""

    gateway: rig.Gateway
    client: Client
    rows: str
    asks: Iterator[Ask]
    rate: float
    seeds: Iterator[int] = field(default_factory=itertools.count)

    async def window(self, seconds: float) -> list[Outcome]:
        """Live traffic for ``seconds``."""
        outcomes: list[Outcome] = []
        note, seed = outcomes.append, next(self.seeds)
        await load.open_loop(self.client, self.asks, self.rate, seconds, note, seed)
        return outcomes

    async def beside(self, seconds: float) -> list[Outcome]:
        """Live traffic while a calibration runs; the calibration is then cancelled."""
        job = await self._start_calibration()
        outcomes = await self.window(seconds)
        if (await self._status(job))["status"] != "running":
            raise SystemExit("the calibration was over before its window: take more rows")
        await asyncio.to_thread(self.gateway.cancel, job)
        await asyncio.to_thread(self._wait_while, job, "running")
        return outcomes

    async def calibrated(self) -> tuple[list[Outcome], float]:
        """Live traffic until a calibration is done, and its duration in seconds."""
        begun = time.perf_counter()
        job = await self._start_calibration()
        outcomes: list[Outcome] = []
        while (await self._status(job))["status"] == "running":
            outcomes += await self.window(SLICE_S)
        if (last := await self._status(job))["status"] != "done":
            raise SystemExit(f"the calibration failed: {last}")
        return outcomes, time.perf_counter() - begun

    async def round(self, *, calibrating_first: bool, seconds: float) -> dict[str, Any]:
        """One window with a calibration and one without."""
        windows = {WITH: self.beside, WITHOUT: self.window}
        order = (WITH, WITHOUT) if calibrating_first else (WITHOUT, WITH)
        return {name: _figures(await windows[name](seconds)) for name in order}

    async def _start_calibration(self) -> str:
        job = await asyncio.to_thread(self.gateway.upload, self.rows)
        await asyncio.to_thread(self._wait_while, job["id"], "waiting")
        return job["id"]

    async def _status(self, job: str) -> dict[str, Any]:
        return await asyncio.to_thread(job_status, self.gateway, job)

    def _wait_while(self, job: str, status: str) -> None:
        while job_status(self.gateway, job)["status"] == status:
            time.sleep(POLL_S)


def job_status(gateway: rig.Gateway, job: str) -> dict[str, Any]:
    """The state of a calibration job; blocks."""
    return gateway.admin(f"/calibrations/jobs/{job}")["job"]


def main() -> None:
    """Measure, print Markdown tables, and exit with 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=20.0, help="seconds")
    parser.add_argument("--rate", type=float, default=20.0, help="live queries a second")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    manifest = rig.manifest(**{name: getattr(args, name) for name in SETTINGS})
    document: dict[str, Any] = {"manifest": manifest, **measured(args)}
    rig.publish(document, markdown(document), args.json)
    windows = [each[window] for each in document["rounds"] for window in (WITH, WITHOUT)]
    if document["changed"] or any(each["failed"] for each in [*windows, document["whole"]]):
        raise SystemExit(1)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """All rounds, and the number of queries whose set under load differed from that alone."""
    sets = Sets()
    queries = _queries("test.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        unkept = {"limits": {"decisions_kept": 0}, "watching": {"false_alarm": None}}
        config = starts.demo(Path(folder), UNUSED_URL, **unkept)
        with rig.gateway(config) as gateway:
            client = Client(gateway.port, rig.KEY, path="/route", model=None, judge=sets)
            asks = map(Ask, itertools.cycle(queries))
            live = Live(gateway, client, labelled(args.rows), asks, args.rate)
            _calibrate(gateway, labelled(READY))
            found = uvloop.run(_rounds(live, args, sets, queries[:SERIAL]))
    return {**found, "queries": len(sets.seen)}


def _calibrate(gateway: rig.Gateway, rows: str) -> None:
    job = gateway.upload(rows)["id"]
    while (state := job_status(gateway, job))["status"] in ("waiting", "running"):
        time.sleep(POLL_S)
    assert state["status"] == "done", state


async def _rounds(
    live: Live, args: argparse.Namespace, sets: Sets, again: list[str]
) -> dict[str, Any]:
    rounds = [
        await live.round(calibrating_first=number % 2 == 0, seconds=args.window)
        for number in range(args.rounds)
    ]
    alone = await load.closed(live.client, map(Ask, again), 1)
    assert all(each.kind is Kind.RIGHT for each in alone)
    changed = sum(len(found) > 1 for found in sets.seen.values())
    # Last, since this calibration becomes the active one.
    outcomes, took_s = await live.calibrated()
    live.client.close()
    whole = {**_figures(outcomes), "calibration_s": took_s}
    return {"rounds": rounds, "changed": changed, "whole": whole}


def labelled(count: int) -> str:
    """``count`` of the demo's calibration rows, repeated with a number that makes them unique."""
    lines = (DATA / "calibration.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return "".join(
        json.dumps({"query": f"{row['query']} ({number})", "correct": row["correct"]}) + "\n"
        for number, row in zip(range(count), itertools.cycle(rows), strict=False)
    )


def _queries(name: str) -> list[str]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["query"] for line in lines]


def _figures(outcomes: list[Outcome]) -> dict[str, Any]:
    kinds = Counter(each.kind for each in outcomes)
    took = [1e3 * each.latency_s for each in outcomes if each.kind is Kind.RIGHT]
    return {
        "sent": len(outcomes),
        "failed": len(outcomes) - kinds[Kind.RIGHT],
        **{f"p{percent}_ms": quantile(took, percent / 100) for percent in (50, 95, 99)},
        "late_p99_ms": quantile([1e3 * each.late_s for each in outcomes], 0.99),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Provenance, targets, and a row for each kind of window."""
    manifest, rounds = document["manifest"], document["rounds"]
    settings = manifest["settings"]
    goals = [
        Goal(
            f"live {figure.removesuffix('_ms')}, beside a calibration / alone",
            median(each[WITH][figure] / each[WITHOUT][figure] for each in rounds),
            most,
            unit=" x",
        )
        for figure, most in AIMS.items()
    ]
    goals.append(Goal("queries whose set changed under load", document["changed"], 0))
    figures = ("p50_ms", "p95_ms", "p99_ms", "late_p99_ms")
    rows = [
        [
            window,
            *(f"{median(each[window][figure] for each in rounds):.1f}" for figure in figures),
            f"{sum(each[window]['sent'] for each in rounds):,}",
            str(sum(each[window]["failed"] for each in rounds)),
        ]
        for window in (WITHOUT, WITH)
    ]
    head = ("live queries", "p50, ms", "p95", "p99", "generator late, p99", "sent", "failed")
    took_s = document["whole"]["calibration_s"]
    where = (
        f"{rig.taken(manifest)}. {settings['rounds']} rounds of two windows of "
        f"{settings['window']:g} s, {settings['rate']:g} live queries a second, "
        f"{document['queries']:,} distinct. A calibration of {settings['rows']:,} rows beside live "
        f"traffic took {took_s:.0f} s; {document['whole']['failed']} of "
        f"{document['whole']['sent']:,} queries failed.\n"
    )
    return "\n".join((where, aims(goals), table(head, rows)))


if __name__ == "__main__":
    main()
