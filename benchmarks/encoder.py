"""One query and batches through an encoder of mDeBERTa-v3-base's shape on a CPU, by every runtime.

    python benchmarks/encoder_export.py /tmp/encoder
    python benchmarks/encoder.py /tmp/encoder --threads 2 --json benchmarks/results/encoder_cpu.json

Weights are random: speed depends on shapes alone, and of accuracy only the numerical error can be
told. Runtimes that are not installed, or were not exported, are left out; `--compile` compares
torch.compile with what it compiles, and needs a C++ compiler. All arms are measured in every round,
one after the other, and so is the matrix rate: the best of a few products of 2048 x 2048, in
bfloat16 and in float32. `--json` adds the figures to those that are there.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import rig
import torch
from encoder_export import CONFIG
from transformers import DebertaV2Model

from racer_core.encoder.deberta import LeanDeberta

Hidden = Callable[[torch.Tensor], np.ndarray]  # ids (B, T) to last hidden states (B, T, D)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCHES = {1: 5, 8: 2}  # queries together, and how often in a round
FINEST, EAGER_BF16 = "transformers, float32", "transformers, bfloat16"
SIDE = 2048
PACKAGES = ("torch", "transformers", "onnxruntime", "openvino", "nncf")


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="what encoder_export.py wrote")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all rounds together")
    parser.add_argument("--compile", action="store_true", help="it alone, beside what it compiles")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    manifest = rig.manifest(
        threads=given.threads,
        tokens=given.tokens,
        packages={name: metadata.version(name) for name in PACKAGES if find_spec(name)},
    )
    with torch.inference_mode():
        arms = opened(given.models, given.threads, given.compile)
        rounds, errors = measured(arms, given.tokens, given.seconds)
    document = {"manifest": manifest, "rounds": rounds, "errors": errors}
    print(markdown(document))
    if given.json:
        known = json.loads(given.json.read_text())["runs"] if given.json.exists() else {}
        name = f"{given.threads} threads" + ", torch.compile" * given.compile
        runs = dict(sorted({**known, name: document}.items()))
        text = "\n".join(map(markdown, runs.values()))
        given.json.write_text(json.dumps({"runs": runs, "markdown": text}, indent=1) + "\n")


def opened(folder: Path, threads: int, compiling: bool) -> dict[str, Hidden]:
    """Every arm that can be had here."""
    arms: dict[str, Hidden] = {}
    for name, dtype in DTYPES.items():
        model = DebertaV2Model.from_pretrained(folder, dtype=dtype).eval()
        eager, lean = _eager(model), LeanDeberta(model, model.config.max_position_embeddings)
        arms[f"transformers, {name}"] = _torch(eager)
        arms[f"lean, {name}"] = _torch(lean)
        if compiling:
            arms[f"transformers, torch.compile, {name}"] = _torch(
                torch.compile(eager, dynamic=False)
            )
            arms[f"lean, torch.compile, {name}"] = _torch(
                torch.compile(lean.__call__, dynamic=False)
            )
    if compiling:
        return arms
    if find_spec("onnxruntime"):
        arms |= {
            f"ONNX Runtime, {name}": _onnx(folder / f"{name}.onnx", threads)
            for name in ("float32", "int8")
            if (folder / f"{name}.onnx").exists()
        }
    if find_spec("openvino"):
        files = {"float32": "float32.onnx", "bfloat16": "float32.onnx", "int8": "int8.xml"}
        arms |= {
            f"OpenVINO, {name}": _openvino(folder / file, name, threads)
            for name, file in files.items()
            if (folder / file).exists()
        }
    return arms


def _eager(model: DebertaV2Model) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state


def _torch(forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Hidden:
    return lambda ids: forward(ids, torch.ones_like(ids)).float().numpy()


def _onnx(file: Path, threads: int) -> Hidden:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(
        None, {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
    )[0]


def _openvino(file: Path, name: str, threads: int) -> Hidden:
    import openvino

    precision = {"bfloat16": "bf16"}.get(name, "f32")
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(file, "CPU", options)
    return lambda ids: compiled((ids.numpy(), torch.ones_like(ids).numpy()))[0]


def measured(
    arms: Mapping[str, Hidden], tokens: int, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Seconds of every arm in every round, and what it errs against transformers' float32."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 250_000, (max(BATCHES), tokens)))
    embedded: dict[str, np.ndarray] = {}
    for name, run in arms.items():
        for batch in BATCHES:  # the first call of a shape prepares it
            embedded[name] = run(ids[:batch]).mean(axis=1, dtype=np.float64)
    errors = {name: _errors(embedded[FINEST], found) for name, found in embedded.items()}
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
        rates = {name: _matrix_rate(dtype) for name, dtype in DTYPES.items()}
        rounds.append({"flops_per_s": rates, "seconds": took})
    return rounds, errors


def _errors(fine: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """Cosine distance of the mean-pooled embeddings, over the texts of the largest batch."""
    fine, found = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (fine, found))
    distances = np.sum((fine - found) ** 2, axis=1) / 2  # exact where one minus a cosine cancels
    return {"mean": float(distances.mean()), "max": float(distances.max())}


def _seconds(run: Hidden, ids: torch.Tensor) -> float:
    started = time.perf_counter()
    run(ids)
    return time.perf_counter() - started


def _matrix_rate(dtype: torch.dtype) -> float:
    """Floating point operations a second of a large product, the best of a few."""
    square = torch.ones(SIDE, SIDE, dtype=dtype)
    return max(2 * SIDE**3 / _seconds(lambda x: x @ x, square) for _ in range(3))


def flops(batch: int, tokens: int) -> int:
    """Of the linear layers alone, which is nearly all of it."""
    width = CONFIG.hidden_size
    layer = 4 * width**2 + 2 * width * CONFIG.intermediate_size
    return 2 * batch * tokens * layer * CONFIG.num_hidden_layers


def markdown(document: Mapping[str, Any]) -> str:
    """One table: a query alone, batches, and the numerical error."""
    manifest, rounds = document["manifest"], document["rounds"]
    given = manifest["settings"]

    def median(what: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(what(each) for each in rounds)

    def alone(arm: str) -> float:
        return statistics.median(each for one in rounds for each in one["seconds"][arm]["1"])

    def rate(one: dict[str, Any], arm: str) -> float:
        return flops(8, given["tokens"]) / statistics.median(one["seconds"][arm]["8"])

    half, whole = (
        median(lambda one, d=dtype: one["flops_per_s"][d]) / 1e9
        for dtype in ("bfloat16", "float32")
    )
    lines = [
        f"{manifest['processor']}, {manifest['cores']} cores, load "
        f"{manifest['load_average'][0]:.1f} before it began, {manifest['taken_at'][:10]}; "
        f"threads: {given['threads']}, {given['tokens']} tokens, {len(rounds)} rounds. A large "
        f"product runs at {half:.0f} GFLOP/s in bfloat16 and at {whole:.0f} in float32.\n",
        "| arm | one query, p50 ms | of eager bf16's | 8 together: queries/s | "
        "of the bf16 rate | of the fp32 rate | cosine distance, mean | max |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, error in document["errors"].items():
        together = median(lambda one, a=arm: rate(one, a)) / flops(1, given["tokens"])
        shares = [
            median(lambda one, d=dtype, a=arm: rate(one, a) / one["flops_per_s"][d])
            for dtype in ("bfloat16", "float32")
        ]
        lines.append(
            f"| {arm} | {1e3 * alone(arm):.0f} | {alone(arm) / alone(EAGER_BF16):.2f} | "
            f"{together:.1f} | {shares[0]:.0%} | {shares[1]:.0%} | "
            f"{error['mean']:.1e} | {error['max']:.1e} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
