"""Memory and CPU of a gateway that passes many slow streams through at once.

    python benchmarks/slow_streams.py

All streams begin together, each over a connection of its own, and are sets of one. Every answer is
checked. A run with a tenth of the streams comes first, so that what only the first requests need is
no part of the memory of a stream.
"""

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import load
import queries
import rig
import uvloop
from load import Ask, Client, Kind
from measures import family, quantile
from verdict import table

DIGITS = 20  # letters of an answer
SAMPLE_S = 0.25


def measured(streams: int, gap_ms: float) -> dict[str, Any]:
    """Memory at rest and at its peak, CPU, and the lateness of streams behind their letters."""
    with tempfile.TemporaryDirectory() as folder, rig.candidates(0, gap_ms) as upstream:
        base_url = upstream.url + "/v1"
        config = rig.configure(
            Path(folder),
            base_url,
            candidates=[
                {"name": name, "base_url": base_url, "concurrency": streams}
                for name in queries.POOL
            ],
            limits={"in_flight": streams, "connections": 2 * streams},
            watching={"false_alarm": None},
        )
        with rig.gateway(config) as gateway:
            gateway.calibrate(3)
            uvloop.run(_passed(gateway, max(1, streams // 10)))
            before = family(gateway.pid)
            outcomes, peak_kib = uvloop.run(_passed(gateway, streams))
            cpu_s = family(gateway.pid).cpu_s - before.cpu_s
    late_s = [each.latency_s - (DIGITS + 2) * gap_ms / 1e3 for each in outcomes]
    return {
        "right": sum(each.kind is Kind.RIGHT for each in outcomes),
        "rest_mib": before.rss_kib / 1024,
        "peak_mib": peak_kib / 1024,
        "stream_kib": (peak_kib - before.rss_kib) / streams,
        "of_core": cpu_s / max(each.latency_s for each in outcomes),
        "late_p50_ms": 1e3 * quantile(late_s, 0.5),
        "late_p99_ms": 1e3 * quantile(late_s, 0.99),
    }


async def _passed(gateway: rig.Gateway, streams: int) -> tuple[Sequence[load.Outcome], int]:
    """The outcomes of so many streams, and the most memory meanwhile, in KiB."""
    client = Client(gateway.port, rig.KEY)
    asks = (Ask(query, stream=True) for query in queries.repeated(1, digits=DIGITS))
    passing = asyncio.create_task(load.closed(client, itertools.islice(asks, streams), streams))
    peak = 0
    while not passing.done():
        peak = max(peak, family(gateway.pid).rss_kib)
        await asyncio.wait([passing], timeout=SAMPLE_S)
    client.close()
    return passing.result(), peak


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--gap-ms", type=float, default=400, help="between a stream's letters")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    found = measured(args.streams, args.gap_ms)
    manifest = rig.manifest(streams=args.streams, gap_ms=args.gap_ms)
    rows = [
        (
            f"{args.streams:,}, a letter each {args.gap_ms:.0f} ms",
            f"{found['right']:,}",
            f"{found['rest_mib']:.0f} → {found['peak_mib']:.0f}",
            f"{found['stream_kib']:.0f}",
            f"{found['of_core']:.0%}",
            f"{found['late_p50_ms']:.0f}, {found['late_p99_ms']:.0f}",
        )
    ]
    head = ("streams at once", "right", "MiB", "KiB a stream", "of a core", "late p50, p99, ms")
    document = {"manifest": manifest, "passed": found}
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{table(head, rows)}", args.json)


if __name__ == "__main__":
    main()
