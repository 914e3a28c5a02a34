"""GPU latency and throughput of an encoder of mDeBERTa-v3-base's shape: transformers and ours.

    PYTHONPATH=. python benchmarks/encoder_gpu.py --json benchmarks/results/encoder_gpu.json
    PYTHONPATH=. python benchmarks/encoder_gpu.py --device cpu --quick   # a rehearsal, tiny

Needs torch, transformers, numpy and this folder; no model, no hub. Weights and token ids are
random: speed depends on shapes alone, and accuracy is the numerical error only.

Every round measures all open arms and the matrix multiplication rate, one after the other. Arms are
opened one by one, with a round after each, and every round is written: an interrupted run leaves
figures. A latency begins and ends with tensors in CPU memory and excludes the tokenizer. Agreement
is measured by the cosine to transformers' float32, and by the sets that a random linear router
makes of the embeddings, at the threshold calibrated on transformers' float32.
"""

import argparse
import copy
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DebertaV2Config, DebertaV2Model

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.base import unit_rows
from racer_core.encoder.batches import Shape
from racer_core.encoder.deberta import LeanDeberta
from racer_core.encoder.graphs import Graphs, embedder
from racer_core.encoder.pooling import pool
from racer_core.routers.base import on_grid
from racer_core.types import Score

Arm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # ids, mask to embeddings; on the CPU

EXACT, EAGER = "transformers, float32", "transformers, bfloat16"
LEAN, GRAPHS = "lean, bfloat16", "lean, graphs, bfloat16"
CANDIDATES, ALPHA = 5, 0.1


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    config: Mapping[str, Any]
    shapes: tuple[Shape, ...]  # texts and tokens; the first is one query
    compared: Shape  # one of them, for embeddings and sets
    calls: int  # of each arm and shape in a round
    side: int  # of the matrices whose product is the rate
    queries: int  # to compare on; as many again calibrate


_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
FULL = Plan(
    config=_DEBERTA
    | {
        "vocab_size": 251_000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "position_buckets": 256,
    },
    shapes=((1, 64), (8, 64), (32, 64), (64, 64), (256, 64), (1, 128), (1, 512)),
    compared=(32, 64),
    calls=20,
    side=8192,
    queries=2000,
)
QUICK = Plan(
    config=_DEBERTA
    | {
        "vocab_size": 500,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "position_buckets": 16,
    },
    shapes=((1, 16), (4, 16), (1, 40)),
    compared=(4, 16),
    calls=2,
    side=256,
    queries=100,
)


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=120.0, help="for all rounds together")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; `--device cpu --quick` is a rehearsal")
    plan = QUICK if args.quick else FULL
    document: dict[str, Any] = {"manifest": manifest(args.device, args.quick), "failed": {}}
    rounds: list[dict[str, Any]] = []
    arms: dict[str, Arm] = {}

    def measure() -> None:
        rounds.append(measured(arms, plan, args.device, turn=len(rounds)))
        speed = figures(rounds, plan)
        judged = verdict(speed, document["agreement"], plan)
        document.update(verdict=judged, figures=speed, rounds=rounds)
        document["markdown"] = markdown(document)
        if args.json:
            args.json.write_text(json.dumps(document, indent=1) + "\n")

    with torch.inference_mode():
        for name, opened in openings(plan, args.device):
            try:
                arms[name] = _warm(opened(), plan)
            except RuntimeError as exc:
                document["failed"][name] = f"{type(exc).__name__}: {exc}"
                print(f"{name} failed: {document['failed'][name]}", file=sys.stderr)
            document["agreement"] = agreement(arms, plan)
            measure()
        until = time.monotonic() + args.seconds
        while not args.quick and time.monotonic() < until:
            measure()
    print(document["markdown"])


def manifest(device: str, quick: bool) -> dict[str, Any]:
    """Where, how and with what figures were taken."""
    on_gpu = device == "cuda"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "commit": _first_line(
            "git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"
        ),
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "rehearsal": quick or not on_gpu,
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU",
        "driver": _first_line(*query) if on_gpu else "",
        "cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "python": sys.version,  # with its build and compiler
        "packages": {each.__name__: each.__version__ for each in (torch, transformers, np)},
    }


