"""Dynamic batching on a CPU: throughput of the encoder worker with an mDeBERTa-v3-base shape.

    python benchmarks/batching.py --json benchmarks/results/batching.json

Sixteen clients query the encoder worker; each sends its next query when it has its scores. The
first arm scores waiting queries together, as a gateway does. The others score one query per forward
pass, with our own forward and with transformers. Every round measures all arms one after the other,
and ratios are taken within a round. Weights are random and a word is a token: speed depends on
shapes alone. A separate check compares embeddings, scores and sets of queries of mixed lengths,
scored together and alone.
"""

import argparse
import asyncio
import copy
import gzip
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rig
import torch
import word_encoder
from encoder import CONFIG
from verdict import table

from app.routing.encoder_worker import EncoderWorker
from app.telemetry.metrics import Metrics
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.types import LabelledRow, LabelledRows

CLIENTS = 16
TOGETHER = 32  # as a gateway's `limits.batch` is
LENGTHS = (8, 16, 32, 64)  # tokens
AIM = 3.0
POOL = ("one", "two", "three", "four")
LEAN, LEAN_ALONE, EAGER_ALONE = (
    "lean, together",
    "lean, one a forward",
    "transformers, one a forward",
)


@dataclass(frozen=True)
class Arm:
    """A racer, and the maximum number of queries in one of its forward passes."""

    racer: Racer
    batch: int


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one arm in one round")
    parser.add_argument("--records", type=Path, help="rows whose `query` gives lengths, in words")
    parser.add_argument("--tiny", action="store_true", help="a small model: shows that it runs")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    manifest = rig.manifest(
        clients=CLIENTS,
        rounds=args.rounds,
        threads=torch.get_num_threads(),
        packages={name: metadata.version(name) for name in ("torch", "transformers")},
    )
    with tempfile.TemporaryDirectory() as folder:
        arms = opened(Path(folder), tiny=args.tiny)
        document: dict[str, Any] = {
            "manifest": manifest,
            "rounds": rounds(arms, loads(args.records), args.rounds, args.seconds),
            "same": same(arms[LEAN].racer),
        }
    rig.publish(document, markdown(document), args.json)


def opened(folder: Path, *, tiny: bool) -> dict[str, Arm]:
    """The arms: one model and one router, two forward implementations."""
    name = str(made(folder / "encoder", tiny=tiny))
    lean, eager = (
        HuggingFaceEncoder(name, backend="cpu", dtype="float32", forward=forward)
        for forward in ("lean", "transformers")
    )
    artifact = train(rows(1, 80), rows(2, 40), folder / "router", encoder=lean, kind="knn")
    racer = Racer(artifact, lean)
    return {
        LEAN: Arm(racer, TOGETHER),
        LEAN_ALONE: Arm(racer, 1),
        EAGER_ALONE: Arm(replace(racer, encoder=eager), 1),
    }


