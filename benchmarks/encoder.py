"""CPU latency and throughput of an encoder of mDeBERTa-v3-base's shape: transformers and ours.

    python benchmarks/encoder.py --threads 2 --json benchmarks/results/encoder_cpu.json

Weights are random: speed depends on shapes alone, and accuracy is the numerical error only. Every
round measures all arms one after the other. `--compile` adds both forwards through torch.compile
and needs a C++ compiler. `--json` adds the run to those that the file holds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import rig
import torch
from transformers import DebertaV2Config, DebertaV2Model
from verdict import table

from racer_core.encoder.deberta import LeanDeberta

CONFIG = DebertaV2Config(
    vocab_size=251_000,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    relative_attention=True,
    position_buckets=256,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    type_vocab_size=0,
)
Hidden = Callable[[torch.Tensor], np.ndarray]  # ids (B, T) to last hidden states (B, T, D)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCHES = {1: 5, 8: 2}  # queries in a batch, and calls in a round
REFERENCE = "transformers, float32"


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all rounds together")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    manifest = rig.manifest(
        threads=args.threads,
        tokens=args.tokens,
        packages={name: metadata.version(name) for name in ("torch", "transformers")},
    )
    with torch.inference_mode():
        arms = build_arms(compiled=args.compile)
        rounds, errors = measure(arms, args.tokens, args.seconds)
    stored = args.json is not None and args.json.exists()
    runs = json.loads(args.json.read_text(encoding="utf-8"))["runs"] if stored else {}
    name = f"{args.threads} threads" + ", torch.compile" * args.compile
    runs[name] = {"manifest": manifest, "rounds": rounds, "errors": errors}
    document = {"runs": dict(sorted(runs.items()))}
    rig.publish(document, markdown(document), args.json)


def build_arms(*, compiled: bool) -> dict[str, Hidden]:
    """Both forwards of one model, in both precisions."""
    arms: dict[str, Hidden] = {}
    for name, dtype in DTYPES.items():
        torch.manual_seed(0)
        model = DebertaV2Model(CONFIG).to(dtype).eval()
        eager, lean = _eager(model), LeanDeberta(model, CONFIG.max_position_embeddings)
        arms[f"transformers, {name}"] = _on_numpy(eager)
        arms[f"lean, {name}"] = _on_numpy(lean)
        if compiled:
            for kind, forward in (("transformers", eager), ("lean", lean.__call__)):
                traced = torch.compile(forward, dynamic=False)
                arms[f"{kind}, torch.compile, {name}"] = _on_numpy(traced)
    return arms


def _eager(model: DebertaV2Model) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state


def _on_numpy(forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Hidden:
    return lambda ids: forward(ids, torch.ones_like(ids)).float().numpy()


def measure(
    arms: Mapping[str, Hidden], tokens: int, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Seconds of every call by round, and each arm's error against the reference."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 250_000, (max(BATCHES), tokens)))
    embedded: dict[str, np.ndarray] = {}
    for name, run in arms.items():
        for batch in BATCHES:  # the first call of a shape prepares it
            embedded[name] = run(ids[:batch]).mean(axis=1, dtype=np.float64)
    errors = {name: _errors(embedded[REFERENCE], found) for name, found in embedded.items()}
    rounds: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    while not rounds or time.monotonic() < until:
        turn = len(rounds) % len(arms)
        took = {
            name: {
                str(batch): [_seconds(arms[name], ids[:batch]) for _ in range(times)]
                for batch, times in BATCHES.items()
            }
            for name in [*arms][turn:] + [*arms][:turn]
        }
        rounds.append({"seconds": took})
    return rounds, errors


def _errors(exact: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """Cosine distance of the mean-pooled embeddings, over the texts of the largest batch."""
    exact, found = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (exact, found))
    distances = np.sum((exact - found) ** 2, axis=1) / 2  # avoids cancellation in 1 - cosine
    return {"mean": float(distances.mean()), "max": float(distances.max())}


def _seconds(run: Hidden, ids: torch.Tensor) -> float:
    started = time.perf_counter()
    run(ids)
    return time.perf_counter() - started


def flops(batch: int, tokens: int) -> int:
    """Operations of the linear layers, which are nearly all of a forward pass."""
    width = CONFIG.hidden_size
    layer = 4 * width**2 + 2 * width * CONFIG.intermediate_size
    return 2 * batch * tokens * layer * CONFIG.num_hidden_layers


def markdown(document: Mapping[str, Any]) -> str:
    """One table: a row for each arm, a column for each run."""
    runs = document["runs"]
    first = next(iter(runs.values()))["manifest"]
    errors = {arm: error for run in runs.values() for arm, error in run["errors"].items()}
    head = ("p50 of one query, ms; queries/s of 8 together", *runs, "cosine distance")
    rows = (
        [arm, *(_figures(run, arm) for run in runs.values()), f"{error['mean']:.0e}"]
        for arm, error in errors.items()
    )
    tokens = first["settings"]["tokens"]
    where = f"{first['processor']}, {first['cores']} cores, {first['taken_at'][:10]}"
    return f"{where}; {tokens} tokens a query.\n\n{table(head, rows)}"


def _figures(run: Mapping[str, Any], arm: str) -> str:
    if arm not in run["errors"]:
        return ""
    seconds = [one["seconds"][arm] for one in run["rounds"]]
    alone = statistics.median(each for one in seconds for each in one["1"])
    eight = statistics.median(statistics.median(one["8"]) for one in seconds)
    return f"{1e3 * alone:.0f}; {8 / eight:.1f}"


if __name__ == "__main__":
    main()
