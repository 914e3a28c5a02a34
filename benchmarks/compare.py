"""Comparison of the gateway, a bare proxy and LiteLLM's proxy: throughput, latency, streams, load.

    python benchmarks/compare.py

Every round measures all arms (`arms.py`) one after the other; the first arm changes by round.
Figures are medians over rounds. The overhead of an arm is its difference to direct calls of the
candidates in the same round. Then each arm once gets the load of its knee and 1.5 times that load,
and its memory is measured. Candidates answer at once; the letters of a stream come 1 ms apart. A
few hundred queries are repeated, so that the gateway is measured and not the router.

Writes `gateway.json` and `gateway.png`. The run fails on a wrong answer, and on an error of our
gateway below the knee. Slowness and unanswered requests of other gateways are only reported.
"""

import argparse
import gc
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import arms
import load
import overload
import peers
import plot
import queries
import rig
import starts
import uvloop
import verdict
from arms import Way
from load import Kind, Outcome
from measures import family, quantile, theil_sen
from verdict import Arm

CONNECTIONS = 16
RATE, STREAM_RATE = 60.0, 25.0  # a second
BEYOND = 1.5
GAP_MS = 1.0  # between the letters of a stream
SLICES = 100  # memory is looked at so often
NOT_STREAMING = (Arm.BARE_3, Arm.ROUTE)
Cell = Callable[[Way], Awaitable[dict[str, float]]]


