"""Prediction sets of one encoder in float32 and in bfloat16, each with thresholds of its own.

    PYTHONPATH=. python benchmarks/encoder_formats.py --data DATA --encoder MINILM

Each split of ARC-C: 40 % of the rows train KNN, 40 % calibrate, 20 % test; `cover` without
smoothing, target `answerable`. DATA has the folder `routerdc`. Without it, simulated rows, with the
embeddings of character n-grams rounded to bfloat16, show that the script runs.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rig
from score_choice import Rows, simulated
from verdict import table

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.selection import ScoredRows
from racer_core.records.reader import read_rows
from racer_core.types import Score

FORMATS = ("float32", "bfloat16")
BASE = FORMATS[0]
ALPHA = 0.1


def recorded(folder: Path, encoder: str) -> dict[str, Rows]:
    """The rows of ARC-C, embedded in each format."""
    rows = read_rows(next(folder.rglob("arc_c.jsonl.gz")))
    places = {"arc_c": np.arange(len(rows))}
    labels = rows.labels(rows.pool)
    return {
        name: Rows(
            rows.pool,
            HuggingFaceEncoder(encoder, dtype=name, backend="cpu").encode(rows.queries).embeddings,
            labels,
            places,
        )
        for name in FORMATS
    }


def rounded(rows: Rows) -> dict[str, Rows]:
    """The same rows, with embeddings of eight significant bits for bfloat16."""
    bits = rows.embeddings.astype(np.float32).view(np.uint32)
    short = ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return {
        name: Rows(rows.pool, embeddings, rows.labels, rows.places)
        for name, embeddings in zip(FORMATS, (rows.embeddings, short), strict=True)
    }


def measured(of_format: Mapping[str, Rows], seed: int) -> dict[str, dict[str, float]]:
    """One split: by format, figures of its sets, and of float32's threshold on its scores."""
    count = len(of_format[BASE].labels)
    order = np.random.default_rng(seed).permutation(count)
    training, own, test = np.split(order, [int(0.4 * count), int(0.8 * count)])
    found: dict[str, dict[str, float]] = {}
    sets: dict[str, Any] = {}
    threshold = float("nan")
    for name, rows in of_format.items():
        patterns = rows.patterns(training)
        calibration = rows.scored(training, own).calibration(CalibrationOptions(), patterns)
        tested = rows.scored(training, test)
        lambda_hat = calibration.lambda_hat(ALPHA, Score.COVER)
        threshold = lambda_hat if name == BASE else threshold
        sets[name] = called(calibration, tested, lambda_hat)
        found[name] = {
            "size": float(sets[name].sum(axis=1).mean()),
            "risk": miss(sets[name], tested.labels),
            "differ": float((sets[name] != sets[BASE]).any(axis=1).mean()),
            "borrowed": miss(called(calibration, tested, threshold), tested.labels),
        }
    return found


def called(calibration: Calibration, tested: ScoredRows, lambda_hat: float) -> Any:
    """The sets of the rows at a threshold, shape (n, K)."""
    neighbours = tested.neighbours
    return calibration.sets(
        tested.scores, tested.fingerprints, lambda_hat, Score.COVER, neighbours
    ).selected


def miss(selected: Any, labels: Any) -> float:
    """Share of the answerable rows whose set has no right candidate."""
    hit, answerable = (selected & labels).any(axis=1), labels.any(axis=1)
    return float((~hit[answerable]).mean())


def main() -> None:
    """Measure every split, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    of_format = rounded(simulated(300)) if args.data is None else recorded(args.data, args.encoder)
    results = [measured(of_format, seed) for seed in range(args.splits)]
    document = {
        "manifest": rig.manifest(splits=args.splits, rows=len(of_format[BASE].labels)),
        "results": results,
    }
    rig.publish(document, f"{rig.taken(document['manifest'])}.\n\n{markdown(results)}", args.json)


def markdown(results: list[dict[str, dict[str, float]]]) -> str:
    """Means over splits."""
    lines = [
        (
            name,
            *(
                f"{np.mean([split[name][figure] for split in results]):{form}}"
                for figure, form in (
                    ("size", ".2f"),
                    ("risk", ".3f"),
                    ("differ", ".1%"),
                    ("borrowed", ".3f"),
                )
            ),
        )
        for name in FORMATS
    ]
    head = ("format", "mean set", "risk", f"sets other than {BASE}'s", f"risk at {BASE}'s lambda")
    return table(head, lines)


if __name__ == "__main__":
    main()