def made(folder: Path, *, tiny: bool) -> Path:
    """An encoder with random weights."""
    config = copy.deepcopy(CONFIG)
    if tiny:
        config.update({"hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 192})
    return word_encoder.made(folder, config)


def texts(seed: int, lengths: Iterator[int]) -> Iterator[str]:
    """Texts with ``lengths`` tokens, the two special tokens included."""
    rng = np.random.default_rng(seed)
    for length in lengths:
        yield " ".join(
            f"w{number}" for number in rng.integers(0, word_encoder.WORDS, max(1, length - 2))
        )


def rows(seed: int, count: int) -> LabelledRows:
    """Short texts and random labels: only the router's shape matters."""
    rng = np.random.default_rng(seed)
    correct = (
        frozenset(
            name for name, right in zip(POOL, rng.random(len(POOL)) < 0.6, strict=True) if right
        )
        for _ in range(count)
    )
    made = texts(seed, itertools.repeat(8))
    found = (
        LabelledRow(query=text, correct=right) for text, right in zip(made, correct, strict=False)
    )
    return LabelledRows(pool=POOL, rows=tuple(found))


def loads(records: Path | None) -> dict[str, Sequence[int]]:
    """The lengths of each load, by the load's name."""
    found: dict[str, Sequence[int]] = {f"{length} tokens": (length,) for length in LENGTHS}
    if records is not None:
        opener = gzip.open if records.suffix == ".gz" else open
        with opener(records, "rt", encoding="utf-8") as file:
            words = [len(json.loads(line)["query"].split()) for line in file]
        shuffled = np.random.default_rng(0).permutation(words)
        found["recorded"] = [min(512, int(each) + 2) for each in shuffled]
    return found


def rounds(
    arms: Mapping[str, Arm], lengths: Mapping[str, Sequence[int]], count: int, seconds: float
) -> list[dict[str, dict[str, float]]]:
    """Queries a second of every arm under every load, round by round."""
    found: list[dict[str, dict[str, float]]] = []
    for number in range(count):
        names = [*arms][number % len(arms) :] + [*arms][: number % len(arms)]
        found.append({load: {} for load in lengths})
        for load, each in lengths.items():
            for name in names:
                queries = texts(number, itertools.cycle(each))
                rate = asyncio.run(throughput(arms[name], queries, seconds))
                found[-1][load][name] = rate
    return found


async def throughput(arm: Arm, queries: Iterator[str], seconds: float) -> float:
    """Queries a second of all clients together, counted after the first round of answers."""
    done: list[float] = []
    worker = EncoderWorker(
        arm.racer, queue=CLIENTS, queue_s=60.0, batch=arm.batch, metrics=Metrics()
    )
    async with worker:
        until = time.perf_counter() + seconds

        async def client() -> None:
            answers = 0
            while answers < 2 or time.perf_counter() < until:
                await worker.score(next(queries))
                done.append(time.perf_counter())
                answers += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    first = done[CLIENTS - 1]  # every client has had one answer
    return (len(done) - CLIENTS) / (done[-1] - first)


def same(racer: Racer) -> dict[str, float]:
    """Differences between a batch and the same queries scored one at a time."""
    queries = list(texts(9, itertools.islice(itertools.cycle(LENGTHS), 64)))
    calibration = racer.calibrate(rows(3, 100))
    together = racer.encoder.encode(queries).embeddings
    alone = np.concatenate([racer.encoder.encode([text]).embeddings for text in queries])
    scores = np.concatenate([racer.score([text]).scores for text in queries])
    sets = [racer.route_batch([text], calibration)[0].selected for text in queries]
    batched = [each.selected for each in racer.route_batch(queries, calibration)]
    return {
        "queries": len(queries),
        "embedding": float(np.abs(together - alone).max()),
        "scores": float((racer.score(queries).scores == scores).all(axis=1).mean()),
        "sets": sum(a == b for a, b in zip(sets, batched, strict=True)) / len(queries),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Provenance, and a row for each load."""
    manifest, found, equal = document["manifest"], document["rounds"], document["same"]

    def ratio(load: str, other: str) -> float:
        return median(each[load][LEAN] / each[load][other] for each in found)

    arms = (LEAN, LEAN_ALONE, EAGER_ALONE)
    head = (
        "queries/s by length",
        *arms,
        f"together / one a forward (target ≥ {AIM:g} x)",
        "together / transformers",
    )
    table_rows = (
        [
            load,
            *(f"{median(each[load][arm] for each in found):.1f}" for arm in arms),
            *(f"{ratio(load, other):.2f} x" for other in (LEAN_ALONE, EAGER_ALONE)),
        ]
        for load in found[0]
    )
    where = (
        f"{rig.taken(manifest)}; {manifest['settings']['threads']} "
        f"threads, {CLIENTS} clients, float32, {len(found)} rounds.\n"
    )
    same_results = (
        f"\n{equal['queries']} queries of mixed lengths, scored together and alone: embeddings "
        f"differ by at most {equal['embedding']:.0e} in any coordinate; {equal['scores']:.1%} have "
        f"the same scores and {equal['sets']:.1%} the same set.\n"
    )
    return "\n".join((where, table(head, table_rows))) + same_results


if __name__ == "__main__":
    main()
