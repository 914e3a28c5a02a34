"""Two gateways with an encoder each beside one gateway, on the same two cores.

    python benchmarks/workers.py --json benchmarks/results/workers.json

Sixteen clients ask `POST /route`, each anew as soon as it has its answer; where there are two
gateways, half of the clients ask each. New queries of 64 tokens, by an encoder of
mDeBERTa-v3-base's shape; and queries that were asked before, of which no encoder hears. One gateway
has both cores and an encoder with two threads; each of two has a core and one thread. The clients
are in this process, on the same cores. All arms are measured in every round, by turns.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import batching
import load
import rig
from load import Ask, Client, Kind
from measures import family, quantile
from uncached import TOKENS, configured, decided, labelled
from verdict import table

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.train import train

CLIENTS = 16
SEEN = 200  # queries that come again and again
ONE, TWO = "one gateway, both cores", "two gateways, a core and an encoder each"
NEW, AGAIN = "new queries", "queries seen before"


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of an arm in one round")
    parser.add_argument("--tiny", action="store_true", help="a small model: shows that it runs")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    manifest = rig.manifest(clients=CLIENTS, rounds=given.rounds)
    document: dict[str, Any] = {"manifest": manifest, **measured(given)}
    document["markdown"] = markdown(document)
    print(document["markdown"])
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Every arm with either kind of query, round by round; and what each holds in memory."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        made = batching.made(folder / "encoder", tiny=given.tiny)
        encoder = HuggingFaceEncoder(str(made), backend="cpu", dtype="float32", forward="lean")
        rows = batching.rows(1, 80), batching.rows(2, 40)
        train(*rows, folder / "router", encoder=encoder, kind="knn")
        arms = {
            ONE: started(stack, folder, [set(rig.CORES)]),
            TWO: started(stack, folder, [rig.GATEWAY_CORES, rig.OTHER_CORES]),
        }
        new = batching.texts(7, itertools.repeat(TOKENS))
        seen = list(itertools.islice(batching.texts(8, itertools.repeat(TOKENS)), SEEN))
        for gateways in arms.values():
            for each in gateways:
                asyncio.run(asked([each], iter(seen), 1e9))
        rounds: list[dict[str, dict[str, dict[str, float]]]] = []
        for number in range(given.rounds):
            order = list(arms) if number % 2 else [*reversed(arms)]
            rounds.append(
                {
                    arm: {
                        NEW: asyncio.run(asked(arms[arm], new, given.seconds)),
                        AGAIN: asyncio.run(asked(arms[arm], itertools.cycle(seen), given.seconds)),
                    }
                    for arm in order
                }
            )
        memory = {
            arm: sum(family(each.pid).rss_kib for each in gateways) / 1024
            for arm, gateways in arms.items()
        }
    return {"rounds": rounds, "memory_mib": memory}


def started(stack: ExitStack, folder: Path, cores: Sequence[set[int]]) -> list[rig.Gateway]:
    """A calibrated gateway on each of these sets of cores, as many threads as it has of them."""
    found: list[rig.Gateway] = []
    for own in cores:
        place = folder / f"{rig.free_port()}"
        place.mkdir()
        (place / "router").symlink_to(folder / "router")
        gateway = stack.enter_context(rig.gateway(configured(place), cores=own))
        gateway.admin("/calibrate", labelled(3, 100))
        found.append(gateway)
    os.sched_setaffinity(0, set(rig.CORES))
    return found


async def asked(
    gateways: Sequence[rig.Gateway], texts: Iterator[str], seconds: float
) -> dict[str, float]:
    """What all of them decide in a second, and how long one decision takes."""
    clients = [
        Client(each.port, rig.KEY, path="/route", model=None, judge=decided) for each in gateways
    ]
    asks = map(Ask, texts)
    share = CLIENTS // len(clients)
    outcomes = [
        outcome
        for some in await asyncio.gather(
            *(load.closed(client, asks, share, seconds) for client in clients)
        )
        for outcome in some
    ]
    for client in clients:
        client.close()
    if failed := [each for each in outcomes if each.kind is not Kind.RIGHT]:
        raise SystemExit(f"{len(failed)} decisions failed: {failed[0].said}")
    begun = min(each.due for each in outcomes)
    ended = max(each.due + each.latency_s for each in outcomes)
    latencies = [each.latency_s for each in outcomes]
    return {
        "per_s": len(outcomes) / (ended - begun),
        "p50_ms": 1e3 * quantile(latencies, 0.5),
        "p99_ms": 1e3 * quantile(latencies, 0.99),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """A row for each arm and kind of query, and the ratio within rounds."""
    rounds = document["rounds"]
    rows: list[list[str]] = []
    for kind, arm in itertools.product((NEW, AGAIN), (ONE, TWO)):
        figures = [
            f"{median(each[arm][kind][name] for each in rounds):,.1f}"
            for name in ("per_s", "p50_ms", "p99_ms")
        ]
        ratio = median(each[arm][kind]["per_s"] / each[ONE][kind]["per_s"] for each in rounds)
        rows.append([kind, arm, *figures, f"{ratio:.2f} x"])
    memory = ", ".join(f"{arm} {held:,.0f} MiB" for arm, held in document["memory_mib"].items())
    head = ("", "", "decisions/s", "p50, ms", "p99, ms", "of one gateway's")
    return f"{rig.taken(document['manifest'])}. In memory: {memory}.\n\n{table(head, rows)}"


if __name__ == "__main__":
    main()
