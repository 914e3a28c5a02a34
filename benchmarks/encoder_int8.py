"""int8 of ONNX Runtime beside today's float32 on a CPU: time of a query, and the sets of KNN.

    PYTHONPATH=. python benchmarks/encoder_int8.py --only time --encoder MODEL --models FOLDER \
        --data DATA
    PYTHONPATH=. python benchmarks/encoder_int8.py --only sets --encoder MODEL --models FOLDER \
        --data DATA
    PYTHONPATH=. python benchmarks/encoder_int8.py --only shape --models ANOTHER --threads 1

Needs the extra `onnx`. Matrices are quantised dynamically: weights to int8, activations to uint8 by
the range of a whole tensor, so that what int8 makes of a text depends on the texts of its batch. An
int8 arm embeds one text at a time; *together* it has float32's batches.

*time*: one core, all arms in turn on the same texts, CPU time of `encode` with its tokenizer.
*sets*: the protocol of `encoders.py`; every arm trains KNN and is judged on its own embeddings.
*shape*: forwards alone, of mDeBERTa-v3-base's shape with random weights, of which none has sets.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import encoder as shapes
import encoders
import numpy as np
import onnxruntime
import rig
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import AutoModel, DebertaV2Model
from verdict import table

from racer_core.encoder.deberta import LeanDeberta
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.pooling import pool
from racer_core.offline.embeddings import CachedEncoder

FLOAT32, PACKED = "float32", "float32, linear layers packed for oneDNN"
ONNX, PLAIN = "ONNX Runtime, float32", "ONNX Runtime, int8"
CHANNEL, TOGETHER = f"{PLAIN} per channel", ", together"
FILES = {ONNX: "float32.onnx", PLAIN: "int8.onnx", CHANNEL: "int8_per_channel.onnx"}
SETS = (FLOAT32, PLAIN, CHANNEL, PLAIN + TOGETHER, CHANNEL + TOGETHER)
TIMED = (FLOAT32, ONNX, *SETS[1:])
INPUTS = ("input_ids", "attention_mask")
SIZES = (1, encoders.BATCH)
TOKENS = 64
WAYS = {1: "one by one", encoders.BATCH: f"in batches of {encoders.BATCH}"}


class HiddenStates(torch.nn.Module):
    """A model as a function of two tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The last hidden states."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class PackedLinear(torch.nn.Module):
    """A linear map whose weight lies as oneDNN wants it; torch's own goes to MKL."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TOKENS)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows times weight, and the bias."""
        of = torch.ops.mkldnn._linear_pointwise
        return of(rows, self.weight, self.bias, "none", [], "")


class OnnxEncoder(HuggingFaceEncoder):
    """Another forward between the same tokenizer, batches and pooling."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        super().__init__(args.encoder, backend="cpu", dtype="float32", max_tokens=256)
        self.together = name.endswith(TOGETHER) or name == ONNX
        self.session = session(args.models / FILES[name.removesuffix(TOGETHER)], 1)
        self.spec = replace(self.spec, dtype=name)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        return super()._batches(lengths) if self.together else ([i] for i in range(len(lengths)))

    def _forward(self, ids: np.ndarray, mask: np.ndarray) -> Any:
        (hidden,) = self.session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        return pool(torch.from_numpy(hidden), torch.from_numpy(mask), "mean").numpy()


def session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    """An exported model on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def export(model: Any, folder: Path) -> None:
    """In float32, and in int8 twice, unless they are there."""
    if all((folder / file).exists() for file in FILES.values()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    ids = torch.randint(1_000, 2_000, (2, TOKENS))
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2, max=512)
    torch.onnx.export(
        HiddenStates(model).eval(),
        (ids, torch.ones_like(ids)),
        folder / FILES[ONNX],
        input_names=INPUTS,
        output_names=["hidden"],
        dynamic_shapes={name: {0: batch, 1: tokens} for name in INPUTS},
        dynamo=True,
        external_data=True,
    )
    for name in (PLAIN, CHANNEL):
        quantize_dynamic(
            folder / FILES[ONNX],
            folder / FILES[name],
            per_channel=name == CHANNEL,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
            use_external_data_format=True,
        )


