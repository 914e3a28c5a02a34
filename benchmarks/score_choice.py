"""`cover` against `static` within one benchmark, and the power of the test that chooses them.

    PYTHONPATH=. python benchmarks/score_choice.py --data DATA --encoder MINILM

Three divisions of each benchmark alone, and of 6,000 rows of all: 40 % train, 400 rows (250 of a
small benchmark) validate, the rest tests. Sizes are those at equal risk on the test rows
(``mean_cost``). Power: six divisions of 5,000 rows of all benchmarks, 2,400 of which train; the
validation rows are the first of the rest. DATA has the folder `routerdc`. Without it, simulated
rows show that the script runs.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rig
from verdict import table

from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.offline.protocol import PAPER_ALPHAS
from racer_core.offline.selection import ScoredRows, choose_scores, mean_cost
from racer_core.records.reader import read_rows
from racer_core.types import RiskTarget, Score

FILES = ("gsm8k", "mmlu", "cmmlu", "arc_c")
MERGED = "four merged"
ALPHAS = (0.05, 0.1)
NEIGHBOURS = 200
FIRST_CHOICE = 40  # neighbours whose mean is the router's score
SIZES = (400, 800, 1_200, 2_400)
TARGET = RiskTarget.ANSWERABLE


class Rows:
    """Embeddings (n, d), labels (n, K), and the row numbers of each benchmark."""

    def __init__(
        self, pool: Sequence[str], embeddings: Any, labels: Any, places: Mapping[str, Any]
    ) -> None:
        self.pool = tuple(pool)
        self.embeddings = embeddings
        self.labels = labels
        self.places = places

    def scored(self, training: Any, part: Any) -> ScoredRows:
        """Some rows with the output of KNN on the training rows."""
        keys, ids = self.embeddings[training].T.copy(), pattern_ids(self.labels[training])
        near: list[Any] = []
        scores: list[Any] = []
        for start in range(0, len(part), 512):
            cosines = self.embeddings[part[start : start + 512]] @ keys
            order = np.argsort(-cosines, axis=1)[:, :NEIGHBOURS]
            near.append(ids[order].astype(np.uint16))
            scores.append(self.labels[training][order[:, :FIRST_CHOICE]].mean(axis=1))
        return ScoredRows(
            pool=self.pool,
            fingerprints=tuple(int(i).to_bytes(16) for i in part),
            scores=np.concatenate(scores).round(6),
            neighbours=np.concatenate(near),
            labels=self.labels[part],
        )

    def patterns(self, training: Any) -> PatternModel:
        """The patterns of the training rows."""
        return PatternModel.of(self.labels[training])


def recorded(folder: Path, encoder: Any) -> Rows:
    """The four benchmarks of the records, and all of them."""
    files = {name: read_rows(next(folder.rglob(f"{name}.jsonl.gz"))) for name in FILES}
    pool = files[FILES[0]].pool
    ends = np.cumsum([len(rows) for rows in files.values()])
    places = {
        name: np.arange(end - len(rows), end)
        for (name, rows), end in zip(files.items(), ends, strict=True)
    }
    embeddings = encoder.encode([query for rows in files.values() for query in rows.queries])
    labels = np.concatenate([rows.labels(pool) for rows in files.values()])
    return Rows(pool, embeddings.embeddings, labels, places | {MERGED: np.arange(int(ends[-1]))})


def simulated(count: int) -> Rows:
    """Two kinds of questions and three candidates."""
    rng = np.random.default_rng(0)
    queries = [f"What is {i} plus {i}?" if i % 2 else f"Who wrote book {i}?" for i in range(count)]
    chances = np.where(np.arange(count)[:, None] % 2, [0.9, 0.4, 0.3], [0.3, 0.5, 0.9])
    labels = rng.random(chances.shape) < chances
    every = np.arange(count)
    places = {"sums": every[1::2], "books": every[::2], MERGED: every}
    return Rows("abc", CharNgramEncoder().encode(queries).embeddings, labels, places)


def differences(rows: Rows, scope: str, seed: int) -> list[tuple[float, float, bool]]:
    """At each alpha: `cover` minus `static`, what the test chooses minus `static`, `cover` chosen.

    The first two are on the test rows.
    """
    rng = np.random.default_rng([seed, *scope.encode()])
    own = rng.permutation(rows.places[scope])
    own = own[:6_000] if scope == MERGED else own
    cut = int(0.4 * len(own))
    end = cut + (400 if len(own) > 1_500 else min(250, len(own) // 5))
    training, patterns = own[:cut], rows.patterns(own[:cut])
    validation, test = rows.scored(training, own[cut:end]), rows.scored(training, own[end:])
    chosen = choose_scores(validation, patterns, alphas=PAPER_ALPHAS, risk_target=TARGET)
    found: list[tuple[float, float, bool]] = []
    for alpha in ALPHAS:
        sizes = {
            score: mean_cost(test, patterns, score, alpha=alpha)
            for score in (Score.COVER, Score.STATIC)
        }
        fixed = sizes[Score.STATIC]
        found.append(
            (
                sizes[Score.COVER] - fixed,
                sizes[chosen[alpha]] - fixed,
                chosen[alpha] is Score.COVER,
            )
        )
    return found


def power(rows: Rows, divisions: int) -> dict[int, tuple[int, int]]:
    """By validation rows: divisions in which `cover` is chosen at some alpha, and at 0.1."""
    counts = {size: [0, 0] for size in SIZES}
    for seed in range(300, 300 + divisions):
        own = np.random.default_rng([seed, 1]).permutation(rows.places[MERGED])[:5_000]
        cut = min(2_400, len(own) // 2)
        patterns, rest = rows.patterns(own[:cut]), rows.scored(own[:cut], own[cut:])
        for size in SIZES:
            some = rest.at(np.arange(min(size, len(rest.labels))))
            chosen = choose_scores(some, patterns, alphas=PAPER_ALPHAS, risk_target=TARGET)
            counts[size][0] += Score.COVER in chosen.values()
            counts[size][1] += chosen[0.1] is Score.COVER
    return {size: (some, at) for size, (some, at) in counts.items()}


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--divisions", type=int, default=3, help="half as many as for the power")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    if args.data is None:
        rows = simulated(600)
    else:
        encoder = HuggingFaceEncoder(args.encoder, max_tokens=256, dtype="float32", backend="cpu")
        rows = recorded(args.data, HybridEncoder(encoder))
    results = {
        scope: [differences(rows, scope, seed) for seed in range(200, 200 + args.divisions)]
        for scope in rows.places
    }
    found = power(rows, 2 * args.divisions)
    document = {
        "manifest": rig.manifest(divisions=args.divisions),
        "results": results,
        "power": found,
    }
    text = f"{rig.taken(document['manifest'])}.\n\n{markdown(results)}\n{chosen_in(results)}\n\n"
    tested = table(
        ("validation rows", "`cover` at some alpha", "at 0.1"),
        ((str(size), *map(str, counts)) for size, counts in found.items()),
    )
    rig.publish(document, f"{text}Of {2 * args.divisions} divisions:\n\n{tested}", args.json)


def markdown(results: Mapping[str, Sequence[Any]]) -> str:
    """`cover` minus `static` in every division, and the mean over those of one benchmark."""
    alone = [scope for scope in results if scope != MERGED]
    lines: list[tuple[str, ...]] = []
    for number, alpha in enumerate(ALPHAS):
        gains = {
            scope: [each[number][0] for each in divisions] for scope, divisions in results.items()
        }
        own = np.array([gain for scope in alone for gain in gains[scope]])
        error = own.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else 0.0
        shown = {scope: ", ".join(f"{gain:+.2f}" for gain in each) for scope, each in gains.items()}
        lines.append(
            (
                f"{alpha:g}",
                *(shown[scope] for scope in alone),
                f"{own.mean():+.2f} ± {2 * error:.2f}",
                shown[MERGED],
            )
        )
    return table(("alpha", *alone, "mean ± 2 s.e. over divisions", MERGED), lines)


def chosen_in(results: Mapping[str, Sequence[Any]]) -> str:
    """How often the paired test takes `cover` within a benchmark, and its largest loss."""
    parts: list[str] = []
    for number, alpha in enumerate(ALPHAS):
        own = [
            each[number]
            for scope, divisions in results.items()
            if scope != MERGED
            for each in divisions
        ]
        taken, worst = sum(each[2] for each in own), max(each[1] for each in own)
        parts.append(
            f"at {alpha:g} it takes `cover` in {taken} of {len(own)}, at most {worst:+.2f} calls"
        )
    return f"The paired test within a benchmark: {'; '.join(parts)}."


if __name__ == "__main__":
    main()
