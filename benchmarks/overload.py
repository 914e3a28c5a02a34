"""Overload test: goodput, refusals and recovery at twice the gateway's capacity.

    python benchmarks/overload.py

Once with queries that repeat, whose decisions are cached, and once with queries that are all new.
The capacity is the throughput of a closed loop at which doubling the concurrency gains less than
5 %. Requests arrive by a Poisson process at 0.7 times the capacity, then at twice the capacity, and
at 0.7 times again. Every answer is checked. Refusals are counted apart from errors; a refusal
without `retry-after` is an error. Clients that were refused in the last second of the overload come
back when `retry-after` says. The exit code is 1 if a target is missed. If the gateway got much less
than a whole core in the overload, or the generator was late, the figures are not valid.
"""

import argparse
import asyncio
import gc
import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import load
import queries
import rig
import uvloop
from load import Ask, Kind, Outcome
from measures import held, quantile, theil_sen
from verdict import table

BESIDE, TWICE = 0.7, 2.0
SETTLED_S = 2.0  # after the overload
BESIDE_SHARE = 4  # of the overload's duration, a step beside it takes this part
GAIN = 1.05
MOST_CLIENTS = 256
GOODPUT, REFUSAL_S, RECOVERY, GROWTH_KIB, RETURNED = 0.90, 0.050, 1.2, 50.0, 0.99
LATE_S, CORE = 0.010, 0.9  # p99 of the generator's lateness; past these nothing is judged


def kinds() -> dict[str, Iterator[Ask]]:
    """Requests by kind: of a few hundred different queries, and of new ones alone."""
    return {
        "cached": map(Ask, queries.repeated(1, digits=9)),
        "new": map(Ask, queries.endless(11)),
    }