def opened(args: argparse.Namespace, name: str) -> HuggingFaceEncoder:
    """An arm's encoder."""
    if name == FLOAT32:
        return HuggingFaceEncoder(args.encoder, backend="cpu", dtype="float32", max_tokens=256)
    return OnnxEncoder(args, name)


def timed_texts(args: argparse.Namespace) -> dict[str, list[str]]:
    """Recorded queries: those of about 64 tokens, and as they come."""
    recorded = encoders.recorded(args.data).queries
    order = np.random.default_rng(0).permutation(len(recorded))
    every = opened(args, FLOAT32).tokenized([recorded[i] for i in order])
    near = [text for text in every if abs(len(text.ids) - TOKENS) <= 4]
    kinds = {f"{TOKENS} tokens": near, "recorded": every}
    return {kind: [str(text) for text in texts[: args.texts]] for kind, texts in kinds.items()}


def in_turn(
    arms: Mapping[str, Callable[[Any], Any]], parts: Sequence[Any], size: int
) -> dict[str, dict[str, float]]:
    """CPU and wall ms a query of every arm, which all work on a part before the next one."""
    names, found = [*arms], {name: np.zeros((len(parts), 2)) for name in arms}
    for arm in arms.values():
        arm(parts[0])
    for number, part in enumerate(parts):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            arms[name](part)
            found[name][number] = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return {
        name: dict(
            zip(
                ("cpu", "wall", "cpu_p50", "wall_p50"),
                (float(each) / 1e6 / size for each in (*took.mean(0), *np.median(took, 0))),
                strict=True,
            )
        )
        for name, took in found.items()
    }


