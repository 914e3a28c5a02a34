"""Live queries with and without a calibration beside them, on a gateway with the demo's encoder.

    python benchmarks/router_load.py --json benchmarks/results/router_load.json

Every round has two windows of the same length, one after the other: in one, rows that came through
`POST /calibrate` are being scored by the encoder, until the job is cancelled; in the other nothing
else happens. Rounds begin with the one and the other by turns. All the while queries come by a
Poisson process and are routed (`POST /route`), each by the encoder: decisions are not kept. A ratio
is taken within its round. In the end the rows are calibrated to the end beside live queries, and
queries are asked once more, alone: their sets must be those that they had under load.
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
NOBODY = "http://127.0.0.1:9/v1"  # candidates are not called
SLICE_S = 1.0  # of live traffic, between two looks at the job
POLL_S = 0.05
READY = 400  # rows of the first calibration, which makes the gateway ready and warm
SERIAL = 200  # queries that are asked again, alone
SETTINGS = ("rows", "rounds", "rate", "window")
WITH, WITHOUT = "beside a calibration", "alone"
AIMS = {"p50_ms": 1.2, "p99_ms": 1.5}


@dataclass
class Sets:
    """Which sets each query had, as a judge of answers sees them."""

    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def __call__(self, ask: Ask, answer: Answer) -> tuple[Kind, str]:
        """Right is whatever was decided."""
        if answer.status != 200:
            return load.refused(answer)
        self.seen[ask.query].add(answer.headers[b"x-racer-selected"].decode())
        return Kind.RIGHT, ""


@dataclass(frozen=True)
class Live:
    """A gateway, the rows that it is calibrated on, and the queries that come all the while."""

    gateway: rig.Gateway
    client: Client
    rows: str
    asks: Iterator[Ask]
    rate: float
    seeds: Iterator[int] = field(default_factory=itertools.count)

    async def window(self, seconds: float) -> list[Outcome]:
        """Live traffic."""
        outcomes: list[Outcome] = []
        note, seed = outcomes.append, next(self.seeds)
        await load.open_loop(self.client, self.asks, self.rate, seconds, note, seed)
        return outcomes

    async def beside(self, seconds: float) -> list[Outcome]:
        """Live traffic while a calibration is at work, which is given up then."""
        job = await self._begun()
        outcomes = await self.window(seconds)
        if (await self._seen(job))["status"] != "running":
            raise SystemExit("the calibration was over before its window: take more rows")
        await asyncio.to_thread(self.gateway.cancel, job)
        await asyncio.to_thread(self._left, job, "running")
        return outcomes

    async def calibrated(self) -> tuple[list[Outcome], float]:
        """Live traffic until a calibration is done; and how long that took."""
        begun = time.perf_counter()
        job = await self._begun()
        outcomes: list[Outcome] = []
        while (await self._seen(job))["status"] == "running":
            outcomes += await self.window(SLICE_S)
        if (seen := await self._seen(job))["status"] != "done":
            raise SystemExit(f"the calibration failed: {seen}")
        return outcomes, time.perf_counter() - begun

    async def round(self, *, calibrating_first: bool, seconds: float) -> dict[str, Any]:
        """Both windows."""
        windows = {WITH: self.beside, WITHOUT: self.window}
        order = (WITH, WITHOUT) if calibrating_first else (WITHOUT, WITH)
        return {name: _figures(await windows[name](seconds)) for name in order}

    async def _begun(self) -> str:
        job = await asyncio.to_thread(self.gateway.upload, self.rows)
        await asyncio.to_thread(self._left, job["id"], "waiting")
        return job["id"]

    async def _seen(self, job: str) -> dict[str, Any]:
        return await asyncio.to_thread(seen, self.gateway, job)

    def _left(self, job: str, status: str) -> None:
        while seen(self.gateway, job)["status"] == status:
            time.sleep(POLL_S)


def seen(gateway: rig.Gateway, job: str) -> dict[str, Any]:
    """How a calibration stands; blocks."""
    return gateway.admin(f"/calibrations/jobs/{job}")["job"]


def main() -> None:
    """Measure, print Markdown tables, and exit with 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=20.0, help="seconds")
    parser.add_argument("--rate", type=float, default=20.0, help="live queries a second")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    manifest = rig.manifest(**{name: getattr(given, name) for name in SETTINGS})
    document: dict[str, Any] = {"manifest": manifest, **measured(given)}
    document["markdown"] = markdown(document)
    print(document["markdown"])
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    windows = [each[window] for each in document["rounds"] for window in (WITH, WITHOUT)]
    if document["changed"] or any(each["failed"] for each in [*windows, document["whole"]]):
        raise SystemExit(1)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """All rounds, and how many queries had another set under load than alone."""
    sets = Sets()
    queries = _queries("test.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        unkept = {"limits": {"decisions_kept": 0}, "watching": {"false_alarm": None}}
        config = starts.demo(Path(folder), NOBODY, **unkept)
        with rig.gateway(config) as gateway:
            client = Client(gateway.port, rig.KEY, path="/route", model=None, judge=sets)
            asks = map(Ask, itertools.cycle(queries))
            live = Live(gateway, client, labelled(given.rows), asks, given.rate)
            _finished(gateway, labelled(READY))
            found = uvloop.run(_rounds(live, given, sets, queries[:SERIAL]))
    return {**found, "queries": len(sets.seen)}


def _finished(gateway: rig.Gateway, rows: str) -> None:
    job = gateway.upload(rows)["id"]
    while (state := seen(gateway, job))["status"] in ("waiting", "running"):
        time.sleep(POLL_S)
    assert state["status"] == "done", state


async def _rounds(
    live: Live, given: argparse.Namespace, sets: Sets, again: list[str]
) -> dict[str, Any]:
    rounds = [
        await live.round(calibrating_first=number % 2 == 0, seconds=given.window)
        for number in range(given.rounds)
    ]
    alone = await load.closed(live.client, map(Ask, again), 1)
    assert all(each.kind is Kind.RIGHT for each in alone)
    changed = sum(len(found) > 1 for found in sets.seen.values())
    # Last, for what is calibrated here decides from then on.
    outcomes, took_s = await live.calibrated()
    live.client.close()
    whole = {**_figures(outcomes), "calibration_s": took_s}
    return {"rounds": rounds, "changed": changed, "whole": whole}


def labelled(count: int) -> str:
    """The demo's calibration rows, each as often as it takes and never twice the same query."""
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
    """Where the figures are from, the aims, and a row for each kind of window."""
    manifest, rounds = document["manifest"], document["rounds"]
    given = manifest["settings"]
    goals = [
        Goal(
            f"live {figure.removesuffix('_ms')} beside a calibration, of that without",
            median(each[WITH][figure] / each[WITHOUT][figure] for each in rounds),
            most,
            unit=" x",
        )
        for figure, most in AIMS.items()
    ]
    goals.append(Goal("queries with another set under load than alone", document["changed"], 0))
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
    told = (
        f"{rig.taken(manifest)}. {given['rounds']} rounds of two times "
        f"{given['window']:g} s, "
        f"{given['rate']:g} live queries a second, {document['queries']:,} different ones; "
        f"{given['rows']:,} rows were then calibrated beside them in {took_s:.0f} s, "
        f"{document['whole']['failed']} of {document['whole']['sent']:,} queries failing.\n"
    )
    return "\n".join((told, aims(goals), table(head, rows)))


if __name__ == "__main__":
    main()
