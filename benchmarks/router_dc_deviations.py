"""RouterDC's deviations from the authors' code, each taken back, on a proxy of the encoder.

    PYTHONPATH=. python benchmarks/router_dc_deviations.py --data DATA --encoder MINILM

A linear map of frozen embeddings stands for the encoder; losses, batches and settings are those of
``racer_core/offline/router_dc.py``. Each change trains on the training rows of one division, with
every tenth for the map from cosines to chances, and is tested on all rows that are left. DATA has
the folder `routerdc`. Without it, simulated rows show that the script runs. t-SNE needs
scikit-learn; without it its two variants are left out.
"""

import argparse
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import rig
import torch
from torch import nn
from verdict import table

from racer_core.encoder.base import Encoder, EncoderOutput
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.clusters import cluster
from racer_core.offline.contrastive import contrast, pick
from racer_core.offline.protocol import Protocol
from racer_core.offline.router_dc import RouterDcSettings
from racer_core.offline.table import benchmark_units, draw_division
from racer_core.records.reader import read_rows
from racer_core.records.units import rows_kind
from racer_core.routers.base import Batch
from racer_core.routers.router_dc import RouterDcRouter
from racer_core.types import LabelledRow, LabelledRows

FILES = ("gsm8k", "mmlu", "cmmlu", "arc_c")
BATCH = 32
RATE = 5e-5


@dataclass(frozen=True, kw_only=True)
class Change:
    """One way of training; the defaults are the table's first row."""

    key_scale: float = 0.02
    tsne: bool = False
    by_score: bool = False
    own_positive: bool = False


CHANGES: Mapping[str, Change] = {
    "none (keys start with 0.02)": Change(),
    "keys start with a standard deviation of 0.78": Change(key_scale=0.78),
    "clusters of a two-dimensional t-SNE": Change(tsne=True),
    "K+ and K- by the records' graded scores": Change(by_score=True),
    "a query may be its own positive": Change(own_positive=True),
    "all four": Change(key_scale=0.78, tsne=True, by_score=True, own_positive=True),
}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Embeddings (n, d), labels (n, K), graded scores (n, K), and the three parts of the rows."""

    embeddings: Any
    labels: Any
    grades: Any
    training: Any
    held_out: Any
    test: Any
    planar: Any  # t-SNE of the training rows, shape (m, 2); None without scikit-learn


def recorded(folder: Path, encoder: Encoder) -> Rows:
    """The four benchmarks of the records."""
    paths = {name: next(folder.rglob(f"{name}.jsonl.gz")) for name in FILES}
    files = {name: read_rows(path) for name, path in paths.items()}
    grades: list[list[float]] = []
    for path in paths.values():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if "scores" in row:
                    grades.append([row["scores"][name] for name in files["gsm8k"].pool])
    return split(files, encoder, np.array(grades))


def simulated(count: int) -> Rows:
    """Rows of three candidates, one of which is right about numbers."""
    rng = np.random.default_rng(0)
    pool = ("a", "b", "c")
    rows = [
        LabelledRow(
            query=f"What is {i} plus {i}?" if i % 2 else f"Who wrote book {i} of the series?",
            correct=frozenset(
                name for m, name in enumerate(pool) if rng.random() < (0.8 if m == i % 2 else 0.4)
            ),
        )
        for i in range(count)
    ]
    files = {"rows": LabelledRows(pool=pool, rows=tuple(rows))}
    return split(files, CharNgramEncoder(), rng.random((count, len(pool))))


def split(files: Mapping[str, LabelledRows], encoder: Encoder, grades: Any) -> Rows:
    """The first division of `racer evaluate`, every tenth training row held out."""
    pool = next(iter(files.values())).pool
    units = benchmark_units(files, {name: rows_kind(rows) for name, rows in files.items()})
    training, rest, _ = draw_division(files, units, Protocol(), 0)
    own = np.delete(training, np.arange(0, len(training), 10))
    queries = [row.query for rows in files.values() for row in rows.rows]
    embeddings = encoder.encode(queries).embeddings.astype(np.float32)
    labels = np.concatenate([rows.labels(pool) for rows in files.values()])
    planar = None
    if find_spec("sklearn") is not None:
        manifold = import_module("sklearn.manifold")
        planar = manifold.TSNE(2, random_state=0, n_jobs=1).fit_transform(embeddings[own])
    return Rows(
        embeddings=embeddings,
        labels=labels,
        grades=grades,
        training=own,
        held_out=training[::10],
        test=rest,
        planar=planar,
    )


class Proxy(nn.Module):
    """A linear map that starts at the identity, and an embedding of each candidate."""

    def __init__(self, rows: Rows, change: Change, seed: int) -> None:
        super().__init__()
        self.embeddings = torch.from_numpy(rows.embeddings)
        width, count = rows.embeddings.shape[1], rows.labels.shape[1]
        self.map = nn.Linear(width, width, bias=False)
        self.map.weight.data = torch.eye(width)
        drawn = np.random.default_rng([seed, 3]).standard_normal((count, width))
        self.keys = nn.Parameter(torch.from_numpy(drawn).float() * change.key_scale)

    def forward(self, rows: Any) -> torch.Tensor:
        """The unit embeddings of some rows."""
        return nn.functional.normalize(self.map(self.embeddings[rows]), dim=1)


def best(eligible: Any, most: int, values: Any) -> Any:
    """The eligible columns of each row with the largest values."""
    ranked = np.where(eligible, values, -np.inf)
    return eligible & (np.argsort(np.argsort(-ranked, axis=1), axis=1) < most)


def loss(
    model: Proxy,
    rows: Rows,
    change: Change,
    batch: Any,
    clusters: Any,
    rng: np.random.Generator,
) -> torch.Tensor | None:
    """The two contrastive losses of a batch."""
    settings, labels = RouterDcSettings(), rows.labels[batch]
    texts, keys = model(batch), nn.functional.normalize(model.keys, dim=1)
    if change.by_score:
        values = rows.grades[batch] + rng.random(labels.shape) * 1e-6
        positive = best(labels, settings.positives, values)
        negative = best(~labels, settings.negatives, -values)
    else:
        positive = pick(labels, settings.positives, rng)
        negative = pick(~labels, settings.negatives, rng)
    same = clusters[:, None] == clusters[None, :]
    friends = same if change.own_positive else same & ~np.eye(len(same), dtype=bool)
    parts = (
        contrast(texts @ keys.T / settings.temperature, positive, negative),
        contrast(
            texts @ texts.T / settings.temperature,
            pick(friends, 1, rng),
            pick(~same, settings.strangers, rng),
        ),
    )
    found = [part for part in parts if part is not None]
    return torch.stack(found).sum() if found else None


def batches(count: int, steps: int, seed: int) -> list[Any]:
    """Rows in random orders, one order after the other."""
    rng = np.random.default_rng([seed, 2])
    passes = -(-steps * BATCH // count)
    drawn = np.concatenate([rng.permutation(count) for _ in range(passes)])
    return [drawn[step * BATCH : (step + 1) * BATCH] for step in range(steps)]


def trained(rows: Rows, change: Change, steps: int, seed: int) -> tuple[float, float]:
    """Share of test rows whose first choice is right, and the log loss of the scores."""
    own = rows.training
    clustered = rows.planar if change.tsne else rows.embeddings[own]
    clusters = cluster(clustered.astype(np.float32), RouterDcSettings().clusters, seed)
    torch.manual_seed(seed)
    model = Proxy(rows, change, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    for step, batch in enumerate(batches(len(own), steps, seed)):
        rng = np.random.default_rng([seed, 1, step])
        value = loss(model, rows, change, own[batch], clusters[batch], rng)
        if value is not None:
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
    with torch.no_grad():
        held, test = (model(part).numpy() for part in (rows.held_out, rows.test))
    router = RouterDcRouter.fit(model.keys.detach().numpy(), held, rows.labels[rows.held_out])
    f = np.asarray(router.predict(Batch([""] * len(test), _StoredEmbeddings(test))).scores)
    truth = rows.labels[rows.test]
    right = truth[np.arange(len(test)), f.argmax(axis=1)]
    chance = np.clip(np.where(truth, f, 1.0 - f), 1e-4, 1.0)
    return float(right.mean()), float(-np.log(chance).mean())


class _StoredEmbeddings:
    """An encoder of texts whose embeddings are known."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings = embeddings

    def encode(self, _texts: Sequence[str]) -> EncoderOutput:
        """The embeddings."""
        none = np.zeros(len(self._embeddings), dtype=bool)
        return EncoderOutput(embeddings=self._embeddings, truncated=none)


