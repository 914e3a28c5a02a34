"""Drift alarms: how many queries, and how many judged ones, pass before each stream alarms.

    python benchmarks/drift.py --runs 100                       # simulated, n = 1,000, alpha 0.1
    python benchmarks/drift.py --runs 20 --data $DATA --json benchmarks/results/drift.json

The streams, their levels and their statistics are the gateway's own, at ``false_alarm: 0.01``.
Recorded queries (``gsm8k.jsonl.gz`` and ``mmlu.jsonl.gz`` in $DATA) are read by the character
n-gram encoder and scored by a KNN router.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.monitoring.drift import statistics as drift_statistics
from app.monitoring.drift.statistics import CRITICAL_SCORE, EMBEDDING, RISK, UNLABELLED
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.martingales import UpwardMartingale
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.components import principal_components, projected
from racer_core.routers.base import Batch, on_grid
from racer_core.routers.knn import KnnRouter
from racer_core.types import BoolArray, FloatArray, IdArray, Score, any_column

FALSE_ALARM = 0.01
ALPHA = 0.1
KINDS = 8  # clusters of the recorded queries of one benchmark
SHARE = 0.4  # of one kind among the served queries


class RecordedQueries:
    """Queries with labels, scored once by a router that learned from other queries."""

    def __init__(self, rows: list[dict[str, Any]], training: list[dict[str, Any]]) -> None:
        self.pool = tuple(sorted(rows[0]["scores"]))
        encoder = CharNgramEncoder()
        learned = encoder.encode([row["query"] for row in training]).embeddings
        router = KnnRouter.fit(learned, self._labels(training))
        components = principal_components(learned)
        assert components is not None
        batch = Batch([row["query"] for row in rows], encoder)
        output = router.predict(batch)
        assert output.neighbours is not None
        self.embeddings: NDArray[np.float32] = batch.encoded.embeddings
        self.scores: FloatArray = on_grid(output.scores)
        self.neighbours: IdArray = output.neighbours
        self.projections: FloatArray = projected(self.embeddings, components)
        self.labels = self._labels(rows)
        self.patterns = PatternModel.of(self._labels(training))

    def _labels(self, rows: list[dict[str, Any]]) -> BoolArray:
        return np.array([[name in row["correct"] for name in self.pool] for row in rows])

    def calibration(self, chosen: NDArray[np.intp]) -> Calibration:
        """A calibration on some of the rows."""
        return Calibration(
            pool=self.pool,
            fingerprints=tuple(self.fingerprint(i) for i in chosen),
            scores=self.scores[chosen],
            labels=self.labels[chosen],
            options=CalibrationOptions(alpha=ALPHA, score=Score.COVER),
            neighbours=self.neighbours[chosen],
            projections=self.projections[chosen],
            patterns=self.patterns,
        )

    @staticmethod
    def fingerprint(row: int | np.intp) -> bytes:
        """Stands for the keyed hash of a query."""
        return int(row).to_bytes(16)

    def statistics(self, calibration: Calibration, served: NDArray[np.intp]) -> dict[str, Any]:
        """The values of every stream for the served queries, in order."""
        options, scores = calibration.options, self.scores[served]
        lambda_hat = calibration.lambda_hat(options.alpha, options.score)
        prints, near = [self.fingerprint(i) for i in served], self.neighbours[served]
        sets = calibration.sets(scores, prints, lambda_hat, options.score, near)
        labels = self.labels[served]
        counted = labels.any(axis=1)
        critical = calibration.critical_scores_of(scores, prints, labels, near)
        return {
            drift_statistics.LARGEST_SCORE: scores.max(axis=1),
            drift_statistics.MEAN_SCORE: scores.mean(axis=1),
            drift_statistics.SET_SIZE: sets.selected.sum(axis=1).astype(float),
            EMBEDDING: self.projections[served],
            CRITICAL_SCORE: np.round(critical, 9)[counted],
            RISK: 1.0 - any_column(sets.selected & labels)[counted].astype(float),
        }


def delays(
    state: DriftState, values: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, float]:
    """After how many values each stream alarms; infinity where none does."""
    found: dict[str, float] = {}
    for name, stream in state.streams.items():
        found[name] = math.inf
        for count, value in enumerate(values[name], start=1):
            if isinstance(stream, RiskEProcess):
                stream.update(float(value))
            elif isinstance(stream, UpwardMartingale):
                stream.update(min(float(value), 1e300), *rng.random(2).tolist())
            else:
                drift_statistics.update(stream, [value], rng)
            if stream.alarmed:
                found[name] = count
                break
    return found


def simulated(rng: np.random.Generator, kind: str, rows: int, judged: int) -> dict[str, float]:
    """Judged queries whose risk is 0.15 instead of 0.1 (``none``: the same), one run.

    No critical scores tie. ``moved``: all of them are larger. ``tail``: only more of them are above
    the threshold.
    """
    normal = NormalDist()
    critical, values = rng.standard_normal(rows), rng.standard_normal(judged)
    if kind == "moved":
        values += normal.inv_cdf(0.9) - normal.inv_cdf(0.85)
    elif kind == "tail":
        ranks = np.where(
            rng.random(judged) < 0.15, rng.uniform(0.9, 1.0, judged), rng.uniform(0.0, 0.9, judged)
        )
        values = np.array([normal.inv_cdf(rank) for rank in ranks])
    misses, level = allowed_misses(rows, ALPHA), FALSE_ALARM / 4.0  # each of the judged streams
    streams = {
        CRITICAL_SCORE: UpwardMartingale(critical, tail=ALPHA, level=level, rng=rng),
        RISK: RiskEProcess.for_calibration(RealisedRisk.of(np.sort(critical), misses), level=level),
    }
    threshold = np.sort(critical)[rows - 1 - misses]
    at_law = rng.beta(misses + 1, rows - misses)
    losses = rng.random(judged) < (at_law if kind == "none" else 0.15)
    if kind != "none":
        losses = values > threshold
    found = delays(
        DriftState(delta=FALSE_ALARM, streams=streams), {CRITICAL_SCORE: values, RISK: losses}, rng
    )
    return found | {"either": min(found.values())}


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Alarms, and the tenth, fifth and ninth decile of the delays, by stream."""
    shown: dict[str, dict[str, float | None]] = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        deciles = np.quantile(values, (0.1, 0.5, 0.9), method="lower")
        low, median, high = (float(x) if math.isfinite(x) else None for x in deciles)
        alarms = int(np.isfinite(values).sum())
        shown[name] = {"runs": len(runs), "alarms": alarms, "p10": low, "p50": median, "p90": high}
    return shown


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a recorded benchmark."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def kinds(embeddings: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.intp]:
    """The kind of each query: k-means on a random half of the buckets, ten rounds."""
    half = embeddings[:, rng.permutation(embeddings.shape[1])[: embeddings.shape[1] // 2]]
    centres = half[rng.choice(len(half), KINDS, replace=False)]
    owner = np.zeros(len(half), np.intp)
    for _ in range(10):
        owner = np.argmax(half @ centres.T - 0.5 * (centres**2).sum(axis=1), axis=1)
        centres = np.stack([half[owner == k].mean(axis=0) for k in range(KINDS)])
    return owner


def recorded(folder: Path, runs: int) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each recorded change, with what it does to the streams."""
    rng = np.random.default_rng(0)
    gsm8k = read(folder / "gsm8k.jsonl.gz")
    train = [row for row in gsm8k if row["split"] == "train"]
    part: list[int] = rng.permutation(len(train)).tolist()
    rows = [train[i] for i in part[300:]] + [row for row in gsm8k if row["split"] != "train"]
    world = RecordedQueries(rows, [train[i] for i in part[:300]])
    first = np.arange(len(train) - 300)
    later = np.arange(first.size, len(rows))
    yield (
        "gsm8k, training rows calibrate, test rows served",
        _runs(world, runs, lambda r: (first, r.permutation(later))),
    )
    alike = np.zeros(len(rows), np.intp)
    yield "gsm8k, drawn alike (no change)", _runs(world, runs, lambda r: _split(r, alike, None))
    mmlu = read(folder / "mmlu.jsonl.gz")
    order: list[int] = rng.permutation(len(mmlu)).tolist()
    world = RecordedQueries([mmlu[i] for i in order[1_500:]], [mmlu[i] for i in order[:1_500]])
    kind = kinds(world.embeddings, rng)
    yield "mmlu, drawn alike (no change)", _runs(world, runs, lambda r: _split(r, kind, None))
    for each in range(KINDS):
        before = np.count_nonzero(kind == each) / kind.size
        if before < 0.1:
            continue  # too few of them to be served
        yield (
            f"mmlu, kind {each}: {before:.2f} of the rows, {SHARE} of the queries",
            _runs(world, runs, lambda r, each=each: _split(r, kind, each)),
        )


def _split(
    rng: np.random.Generator, kind: NDArray[np.intp], more: int | None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """1,000 calibration rows; served are others, of which the kind ``more`` is SHARE."""
    order = rng.permutation(kind.size)
    rows, served = order[:1_000], order[1_000:]
    if more is not None:
        before = np.count_nonzero(kind == more) / kind.size
        thinned = before / (1.0 - before) * (1.0 - SHARE) / SHARE
        served = served[(kind[served] == more) | (rng.random(served.size) < thinned)]
    return rows, served[:1_500]


def _runs(
    world: RecordedQueries,
    runs: int,
    draw: Callable[[np.random.Generator], tuple[NDArray[np.intp], NDArray[np.intp]]],
) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    risks: list[float] = []
    for run in range(runs):
        rng = np.random.default_rng(run)
        rows, served = draw(rng)
        calibration = world.calibration(rows)
        values = world.statistics(calibration, served)
        risks.append(sum(values[RISK]) / len(values[RISK]))
        state = drift_statistics.new_drift_state(calibration, FALSE_ALARM, rng)
        each = delays(state, values, rng)
        each |= {"label-free": min(each[name] for name in UNLABELLED)}
        found.append(each)
    return {"risk": float(np.mean(risks)), "streams": summary(found)}


def main() -> None:
    """Print every change with its delays, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--judged", type=int, default=5_000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for kind in ("moved", "tail", "none"):
        rng = np.random.default_rng(7)
        results[f"simulated, {kind}"] = summary(
            [simulated(rng, kind, arguments.rows, arguments.judged) for _ in range(arguments.runs)]
        )
        print(f"simulated, {kind}:", json.dumps(results[f"simulated, {kind}"]), flush=True)
    if arguments.data is not None:
        for name, found in recorded(arguments.data, arguments.runs):
            results[name] = found
            print(f"{name}:", json.dumps(found), flush=True)
    if arguments.json is not None:
        settings = {"runs": arguments.runs, "rows": arguments.rows, "judged": arguments.judged}
        document = {"settings": settings, "changes": results}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
