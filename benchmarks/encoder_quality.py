"""What int8 and bfloat16 change in the sets: a real encoder on labelled rows.

    python benchmarks/encoder_export.py /tmp/minilm --model $MINILM
    python benchmarks/encoder_quality.py $MINILM --int8 /tmp/minilm/int8.onnx \
      --data $DATA/arc_c.jsonl.gz --json quality.json

Each arm embeds all rows, trains its own KNN and is calibrated on its own scores, as it would be
served; int8 is ONNX Runtime's, of weights and activations.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import rig
import torch
from transformers import AutoTokenizer

from racer_core.encoder.base import Encoded, Encoder, EncoderSpec, unit_rows
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.pooling import pool
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows

SHARES = (0.4, 0.1, 0.25)  # training, validation, calibration; the rest is for testing
ALPHA = 0.1


@dataclass(frozen=True)
class OnnxEncoder:
    """An exported model with the tokenizer of the folder that it comes from; mean pooling."""

    session: onnxruntime.InferenceSession
    tokenizer: Any
    spec: EncoderSpec

    def encode(self, texts: Sequence[str]) -> Encoded:
        """One text at a time, which a benchmark may."""
        return Encoded(
            unit_rows(np.concatenate([self._one(text) for text in texts])),
            np.zeros(len(texts), dtype=bool),
        )

    def _one(self, text: str) -> np.ndarray:
        tokens = self.tokenizer(
            text, truncation=True, max_length=self.spec.max_tokens, return_tensors="np"
        )
        names = ("input_ids", "attention_mask")
        hidden = self.session.run(None, {name: tokens[name] for name in names})[0]
        mask = torch.from_numpy(tokens["attention_mask"])
        return pool(torch.from_numpy(hidden), mask, "mean").numpy()


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--int8", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    fine, half = (
        HuggingFaceEncoder(given.model, backend="cpu", dtype=dtype, max_tokens=256)
        for dtype in ("float32", "bfloat16")
    )
    session = onnxruntime.InferenceSession(given.int8, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    int8 = OnnxEncoder(session, tokenizer, replace(fine.spec, dtype="int8"))
    rows = read_rows(given.data)
    arms = {
        name: Remembered(encoder, rows)
        for name, encoder in {"float32": fine, "bfloat16": half, "int8": int8}.items()
    }
    found = [one_split(arms, rows, seed) for seed in range(given.splits)]
    result = {
        name: {key: float(np.mean([each[name][key] for each in found])) for key in found[0][name]}
        for name in arms
    }
    exact = arms["float32"].embeddings
    for name, arm in arms.items():
        result[name]["cosine_distance"] = float(np.mean(1 - np.sum(exact * arm.embeddings, axis=1)))
    print(json.dumps(result, indent=1))
    if given.json:
        manifest = rig.manifest(data=given.data.name, rows=len(rows), splits=given.splits)
        given.json.write_text(json.dumps({"manifest": manifest, "arms": result}, indent=1) + "\n")


class Remembered:
    """An encoder that has embedded all rows."""

    def __init__(self, encoder: Encoder, rows: LabelledRows) -> None:
        self.spec = encoder.spec
        self.embeddings = encoder.encode(rows.queries).embeddings
        self._place = {query: i for i, query in enumerate(rows.queries)}

    def encode(self, texts: Sequence[str]) -> Encoded:
        """From memory."""
        rows = [self._place[text] for text in texts]
        return Encoded(self.embeddings[rows], np.zeros(len(rows), dtype=bool))


def one_split(
    arms: Mapping[str, Remembered], rows: LabelledRows, seed: int
) -> dict[str, dict[str, float]]:
    """Train, calibrate and test every arm on the same rows."""
    order = np.random.default_rng(seed).permutation(len(rows))
    cuts = np.cumsum([int(share * len(rows)) for share in SHARES])
    training, validation, calibration, test = (
        replace(rows, rows=tuple(rows.rows[i] for i in part)) for part in np.split(order, cuts)
    )
    decided: dict[str, list[frozenset[str]]] = {}
    first: dict[str, np.ndarray] = {}
    for name, arm in arms.items():
        with tempfile.TemporaryDirectory() as folder:
            artifact = train(training, validation, Path(folder), encoder=arm, kind="knn", seed=seed)
        racer = Racer(artifact, arm)
        record = racer.calibrate(calibration, alpha=ALPHA)
        first[name] = racer.score(test.queries).scores.argmax(axis=1)
        decided[name] = [
            frozenset(each.selected) for each in racer.route_batch(test.queries, record)
        ]
    labels = test.labels(rows.pool)
    return {
        name: {
            "top1_right": float(labels[np.arange(len(labels)), first[name]].mean()),
            "top1_agreement": float((first[name] == first["float32"]).mean()),
            "set_size": float(np.mean([len(each) for each in sets])),
            "sets_changed": float(
                np.mean([a != b for a, b in zip(sets, decided["float32"], strict=True)])
            ),
        }
        for name, sets in decided.items()
    }


if __name__ == "__main__":
    main()