def main() -> None:
    """Train every change with every seed, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    if args.data is None:
        rows = simulated(300)
    else:
        encoder = HuggingFaceEncoder(args.encoder, max_tokens=32, dtype="float32", backend="cpu")
        rows = recorded(args.data, encoder)
    changes = {n: each for n, each in CHANGES.items() if not each.tsne or rows.planar is not None}
    results = {
        name: [trained(rows, change, args.steps, seed) for seed in range(args.seeds)]
        for name, change in changes.items()
    }
    document = {
        "manifest": rig.manifest(steps=args.steps, seeds=args.seeds, tested=len(rows.test)),
        "results": results,
    }
    rig.publish(document, f"{rig.taken(document['manifest'])}.\n\n{markdown(results)}", args.json)


def markdown(results: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The first row as it is, the others as paired differences from it."""
    base = np.array(next(iter(results.values())))

    def difference(values: Any, column: int, number: Callable[[float], str]) -> str:
        gains = values[:, column] - base[:, column]
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        return f"{number(gains.mean())} ± {number(1.96 * error).lstrip('+')}"

    lines: list[tuple[str, ...]] = []
    for name, runs in results.items():
        values = np.array(runs)
        if lines:
            cells = (
                difference(values, 0, lambda x: f"{100 * x:+.1f}"),
                difference(values, 1, lambda x: f"{x:+.4f}"),
            )
        else:
            cells = f"{100 * values[:, 0].mean():.1f} %", f"{values[:, 1].mean():.4f}"
        lines.append((name, *cells))
    return table(("change to the authors' way", "first choice, points", "log loss"), lines)


if __name__ == "__main__":
    main()