def _first_line(*command: str) -> str:
    """The first line that a command printed; nothing where there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].strip()


# Arms -------------------------------------------------------------------------------------------


def openings(plan: Plan, device: str) -> Iterator[tuple[str, Callable[[], Arm]]]:
    """Every arm's name and how to open it; what fails most easily comes last."""
    torch.manual_seed(0)
    model = DebertaV2Model(DebertaV2Config(**plan.config)).eval()
    half = copy.deepcopy(model).to(device, torch.bfloat16)
    embed = embedder(LeanDeberta(half, plan.config["max_position_embeddings"]), "mean")
    yield EXACT, lambda: _theirs(model.to(device), device)
    yield EAGER, lambda: _theirs(half, device)
    yield LEAN, lambda: recorded(embed, (), device)
    yield GRAPHS, lambda: recorded(embed, plan.shapes, device)


def recorded(embed: Arm, shapes: Iterable[Shape], device: str) -> Arm:
    """An arm by graphs of these shapes, all of which must be recorded."""
    wanted = list(shapes)
    recorder = repeated if device == "cpu" else None
    graphs = Graphs(embed, shapes=wanted, device=device, recorder=recorder)
    if len(graphs.shapes) < len(wanted):
        raise RuntimeError("there is too little memory for all graphs")
    return graphs


def _theirs(model: DebertaV2Model, device: str) -> Arm:
    def embed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ids, mask = ids.to(device), mask.to(device)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(hidden.float(), mask, "mean").cpu()

    return embed


