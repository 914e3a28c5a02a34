"""Overload test: goodput and refusals at up to twice the gateway's capacity.

    python benchmarks/overload.py

The capacity is the throughput of a closed loop at which doubling the concurrency gains less than
5 %. Then requests arrive by a Poisson process at 0.7, 1.0, 1.5 and 2.0 times the capacity, and at
0.7 again. Every answer is checked. Refusals are counted apart from errors; a refusal without
`retry-after` is an error. Prints a table and a JSON document; the exit code is 1 if a target is
missed. If the gateway got much less than a whole core above the capacity, other processes used the
machine and the figures are not valid.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import load
import queries
import rig
import uvloop
from load import Ask, Kind, Outcome
from measures import held, quantile

STEPS = (0.7, 1.0, 1.5, 2.0, 0.7)
GAIN = 1.05
MOST_CLIENTS = 256
GOODPUT, REFUSAL_S, RECOVERY = 0.85, 0.050, 1.2
LATE_S = 0.010  # the generator's own p99, past which the figures are not the gateway's


async def measure(gateway: rig.Gateway, seconds: float) -> dict[str, Any]:
    """The knee and the steps."""
    client = load.Client(gateway.port, rig.KEY)
    asks = map(Ask, queries.endless(11))
    await load.closed(client, asks, 8, 3.0)  # caches and connections are warm
    curve = await knee(client, asks, max(3.0, seconds / 4))
    capacity = max(each["goodput"] for each in curve)
    steps: list[dict[str, Any]] = []
    for number, factor in enumerate(STEPS):
        outcomes: list[Outcome] = []
        rate, before = factor * capacity, held(gateway.pid).cpu_s
        await load.open_loop(client, asks, rate, seconds, outcomes.append, seed=number)
        step = {"factor": factor, "rate": rate, **summary(outcomes, seconds)}
        steps.append(step | {"cpu": (held(gateway.pid).cpu_s - before) / seconds})
    client.close()
    return {"knee": curve, "capacity": capacity, "steps": steps}


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
    steps, peak = result["steps"], result["capacity"]
    first, twice, last = steps[0], steps[3], steps[4]
    return [
        ("goodput lost at 2.0 x, of the peak", 1 - twice["goodput"] / peak, 1 - GOODPUT),
        ("p99 of refusals at 2.0 x, ms", twice["refused_p99_ms"], 1e3 * REFUSAL_S),
        ("p50 after the overload, of that before", last["p50_ms"] / first["p50_ms"], RECOVERY),
        ("errors", sum(each["errors"] for each in steps), 0),
        ("how late the generator was, p99, ms", max(s["late_p99_ms"] for s in steps), 1e3 * LATE_S),
    ]


def show(result: dict[str, Any]) -> None:
    """Tables of the knee, the steps and the bars."""
    print("| clients | answers/s | p50 ms | p99 ms |\n| --- | --- | --- | --- |")
    for each in result["knee"]:
        print(
            "| {clients} | {goodput:.0f} | {p50_ms:.1f} | {p99_ms:.1f} |".format(**each),
        )
    print(f"\ncapacity {result['capacity']:.0f}/s\n")
    print(
        "| x capacity | sent/s | answers/s | of peak | p50, p99 ms | refused | p50, p99, max ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for each in result["steps"]:
        share = each["goodput"] / result["capacity"]
        refused = each["refused"] / max(1, each["sent"])
        print(
            f"| {each['factor']} | {each['rate']:.0f} | {each['goodput']:.0f} | {share:.0%} "
            f"| {each['p50_ms']:.1f}, {each['p99_ms']:.1f} | {refused:.1%} "
            f"| {each['refused_p50_ms']:.1f}, {each['refused_p99_ms']:.1f}, "
            f"{each['refused_max_ms']:.1f} | {each['cpu']:.0%} |"
        )
    show_bars(bars(result))


def show_bars(bars: list[tuple[str, float, float]]) -> None:
    """A table of what is promised."""
    print("\n| bar | seen | at most | |\n| --- | --- | --- | --- |")
    for name, seen, most in bars:
        print(f"| {name} | {seen:.3g} | {most:.3g} | {'met' if seen <= most else 'MISSED'} |")


def main() -> None:
    """Measure, print, and fail where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of a step")
    parser.add_argument("--latency-ms", type=float, default=20, help="of a candidate, +- 25 %%")
    parser.add_argument("--json", type=Path, help="write the document here, not to stdout")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.running(Path(folder), args.latency_ms) as gateway,
    ):
        result = uvloop.run(measure(gateway, args.seconds))
    settings = {"seconds": args.seconds, "latency_ms": args.latency_ms}
    document = json.dumps({"manifest": rig.manifest(**settings), **result}, indent=1)
    show(result)
    if args.json is None:
        print(f"\n```json\n{document}\n```")
    else:
        args.json.write_text(document + "\n", encoding="utf-8")
    if any(not seen <= most for _, seen, most in bars(result)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