@dataclass(frozen=True)
class Comparison:
    """How long and how often.

    Attributes:
        seconds: Of one arm in one cell of one round.
        requests: Over which memory is watched.
    """

    rounds: int
    seconds: float
    requests: int
    wrong: Counter[str] = field(default_factory=Counter[str])
    unanswered: Counter[str] = field(default_factory=Counter[str])  # by others, under load

    async def measure(self, ways: list[Way]) -> dict[Arm, dict[str, Any]]:
        """All figures of all arms."""
        for way, digits in itertools.product(ways, (arms.SHORT, arms.LONG)):
            known = itertools.islice(way.asks(digits=digits), queries.REPEATED)
            self._check(way, await load.closed(way.client, known, CONNECTIONS))
        self.wrong.update(self.unanswered)  # before any load, every answer must arrive
        self.fail_if_wrong()  # before half an hour is spent
        cells: dict[str, Cell] = {
            "closed": self._closed,
            "open": self._open,
            "short": self._short,
            "long": self._long,
        }
        found: dict[Arm, dict[str, Any]] = {way.arm: {"rounds": []} for way in ways}
        for number in range(self.rounds):
            first = number * len(ways) // self.rounds
            order = ways[first:] + ways[:first]
            for way in order:
                found[way.arm]["rounds"].append({})
            for name, cell in cells.items():
                for way in order:
                    if name in ("short", "long") and way.arm in NOT_STREAMING:
                        continue
                    found[way.arm]["rounds"][-1][name] = await cell(way)
        for way in ways:
            if way.arm is not Arm.DIRECT:
                found[way.arm] |= await self._under_load(way)
        return found

    async def _closed(self, way: Way) -> dict[str, float]:
        before, begun = family(way.server.pid).cpu_s, time.perf_counter()
        outcomes = await load.closed(way.client, way.asks(), CONNECTIONS, self.seconds)
        took_s, cpu_s = time.perf_counter() - begun, family(way.server.pid).cpu_s - before
        right = self._check(way, outcomes)
        return {
            "rate": len(right) / took_s,
            "cpu_ms": 1e3 * cpu_s / len(outcomes),
            "of_core": cpu_s / took_s,
        }

    async def _open(self, way: Way) -> dict[str, float]:
        outcomes: list[Outcome] = []
        await load.open_loop(way.client, way.asks(), RATE, self.seconds, outcomes.append)
        took = [1e3 * each.latency_s for each in self._check(way, outcomes)]
        late = [1e3 * each.late_s for each in outcomes]
        return {
            **{f"p{percent}_ms": quantile(took, percent / 100) for percent in (50, 95, 99)},
            "late_p99_ms": quantile(late, 0.99),
        }

    async def _short(self, way: Way) -> dict[str, float]:
        return await self._streams(way, arms.SHORT)

    async def _long(self, way: Way) -> dict[str, float]:
        return await self._streams(way, arms.LONG)

    async def _streams(self, way: Way, digits: int) -> dict[str, float]:
        outcomes: list[Outcome] = []
        asks = way.asks(stream=True, digits=digits)
        before = family(way.server.pid).cpu_s
        await load.open_loop(way.client, asks, STREAM_RATE, self.seconds, outcomes.append)
        cpu_s = family(way.server.pid).cpu_s - before
        first = [1e3 * each.first_s for each in self._check(way, outcomes)]
        letters = sum(len(queries.answer(each.ask.query)) for each in outcomes)
        return {
            "first_p50_ms": quantile(first, 0.5),
            "first_p99_ms": quantile(first, 0.99),
            "cpu_ms": 1e3 * cpu_s / len(outcomes),
            "letters": letters / len(outcomes),
        }

    async def _under_load(self, way: Way) -> dict[str, Any]:
        """Measure the knee, the load above it, and memory during the requests."""
        knee = await overload.knee(way.client, way.asks(), self.seconds / 2)
        capacity = max(each["goodput"] for each in knee)
        outcomes: list[Outcome] = []
        note = outcomes.append
        rate = BEYOND * capacity
        await load.open_loop(way.client, way.asks(), rate, self.seconds, note)
        way.client.close()  # hundreds of connections, or the next arms would find no place
        self._count(way, [each for each in outcomes if each.kind in (Kind.ERROR, Kind.WRONG)])
        for each in knee:
            if each["errors"]:
                self._faults(way)[f"{way.arm}: {', '.join(each['said'])}"] += each["errors"]
        return {
            "knee": knee,
            "capacity": capacity,
            "beyond": overload.summary(outcomes, self.seconds),
            "slope_kib": await self._memory(way),
        }

    async def _memory(self, way: Way) -> list[float]:
        """KiB per 1,000 requests, with its interval."""
        asks, kib = way.asks(), [family(way.server.pid).rss_kib]
        for _ in range(SLICES):
            few = itertools.islice(asks, self.requests // SLICES)
            self._check(way, await load.closed(way.client, few, CONNECTIONS))
            kib.append(family(way.server.pid).rss_kib)
        thousands = [number * self.requests / SLICES / 1e3 for number in range(SLICES + 1)]
        return list(theil_sen(thousands, kib))

    def fail_if_wrong(self) -> None:
        """End with what was wrong, and how often."""
        if self.wrong:
            raise SystemExit(
                "\n".join(f"{n} x {message}" for message, n in self.wrong.most_common(50))
            )

    def _check(self, way: Way, outcomes: list[Outcome]) -> list[Outcome]:
        """Those that are right; the others are kept in mind."""
        self._count(way, [each for each in outcomes if each.kind is not Kind.RIGHT])
        return [each for each in outcomes if each.kind is Kind.RIGHT]

    def _count(self, way: Way, outcomes: Iterable[Outcome]) -> None:
        for each in outcomes:  # a wrong answer's own text is another one every time
            message = "" if each.kind is Kind.WRONG else each.message
            faults = self.wrong if each.kind is Kind.WRONG else self._faults(way)
            faults[f"{way.arm}: {each.kind} {message}"] += 1

    def _faults(self, way: Way) -> Counter[str]:
        return self.wrong if way.arm in verdict.OURS else self.unanswered


def main() -> None:
    """Measure, write, print, and fail where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--seconds", type=float, default=10, help="of an arm in one cell of a round"
    )
    parser.add_argument("--requests", type=int, default=20_000, help="over which memory is watched")
    parser.add_argument("--starts", type=int, default=3, help="of each process")
    parser.add_argument("--out", type=Path, default=rig.HERE / "results", help="a folder")
    args = parser.parse_args()
    comparison = Comparison(args.rounds, args.seconds, args.requests)
    manifest = rig.manifest(litellm=peers.litellm_version(), gap_ms=GAP_MS)
    with (
        tempfile.TemporaryDirectory() as at_rest,
        tempfile.TemporaryDirectory() as folder,
        rig.candidates(0, GAP_MS) as upstream,
    ):
        started = starts.measured(Path(at_rest), upstream, args.starts)
        with arms.running(Path(folder), upstream) as ways:
            gc.freeze()  # what was imported is not looked through again while times are taken
            found = uvloop.run(comparison.measure(ways))
    document: dict[str, Any] = {
        "manifest": manifest,
        "beyond": BEYOND,
        "requests": args.requests,
        "starts": started,
        "arms": found,
        "wrong": comparison.wrong,
        "unanswered": comparison.unanswered,
    }
    document["markdown"] = verdict.markdown(document)
    document["details"] = verdict.details(document)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gateway.png").write_bytes(plot.png(document))
    text = json.dumps(document, indent=1) + "\n"
    (args.out / "gateway.json").write_text(text, encoding="utf-8")
    print(document["markdown"], document["details"], sep="\n")
    print(f"\nwritten to {args.out}")
    comparison.fail_if_wrong()


if __name__ == "__main__":
    main()