def timed(args: argparse.Namespace) -> dict[str, Any]:
    """Whole encoders on one core."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, rig.GATEWAY_CORES)
    arms = {name: opened(args, name).encode for name in TIMED}
    return {
        f"{kind}, {WAYS[size]}": in_turn(
            arms, [texts[i : i + size] for i in range(0, len(texts) - size + 1, size)], size
        )
        for kind, texts in timed_texts(args).items()
        for size in SIZES
    }


def of_shape(args: argparse.Namespace) -> dict[str, Any]:
    """Forwards of mDeBERTa-v3-base's shape."""
    torch.set_num_threads(args.threads)
    if args.threads == 1:
        os.sched_setaffinity(0, rig.GATEWAY_CORES)
    torch.manual_seed(0)
    model = DebertaV2Model(shapes.CONFIG).eval()
    export(model, args.models)
    own, packed = (LeanDeberta(model, shapes.CONFIG.max_position_embeddings) for _ in range(2))
    matrices = ("qkv", "attended", "widened", "narrowed")
    packed._layers = [
        replace(layer, **{name: PackedLinear(getattr(layer, name)) for name in matrices})
        for layer in packed._layers
    ]
    arms = {FLOAT32: by_torch(own), PACKED: by_torch(packed)}
    arms |= {name: by_onnx(args.models / FILES[name], args.threads) for name in FILES}
    ids = np.random.default_rng(0).integers(5, 250_000, (max(SIZES), TOKENS))
    print(apart({name: arm(ids[:8]).mean(axis=1) for name, arm in arms.items()}))
    times = {1: args.texts // 4, max(SIZES): args.texts // 16}
    return {
        f"{TOKENS} tokens, {WAYS[size]}, {args.threads} threads": in_turn(
            arms, [ids[:size]] * times[size], size
        )
        for size in SIZES
    }


def by_torch(model: LeanDeberta) -> Callable[[Any], Any]:
    """Hidden states by a torch forward."""

    def forward(ids: Any) -> Any:
        with torch.inference_mode():
            tokens = torch.from_numpy(ids)
            return model(tokens, torch.ones_like(tokens)).numpy()

    return forward


def by_onnx(file: Path, threads: int) -> Callable[[Any], Any]:
    """Hidden states by ONNX Runtime."""
    model = session(file, threads)
    return lambda ids: model.run(None, {INPUTS[0]: ids, INPUTS[1]: np.ones_like(ids)})[0]


def apart(vectors: Mapping[str, Any]) -> dict[str, str]:
    """Mean cosine distances to the first."""
    unit = {k: v / np.linalg.norm(v, axis=1, keepdims=True) for k, v in vectors.items()}
    first = next(iter(unit.values())).astype(float)
    return {k: f"{((v - first) ** 2).sum(axis=1).mean() / 2:.0e}" for k, v in unit.items()}


def sets(args: argparse.Namespace) -> dict[str, Any]:
    """The mean sets of every arm in every division."""
    torch.set_num_threads(1)
    arms = {name: opened(args, name) for name in SETS}
    texts = timed_texts(args)["recorded"]
    vectors = {name: arm.encode(texts).embeddings for name, arm in arms.items()}
    print(apart(vectors), "; alone to together:")
    print(apart({name: vectors[name] for name in (CHANNEL, CHANNEL + TOGETHER)}))
    rows, cache = encoders.recorded(args.data), args.models / "embeddings.sqlite"
    with TemporaryDirectory() as folder:
        place = Path(folder, "router")
        return {
            name: encoders.of_divisions(rows, CachedEncoder(arm, cache), args.divisions, place)
            for name, arm in arms.items()
        }


def costs(results: Mapping[str, Any]) -> str:
    """A table of CPU times, and their shares of float32's."""

    def cell(took: Mapping[str, Any], name: str) -> str:
        own, base = took[name], took[FLOAT32]
        return " / ".join(f"{own[k]:.1f} ({own[k] / base[k]:.2f})" for k in ("cpu", "wall_p50"))

    names = next(iter(results.values()))
    lines = [(name, *(cell(took, name) for took in results.values())) for name in names]
    return table(("mean CPU ms / p50 ms a query", *results), lines)


def sizes(results: Mapping[str, Any]) -> str:
    """A table of mean sets, with their paired differences to float32's."""
    keys = [f"{target}, {alpha:g}" for target in encoders.TARGETS for alpha in encoders.ALPHAS]
    of = {n: {k: np.array([d[k] for d in found]) for k in keys} for n, found in results.items()}

    def cell(name: str, key: str) -> str:
        values = of[name][key] - of[FLOAT32][key]
        error = 2 * values.std(ddof=1) / len(values) ** 0.5
        return f"{of[name][key].mean():.2f} ({values.mean():+.3f} ± {error:.3f})"

    return table(("mean set", *keys), [(name, *(cell(name, key) for key in keys)) for name in of])


def main() -> None:
    """Export, measure, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("time", "sets", "shape"), required=True)
    parser.add_argument("--encoder", help="folder of a sentence encoder with mean pooling")
    parser.add_argument("--models", type=Path, required=True, help="exported models go here")
    parser.add_argument("--data", type=Path, help="has the folder `routerdc`")
    parser.add_argument("--divisions", type=int, default=5)
    parser.add_argument("--texts", type=int, default=256, help="timed")
    parser.add_argument("--threads", type=int, default=1, help="of the shape's forwards")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    packages = ("torch", "transformers", "onnx", "onnxruntime")
    versions = {name: metadata.version(name) for name in packages}
    manifest = rig.manifest(divisions=args.divisions, packages=versions)
    if args.only != "shape":
        export(AutoModel.from_pretrained(args.encoder).eval(), args.models)
    results = {"time": timed, "sets": sets, "shape": of_shape}[args.only](args)
    text = sizes(results) if args.only == "sets" else costs(results)
    document = {"manifest": manifest, "results": results}
    rig.publish(document, f"{rig.taken(manifest)}; {json.dumps(versions)}.\n\n{text}", args.json)


if __name__ == "__main__":
    main()
