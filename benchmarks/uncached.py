"""Latency of an uncached decision, compared with its encoder alone on the same core or GPU.

    python benchmarks/uncached.py --json benchmarks/results/uncached.json
    python benchmarks/uncached.py --device cuda --json OUT.json

One client sends new queries of 64 tokens to `POST /route`; then this process scores the same
queries on the gateway's core, while the gateway is idle. Both take turns, a few queries at a time,
and the ratio is taken within a round. The encoder has the shape of mDeBERTa-v3-base; weights are
random and a word is a token: speed depends on shapes alone.
"""

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import load
import rig
import torch
import word_encoder
from load import Answer, Ask, Client, Kind
from measures import quantile
from verdict import Goal, aims, table

from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.train import train
from racer_core.racer import Racer

UNUSED_URL = "http://127.0.0.1:9/v1"  # candidates are not called
TOKENS = 64
AIM = 1.1  # on a CPU; on a GPU the encoder takes less time than the rest of a request
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}  # by device, as an encoder takes them
WHOLE, ENCODER = "POST /route, answered", "encoder and router, in process"


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=20, help="of one round")
    parser.add_argument("--device", choices=DTYPES, default="cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model: shows that it runs")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here")
    manifest = rig.manifest(rounds=args.rounds, queries=args.queries, device=named(args.device))
    document: dict[str, Any] = {"manifest": manifest, "rounds": measured(args)}
    rig.publish(document, markdown(document), args.json)


def measured(args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Both, round by round."""
    torch.set_num_threads(1)  # as the gateway has them, on one core
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = word_encoder.made(folder / "encoder", tiny=args.tiny)
        encoder = HuggingFaceEncoder(
            str(made), backend=args.device, dtype=DTYPES[args.device], forward="lean"
        )
        rows = word_encoder.rows(1, 80), word_encoder.rows(2, 40)
        racer = Racer(train(*rows, folder / "router", encoder=encoder, kind="knn"), encoder)
        with rig.gateway(configured(folder)) as gateway:
            gateway.admin("/calibrate", labelled(3, 100))
            queries = word_encoder.texts(7, itertools.repeat(TOKENS))
            rounds: list[dict[str, dict[str, float]]] = []
            for _ in range(args.rounds):
                some = list(itertools.islice(queries, args.queries))
                whole = asyncio.run(routed(gateway.port, some))
                rounds.append({WHOLE: whole, ENCODER: scored(racer, some)})
    return rounds


def named(device: str) -> str:
    """A device as the manifest calls it: a GPU by its model."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def configured(folder: Path) -> Path:
    """A gateway with that router."""
    candidates = [{"name": name, "base_url": UNUSED_URL} for name in word_encoder.POOL]
    values = {"schema_version": 1, "artifact": str(folder / "router"), "candidates": candidates}
    return rig.written(folder, {**values, "watching": {"false_alarm": None}})


def labelled(seed: int, count: int) -> dict[str, Any]:
    """The body of `POST /calibrate`."""
    rows = word_encoder.rows(seed, count).rows
    return {
        "rows": [
            {
                "query": row.query,
                "correct": {name: name in row.correct for name in word_encoder.POOL},
            }
            for row in rows
        ]
    }


def decided(_: Ask, answer: Answer) -> tuple[Kind, str]:
    """Every decision counts as right."""
    return (Kind.RIGHT, "") if answer.status == 200 else load.refused(answer)


async def routed(port: int, queries: list[str]) -> dict[str, float]:
    """One query after the other."""
    client = Client(port, rig.KEY, path="/route", model=None, judge=decided)
    outcomes = await load.closed(client, map(Ask, queries), 1)
    client.close()
    if failed := [each for each in outcomes if each.kind is not Kind.RIGHT]:
        raise SystemExit(f"{len(failed)} decisions failed: {failed[0].message}")
    return _quantiles([each.latency_s for each in outcomes])


def scored(racer: Racer, queries: list[str]) -> dict[str, float]:
    """The same queries, on the gateway's core."""
    os.sched_setaffinity(0, rig.GATEWAY_CORES)
    try:
        return _quantiles([_seconds(racer, query) for query in queries])
    finally:
        os.sched_setaffinity(0, rig.OTHER_CORES)


def _seconds(racer: Racer, query: str) -> float:
    begun = time.perf_counter()
    racer.score([query])
    return time.perf_counter() - begun


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{percent}_ms": 1e3 * quantile(seconds, percent / 100) for percent in (50, 95)}


def markdown(document: Mapping[str, Any]) -> str:
    """Provenance, the target, and a row for each arm."""
    manifest, rounds = document["manifest"], document["rounds"]
    settings = manifest["settings"]
    ratio = median(each[WHOLE]["p50_ms"] / each[ENCODER]["p50_ms"] for each in rounds)
    where = (
        f"{rig.taken(manifest)}; {settings['device']}. {settings['rounds']} rounds of "
        f"{settings['queries']} queries.\n"
    )
    figures = ("p50_ms", "p95_ms")
    rows = [
        [name, *(f"{median(each[name][figure] for each in rounds):.1f}" for figure in figures)]
        for name in (WHOLE, ENCODER)
    ]
    goal = Goal("uncached decision, p50 / encoder's p50", ratio, AIM, unit=" x")
    judged = [aims([goal])] if settings["device"] == "cpu" else []
    head = ("one query of 64 tokens", "p50, ms", "p95")
    return "\n".join((where, *judged, table(head, rows)))


if __name__ == "__main__":
    main()
