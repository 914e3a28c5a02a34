"""The encoder as a gateway opens it on a GPU: time and memory for it, and queries of mixed lengths.

    PYTHONPATH=. python benchmarks/encoder_gpu_loads.py --json OUT.json
    PYTHONPATH=. python benchmarks/encoder_gpu_loads.py --device cpu --quick   # a rehearsal, tiny

Beside `encoder_gpu.py`, which measures forwards: here a text goes in, and batches are the encoder's
own. Every shape for which a graph can be recorded is measured, and a line fitted to their times
gives what a batch costs beside its tokens, which `cheapest` batches need. Weights are random, which
changes no forward's speed; a word is a token, which takes a tokenizer less time than mDeBERTa's
vocabulary. A round measures all forwards, one after the other.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DebertaV2Config

from benchmarks.encoder_gpu import FULL, QUICK, manifest, named, rehearsal, repeated, taken, wait
from benchmarks.word_encoder import WORDS, made
from racer_core.encoder.batches import Shape, shapes
from racer_core.encoder.huggingface import HuggingFaceEncoder

FORWARDS = ("transformers", "lean")
TEXTS = 256  # in a batch at most, as the encoder has it
MEDIAN, SPREAD = 60, 1.0  # of the lengths of mixed queries, in tokens: log-normal


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=2000, help="of mixed lengths, in a round")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; `--device cpu --quick` is a rehearsal")
    plan = QUICK if args.quick else FULL
    document: dict[str, Any] = {"manifest": manifest(args.device, args.quick)}
    with tempfile.TemporaryDirectory() as folder:
        made(Path(folder), DebertaV2Config(**plan.config))
        encoders: dict[str, HuggingFaceEncoder] = {}
        document["opened"] = {}
        for forward in FORWARDS:
            encoders[forward], document["opened"][forward] = opened(folder, args.device, forward)
    most = plan.config["max_position_embeddings"]
    document["batches"] = {
        forward: batch_times(encoder, shapes(TEXTS, most), plan.calls)
        for forward, encoder in encoders.items()
    }
    document["rounds"] = [
        {
            forward: mixed(encoder, queries(turn, args.queries, most))
            for forward, encoder in encoders.items()
        }
        for turn in range(args.rounds)
    ]
    document["fits"] = {forward: fitted(each) for forward, each in document["batches"].items()}
    document["markdown"] = markdown(document)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    print(document["markdown"])


def opened(folder: str, device: str, forward: str) -> tuple[HuggingFaceEncoder, dict[str, float]]:
    """An encoder in bfloat16; the seconds that it took to open, and its GiB on the GPU."""
    before, started = _taken(device), time.perf_counter()
    encoder = HuggingFaceEncoder(
        folder,
        backend=device,
        dtype="bfloat16",
        forward=forward,
        recorder=repeated if device == "cpu" else None,
    )
    encoder.encode([text(1)])
    wait(device)
    seconds = time.perf_counter() - started
    return encoder, {"seconds": seconds, "gib": (_taken(device) - before) / 2**30}


def _taken(device: str) -> int:
    """Bytes of the GPU that are in use."""
    if device == "cpu":
        return 0
    wait(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def text(tokens: int, seed: int = 0) -> str:
    """A text of this number of tokens, the two special ones included."""
    numbers = np.random.default_rng(seed).integers(WORDS, size=max(tokens - 2, 0))
    return " ".join(f"w{number}" for number in numbers)


def queries(seed: int, count: int, most: int) -> list[str]:
    """Texts of mixed lengths, of ``most`` tokens at most."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SPREAD, count)
    return [text(int(tokens), at) for at, tokens in enumerate(np.clip(drawn, 4, most))]


def batch_times(
    encoder: HuggingFaceEncoder, among: Sequence[Shape], calls: int
) -> dict[str, dict[str, float]]:
    """Median milliseconds of a batch of each shape, tokenized before."""
    found: dict[str, dict[str, float]] = {}
    for shape in among:
        count, tokens = shape
        batch = encoder.tokenized([text(tokens, seed) for seed in range(count)])
        encoder.encode(batch)
        took = [_seconds(encoder, batch) for _ in range(calls)]
        found[named(shape)] = {"tokens": count * tokens, "ms": 1e3 * statistics.median(took)}
    return found


def _seconds(encoder: HuggingFaceEncoder, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - started


def fitted(batches: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The line of a batch's time by its tokens with the least relative errors."""
    tokens, ms = (np.array([each[key] for each in batches.values()]) for key in ("tokens", "ms"))
    columns = np.stack([np.ones_like(ms), tokens], axis=1) / ms[:, None]
    (launch, each), *_ = np.linalg.lstsq(columns, np.ones_like(ms))
    return {"launch_ms": launch, "ms_per_1000_tokens": 1e3 * each, "launch_tokens": launch / each}


def mixed(encoder: HuggingFaceEncoder, texts: Sequence[str]) -> dict[str, float]:
    """All of them in one call; then some one by one, as requests come."""
    whole = _seconds(encoder, texts)
    alone = [1e3 * _seconds(encoder, [each]) for each in texts[:300]]
    p50, p95 = np.quantile(alone, [0.5, 0.95])
    return {"queries_per_s": len(texts) / whole, "p50_ms": float(p50), "p95_ms": float(p95)}


def markdown(document: Mapping[str, Any]) -> str:
    """What it ran on, and a row for each forward."""
    head = (
        "forward, bfloat16", "opened in, s", "GPU memory, GiB", "mixed lengths, queries/s",
        "one query, p50, p95, ms", "a batch, ms", "1,000 tokens, ms", "a batch, in tokens",
    )  # fmt: skip
    lines = [
        f"{taken(document)}.",
        "",
        *rehearsal(document),
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] * len(head))} |",
    ]
    for forward, took in document["opened"].items():
        load = {
            figure: statistics.median(each[forward][figure] for each in document["rounds"])
            for figure in ("queries_per_s", "p50_ms", "p95_ms")
        }
        fit = document["fits"][forward]
        lines.append(
            f"| {forward} | {took['seconds']:.1f} | {took['gib']:.2f} | "
            f"{load['queries_per_s']:,.0f} | {load['p50_ms']:.2f}, {load['p95_ms']:.2f} | "
            f"{fit['launch_ms']:.2f} | {fit['ms_per_1000_tokens']:.2f} | "
            f"{fit['launch_tokens']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