async def measure(gateway: rig.Gateway, asks: Iterator[Ask], seconds: float) -> dict[str, Any]:
    """The knee, and the steps before, in and after the overload."""
    client = load.Client(gateway.port, rig.KEY)
    await load.closed(client, asks, 8, 3.0)  # caches and connections are warm
    curve = await knee(client, asks, max(2.0, seconds / 15))
    capacity = max(each["goodput"] for each in curve)
    beside_s = seconds / BESIDE_SHARE

    async def step(factor: float, seconds: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        await load.open_loop(client, asks, factor * capacity, seconds, outcomes.append)
        return outcomes

    before = await step(BESIDE, beside_s)
    memory: list[tuple[float, int]] = []
    watching = asyncio.create_task(watch(gateway.pid, memory))
    cpu_s = held(gateway.pid).cpu_s
    over = await step(TWICE, seconds)
    cpu_s = held(gateway.pid).cpu_s - cpu_s
    watching.cancel()
    ended = max(each.due for each in over)
    last = [each for each in over if each.kind is Kind.REFUSED and each.due > ended - 1]
    returned, after = await asyncio.gather(
        asyncio.gather(*(come_back(client, each) for each in last)), step(BESIDE, beside_s)
    )
    client.close()
    settled = [each for each in after if each.due > ended + SETTLED_S]
    half = [each for each in memory if each[0] > memory[0][0] + seconds / 2] or memory
    per_second = theil_sen(*zip(*half, strict=True))[0] if len(half) > 1 else math.nan
    return {
        "knee": curve,
        "capacity": capacity,
        "before": summary(before, beside_s),
        "twice": summary(over, seconds)
        | {
            "cpu": cpu_s / seconds,
            "memory_mib": [each / 2**10 for _, each in memory],
            "growth_kib": 1e3 * per_second / (len(over) / seconds),  # per 1,000 requests
        },
        "settled": summary(settled, beside_s - SETTLED_S),
        "returned": len(last),
        "returned_answered": sum(each.kind is Kind.RIGHT for each in returned),
    }


async def come_back(client: load.Client, refused: Outcome) -> Outcome:
    """The request of a refused client, when it was told to come back."""
    due = refused.due + refused.latency_s + refused.retry_after_s
    await asyncio.sleep(due - time.perf_counter())
    return await client.send(refused.ask, due)


async def watch(pid: int, memory: list[tuple[float, int]]) -> None:
    """Note the instant and the resident memory, in KiB, once a second."""
    while True:
        memory.append((time.perf_counter(), held(pid).rss_kib))
        await asyncio.sleep(1)


async def knee(client: load.Client, asks: Iterator[Ask], seconds: float) -> list[dict[str, Any]]:
    """Goodput by the number of clients, until twice as many gain nothing."""
    curve: list[dict[str, Any]] = []
    for clients in itertools.takewhile(lambda n: n <= MOST_CLIENTS, (2**i for i in range(20))):
        outcomes = await load.closed(client, asks, clients, seconds)
        curve.append({"clients": clients, **summary(outcomes, seconds)})
        if len(curve) > 1 and curve[-1]["goodput"] < GAIN * curve[-2]["goodput"]:
            break
    return curve


def summary(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """What a step came to; times in milliseconds."""
    right = [1e3 * each.latency_s for each in outcomes if each.kind is Kind.RIGHT]
    refused = [1e3 * each.latency_s for each in outcomes if each.kind is Kind.REFUSED]
    errors = [each.message for each in outcomes if each.kind in (Kind.ERROR, Kind.WRONG)]
    span = max((each.due + each.latency_s for each in outcomes), default=0.0)
    span -= min((each.due for each in outcomes), default=0.0)
    return {
        "sent": len(outcomes),
        "goodput": len(right) / max(seconds, span),
        "refused": len(refused),
        "errors": len(errors),
        "said": sorted(set(errors))[:5],
        "p50_ms": quantile(right, 0.5),
        "p99_ms": quantile(right, 0.99),
        "refused_p50_ms": quantile(refused, 0.5),
        "refused_p99_ms": quantile(refused, 0.99),
        "refused_max_ms": max(refused, default=0.0),
        "late_p99_ms": quantile([1e3 * each.late_s for each in outcomes], 0.99),
    }


def bars(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What is promised: a name, what was seen, and the most that it may be."""
    before, twice, settled = result["before"], result["twice"], result["settled"]
    steps = (before, twice, settled)
    lost = 1 - result["returned_answered"] / result["returned"] if result["returned"] else math.nan
    return [
        ("goodput lost, of the peak", 1 - twice["goodput"] / result["capacity"], 1 - GOODPUT),
        ("p99 of refusals, ms", twice["refused_p99_ms"], 1e3 * REFUSAL_S),
        ("refused again after `retry-after`, share", lost, 1 - RETURNED),
        ("p50 two seconds later, of that before", settled["p50_ms"] / before["p50_ms"], RECOVERY),
        ("memory growth, KiB per 1,000 requests", twice["growth_kib"], GROWTH_KIB),
        ("errors", sum(each["errors"] for each in steps), 0),
    ]


def validity(result: dict[str, Any]) -> str:
    """Whether the figures are the gateway's: it had its core, and the generator was in time."""
    steps = [result[name] for name in ("before", "twice", "settled")]
    late_ms = max(each["late_p99_ms"] for each in steps)
    core = result["twice"]["cpu"]
    if late_ms <= 1e3 * LATE_S and core >= CORE:
        return "The generator was in time, and the gateway had its core."
    return (
        f"**Not valid**: the generator was {late_ms:.0f} ms late (at most {1e3 * LATE_S:.0f}), or "
        f"the gateway had {core:.0%} of its core (at least {CORE:.0%})."
    )


def show_bars(bars: list[tuple[str, float, float]]) -> None:
    """Print a table of what is promised."""
    print(bars_table(bars))


def bars_table(bars: list[tuple[str, float, float]]) -> str:
    """A table of what is promised."""

    def row(bar: tuple[str, float, float]) -> list[str]:
        name, seen, most = bar
        return [name, f"{seen:.3g}", f"{most:.3g}", "met" if seen <= most else "MISSED"]

    return table(("bar", "seen", "at most", ""), map(row, bars))


def markdown(document: dict[str, Any]) -> str:
    """Provenance, the steps, and the bars of each kind of queries."""

    def step(kind: str, name: str, shown: str) -> list[str]:
        result = document["kinds"][kind]
        each = result[name]
        share = each["goodput"] / result["capacity"]
        refusals = "{refused_p50_ms:.1f}, {refused_p99_ms:.1f}, {refused_max_ms:.1f}"
        return [
            f"{kind}, {shown}",
            f"{each['goodput']:,.0f}",
            f"{share:.0%}",
            f"{each['p50_ms']:.1f}, {each['p99_ms']:.1f}",
            f"{each['refused'] / max(1, each['sent']):.0%}",
            refusals.format(**each) if each["refused"] else "",
            f"{each['late_p99_ms']:.1f}",
        ]

    shown = {"before": "0.7 x", "twice": "2.0 x", "settled": "0.7 x, 2 s later"}
    head = (
        "queries, x capacity",
        "answers/s",
        "of the peak",
        "p50, p99, ms",
        "refused",
        "p50, p99, max of refusals, ms",
        "generator late, p99, ms",
    )
    rows = [step(kind, *each) for kind in document["kinds"] for each in shown.items()]
    parts = [f"{rig.taken(document['manifest'])}.\n", table(head, rows)]
    for kind, result in document["kinds"].items():
        twice = result["twice"]
        parts.append(
            f"{kind.capitalize()}: capacity {result['capacity']:,.0f}/s, {twice['cpu']:.0%} of the "
            f"gateway's core and {max(twice['memory_mib']):.0f} MiB in the overload. "
            f"{validity(result)}\n"
        )
        parts.append(bars_table(bars(result)))
    return "\n".join(parts)


def main() -> None:
    """Measure, print, and fail where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--latency-ms", type=float, default=20, help="of a candidate, +- 25 %%")
    parser.add_argument("--json", type=Path, help="write the document here, too")
    args = parser.parse_args()
    gc.disable()  # outcomes are kept: a collection of hundreds of thousands takes 400 ms
    found: dict[str, Any] = {}
    manifest = rig.manifest(seconds=args.seconds, latency_ms=args.latency_ms)
    # One kind of queries alone would be a drift from the rows, and alarm.
    options = {"watching": {"false_alarm": None}}
    for kind, asks in kinds().items():
        with (
            tempfile.TemporaryDirectory() as folder,
            rig.running(Path(folder), args.latency_ms, **options) as gateway,
        ):
            found[kind] = uvloop.run(measure(gateway, asks, args.seconds))
    document = {"manifest": manifest, "kinds": found}
    rig.publish(document, markdown(document), args.json)
    if any(not seen <= most for each in found.values() for _, seen, most in bars(each)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