def repeated(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    """Stands in for a CUDA graph in a rehearsal: runs it all again."""
    results = run()
    return lambda: results.copy_(run()), results


def _warm(arm: Arm, plan: Plan) -> Arm:
    for shape in plan.shapes:
        for _ in range(3):
            arm(*_tokens(shape, plan))
    return arm


def _tokens(shape: Shape, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids (B, T), and nothing padded."""
    rng = np.random.default_rng(shape)
    ids = torch.from_numpy(rng.integers(5, plan.config["vocab_size"], shape))
    return ids, torch.ones_like(ids)


# Agreement --------------------------------------------------------------------------------------


def agreement(arms: Mapping[str, Arm], plan: Plan) -> dict[str, dict[str, float]]:
    """What each arm's embeddings, and the sets made of them, differ from transformers' float32."""
    texts, tokens = plan.compared
    rng = np.random.default_rng(1)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in arms}
    for _ in range(-(-2 * plan.queries // texts)):
        ids = torch.from_numpy(rng.integers(5, plan.config["vocab_size"], (texts, tokens)))
        lengths = torch.from_numpy(rng.integers(4, tokens + 1, (texts, 1)))
        mask = (torch.arange(tokens) < lengths).long()
        for name, arm in arms.items():
            parts[name].append(arm(ids * mask, mask).numpy())
    embedded = {name: np.concatenate(each)[: 2 * plan.queries] for name, each in parts.items()}
    return compared({name: unit_rows(each) for name, each in embedded.items()}, rng)


def compared(
    embedded: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """Of embeddings (2 n, D) by every arm: half calibrates on the exact ones, half is compared."""
    exact = embedded[EXACT]
    count = len(exact) // 2
    chances = _linear_router(exact[:count], rng)
    known = chances(exact[:count])
    prints = tuple(each.to_bytes(4) for each in range(count))
    calibration = Calibration(
        pool=tuple(f"candidate {each}" for each in range(CANDIDATES)),
        fingerprints=prints,
        scores=known,
        labels=rng.random(known.shape) < known,
        options=CalibrationOptions(alpha=ALPHA, score=Score.GAP),
    )
    lambda_hat = calibration.lambda_hat(ALPHA, Score.GAP)

    def sets(name: str) -> np.ndarray:
        scores = chances(embedded[name][count:])
        return calibration.sets(scores, prints, lambda_hat, Score.GAP).selected

    expected = sets(EXACT)
    found: dict[str, dict[str, float]] = {}
    for name, rows in embedded.items():
        apart = np.sum((rows[count:].astype(float) - exact[count:]) ** 2, axis=1) / 2
        found[name] = {
            "cosine_distance_mean": float(apart.mean()),
            "cosine_distance_max": float(apart.max()),
            "same_sets": float((sets(name) == expected).all(axis=1).mean()),
            "size": float(sets(name).sum(axis=1).mean()),
        }
    return found


def _linear_router(
    embeddings: np.ndarray, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """Chances (n, K) of embeddings, spread over the whole of [0, 1] on those that it has seen.

    Embeddings by random weights lie close together, so this also spreads their errors: it is a
    harder test than a router that was trained on an encoder that was.
    """
    middle = embeddings.mean(axis=0, dtype=np.float64)
    directions = rng.standard_normal((embeddings.shape[1], CANDIDATES))
    scale = ((embeddings - middle) @ directions).std(axis=0)
    return lambda rows: on_grid(1 / (1 + np.exp(-((rows - middle) @ directions / scale))))


# Speed ------------------------------------------------------------------------------------------


def measured(arms: Mapping[str, Arm], plan: Plan, device: str, *, turn: int) -> dict[str, Any]:
    """A round: milliseconds of every call, and the matrix rate; each turn begins with another."""
    inputs = {named(shape): _tokens(shape, plan) for shape in plan.shapes}
    first = turn % len(arms)
    took = {
        name: {
            shape: [_ms(arms[name], *tokens) for _ in range(plan.calls)]
            for shape, tokens in inputs.items()
        }
        for name in [*arms][first:] + [*arms][:first]
    }
    return {"flops_per_s": matrix_rate(plan.side, device), "ms": took}


def named(shape: Shape) -> str:
    """As it is called in tables."""
    return f"{shape[0]} x {shape[1]}"


def _ms(arm: Arm, ids: torch.Tensor, mask: torch.Tensor) -> float:
    started = time.perf_counter()
    arm(ids, mask)
    return 1e3 * (time.perf_counter() - started)


def matrix_rate(side: int, device: str) -> float:
    """Operations a second of a large product in bfloat16: the best of a few, begun when idle."""
    square = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    best = 0.0
    for _ in range(5):
        wait(device)
        started = time.perf_counter()
        for _ in range(4):
            torch.mm(square, square)
        wait(device)
        best = max(best, 4 * 2 * side**3 / (time.perf_counter() - started))
    return best


def wait(device: str) -> None:
    """Until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def flops(shape: Shape, plan: Plan) -> int:
    """Of the linear layers alone, which is nearly all of it."""
    width = plan.config["hidden_size"]
    layer = 4 * width**2 + 2 * width * plan.config["intermediate_size"]
    return 2 * shape[0] * shape[1] * layer * plan.config["num_hidden_layers"]


def figures(rounds: list[dict[str, Any]], plan: Plan) -> dict[str, dict[str, dict[str, float]]]:
    """Of every arm and shape: quantiles over all calls; rates from the median of each round."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for arm in {arm: None for one in rounds for arm in one["ms"]}:
        found[arm] = {}
        having = [one for one in rounds if arm in one["ms"]]
        for shape in plan.shapes:
            each = [one["ms"][arm][named(shape)] for one in having]
            medians = [statistics.median(calls) / 1e3 for calls in each]
            p50, p95 = np.quantile(np.concatenate(each), [0.5, 0.95])
            shares = [
                flops(shape, plan) / seconds / one["flops_per_s"]
                for seconds, one in zip(medians, having, strict=True)
            ]
            found[arm][named(shape)] = {
                "p50_ms": float(p50),
                "p95_ms": float(p95),
                "queries_per_s": shape[0] / statistics.median(medians),
                "share_of_matrix_rate": statistics.median(shares),
            }
    return found


# What it comes to -------------------------------------------------------------------------------


def verdict(
    speed: Mapping[str, Any], found: Mapping[str, Mapping[str, float]], plan: Plan
) -> list[dict[str, Any]]:
    """The aims of the lean forward by graphs: what was seen, the bound, and whether it is met.

    None before its arm has run.
    """
    if GRAPHS not in speed:
        return []
    one, many = named(plan.shapes[0]), named(max(plan.shapes))
    p50 = speed[GRAPHS][one]["p50_ms"]
    ratio = p50 / speed[EAGER][one]["p50_ms"]
    share = speed[GRAPHS][many]["share_of_matrix_rate"]
    distance, same = (found[GRAPHS][name] for name in ("cosine_distance_max", "same_sets"))
    aims = [
        (f"p50 of {one} tokens, ms", p50, "≤ 2", p50 <= 2.0),
        (f"p50 of {one} tokens, of eager bfloat16's", ratio, "≤ 0.2", ratio <= 0.2),
        (f"share of the bfloat16 matrix rate at {many}", share, "≥ 0.35", share >= 0.35),
        ("cosine distance to eager float32, largest", distance, "≤ 1e-4", distance <= 1e-4),
        ("same sets as by eager float32", same, "≥ 0.995", same >= 0.995),
    ]
    return [
        {"aim": aim, "seen": seen, "bound": bound, "said": "met" if met else "MISSED"}
        for aim, seen, bound, met in aims
    ]


def taken(document: Mapping[str, Any]) -> str:
    """Where, when and how; without a full stop."""
    about = document["manifest"]
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return (
        f"`{about['command']}` at {about['commit'] or 'an unknown commit'}, "
        f"{about['taken_at'][:10]}: {about['device']}, driver {about['driver'] or 'none'}, CUDA "
        f"{about['cuda'] or 'none'}, {versions}; {len(document['rounds'])} rounds"
    )


def rehearsal(document: Mapping[str, Any]) -> list[str]:
    """The warning of a rehearsal, as lines."""
    warning = ["**A rehearsal: its figures say nothing of a GPU.**", ""]
    return warning if document["manifest"]["rehearsal"] else []


def markdown(document: Mapping[str, Any]) -> str:
    """What it ran on, the verdict, latencies, rates, and agreement."""
    speed = document["figures"]
    rate = statistics.median(each["flops_per_s"] for each in document["rounds"]) / 1e12
    shapes = " | ".join(speed[EXACT])
    judged = "{aim} | {seen:.3g} | {bound} | {said}"
    took = "{p50_ms:.2f}, {p95_ms:.2f}"
    rates = "{queries_per_s:,.0f} ({share_of_matrix_rate:.0%})"
    agreed = "{cosine_distance_mean:.1e} | {cosine_distance_max:.1e} | {same_sets:.1%} | {size:.2f}"
    lines = [
        f"{taken(document)}. A large product in bfloat16 runs at {rate:.3g} TFLOP/s.",
        "",
        *rehearsal(document),
        *_table("aim | seen | aimed at | ", map(judged.format_map, document["verdict"])),
        *_table(f"p50, p95, ms | {shapes}", _by_shape(took, speed)),
        *_table(f"queries/s (of the matrix rate) | {shapes}", _by_shape(rates, speed)),
        *_table(
            "against eager float32 | cosine distance, mean | max | same sets | mean size",
            (f"{arm} | {agreed.format_map(of)}" for arm, of in document["agreement"].items()),
        ),
        *[f"{arm} failed: {why.splitlines()[0]}" for arm, why in document["failed"].items()],
    ]
    return "\n".join(lines).strip() + "\n"


def _by_shape(cell: str, speed: Mapping[str, Any]) -> Iterator[str]:
    """A row for every arm, a column for every shape."""
    for arm, shapes in speed.items():
        yield " | ".join([arm, *map(cell.format_map, shapes.values())])


def _table(head: str, rows: Iterable[str]) -> list[str]:
    line = " | ".join(["---"] * (head.count("|") + 1))
    return [*(f"| {each} |" for each in (head, line, *rows)), ""]


if __name__ == "__main__":
    main()
