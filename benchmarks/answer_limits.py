"""Rules for a limit on wrong final answers: which thresholds may be served, on recorded answers.

    PYTHONPATH=. python benchmarks/answer_limits.py --data DATA

DATA is a folder with rows that have answers, in any of its folders. A third of a file trains the
router (KNN on character n-grams); the rest is the population. Calibration rows are drawn from it
with replacement, so that the true rate of every threshold is known. tau, the grid and its counts
are those of ``tested_grid``, as the gateway does it; only the test of the counts differs. Of the
thresholds that pass a rule, the smallest that is at least lambda_hat is served.

The population ``no information`` errs at 1.2 times the limit, whatever is called.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rig
from verdict import table

import racer_core as rc
from app.calibrations.answer_limit import DELTA, tested_grid
from app.calibrations.answer_risk import final_answers
from app.calibrations.columns import RowColumns, Texts
from app.settings.aggregation import Aggregation
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import answer_classes
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.learn_then_test import (
    GridPoint,
    clopper_pearson_upper,
    learn_then_test,
)
from racer_core.calibration.options import CalibrationOptions

ALPHA = 0.1
LIMITS = {"zeroeval_gsm": (0.12, 0.14, 0.16, 0.2), "mmlu_pro": (0.46, 0.48, 0.5, 0.55)}
FLAT = "no information"
FLAT_LIMIT = 0.1
Rule = Callable[[Sequence[GridPoint], float], Sequence[GridPoint]]


def bounded(points: Sequence[GridPoint], limit: float, delta: float) -> list[GridPoint]:
    """Those with a Clopper-Pearson bound within the limit."""
    return [p for p in points if clopper_pearson_upper(p.errors, p.answered, delta) <= limit]


def fixed_sequence(points: Sequence[GridPoint], limit: float) -> list[GridPoint]:
    """Each at delta, until the first that fails."""
    passed = [point in bounded([point], limit, DELTA) for point in points]
    return list(points[: passed.index(False)] if False in passed else points)


def lec(points: Sequence[GridPoint], limit: float) -> list[GridPoint]:
    """Sum over answered rows of (wrong - limit) at most -1."""
    return [point for point in points if point.errors - limit * point.answered <= -1.0]


RULES: Mapping[str, Rule] = {
    "learn then test (used)": lambda points, limit: learn_then_test(points, limit, DELTA).valid,
    "learn then test, equal shares": lambda points, limit: (
        learn_then_test(points, limit, DELTA, 1.0 / len(points)).valid
    ),
    "fixed sequence": fixed_sequence,
    "exact binomial, delta / J": lambda points, limit: bounded(points, limit, DELTA / len(points)),
    "exact binomial, delta each": lambda points, limit: bounded(points, limit, DELTA),
    "LEC": lec,
}


class Population:
    """Rows with router scores and answers; calibration rows are drawn from them."""

    def __init__(self, calibration: Calibration, rows: RowColumns) -> None:
        self.calibration = calibration
        self.rows = rows

    def draw(self, rng: np.random.Generator, count: int) -> tuple[RowColumns, Calibration]:
        """Rows with replacement."""
        drawn = rng.integers(0, len(self.rows), count)
        return self.rows.take(drawn), self.calibration.take(drawn.tolist())

    def truth(self, tau: float | None, threshold: float) -> tuple[float, float, float]:
        """Shares of wrong and of answered rows, and mean calls."""
        options = replace(self.calibration.options, null_threshold=tau)
        served = replace(self.calibration, options=options)
        final = final_answers(self.rows, served, Aggregation(), None, threshold)
        assert final is not None
        called, right = final
        sets = served.sets(served.scores, served.fingerprints, threshold, options.score)
        return (called & ~right).mean(), called.mean(), sets.selected.sum(axis=1).mean()


def population(
    pool: Sequence[str], scores: Any, labels: Any, answers: Sequence[Sequence[str | None]]
) -> Population:
    """A population of these rows."""
    count = len(labels)
    prints = tuple(i.to_bytes(16) for i in range(count))
    calibration = Calibration(
        pool=tuple(pool),
        fingerprints=prints,
        scores=scores,
        labels=labels,
        options=CalibrationOptions(alpha=ALPHA),
    )
    rows = RowColumns(
        pool=tuple(pool),
        queries=Texts(b"", np.zeros(count, np.int64)),
        fingerprints=prints,
        overlap_prints=prints,
        identities=prints,
        query_hashes=np.arange(count, dtype=np.uint64),
        labels=labels,
        scores=scores,
        groups=None,
        clusters=np.full(count, -1),
        classes=answer_classes(answers, Equality.EXACT),
        answered=np.ones(count, bool),
        later=np.zeros(count, bool),
        conditions=(),
        condition_ids=np.full(count, -1),
        assumed=0,
        duplicates=0,
        near_duplicates=0,
        guessed_kind=rc.RowsKind.TRAFFIC,
        unlabelled=np.zeros(count, bool),
        sampled=np.zeros(count, bool),
    )
    return Population(calibration, rows)


def recorded(path: Path, seed: int) -> Population:
    """Two thirds of a file, with the scores of a router of the others."""
    file = rc.read_rows(path)
    order: list[int] = np.random.default_rng(seed).permutation(len(file.rows)).tolist()
    rows = [file.rows[i] for i in order]
    labels = np.array([[name in row.correct for name in file.pool] for row in rows])
    third = len(rows) // 3
    encoder = rc.CharNgramEncoder()
    vectors = np.concatenate([encoder.encode([row.query]).embeddings for row in rows])
    router = rc.EmbeddingRouter().fit(vectors[:third], labels[:third])
    scores = np.asarray(router.predict(vectors[third:]), dtype=np.float64)
    answers = [[(row.answers or {}).get(name) for name in file.pool] for row in rows[third:]]
    return population(file.pool, scores, labels[third:], answers)


def flat(seed: int) -> Population:
    """4,000 rows whose candidates give one answer, wrong at 1.2 times the limit."""
    rng = np.random.default_rng(seed)
    right = np.arange(4_000) >= round(4_000 * 1.2 * FLAT_LIMIT)
    answers = [["right" if each else "wrong"] * 3 for each in right]
    labels = np.repeat(right[:, None], 3, axis=1)
    return population(("a", "b", "c"), rng.random((4_000, 3)), labels, answers)


def compared(
    of: Population, limit: float, rows: int, draws: int, seed: int
) -> dict[str, dict[str, float | None]]:
    """What each rule serves over independent sets of calibration rows."""
    rng = np.random.default_rng(seed)
    served: dict[str, list[tuple[float, float, float]]] = {name: [] for name in RULES}
    for _ in range(draws):
        grid = tested_grid(*of.draw(rng, rows), Aggregation(), None, limit)
        tau, least = grid.calibration.options.null_threshold, grid.calibration.lambda_hat()
        truths: dict[float, tuple[float, float, float]] = {}
        for name, rule in RULES.items():
            passed = [p.lambda_hat for p in rule(grid.points, limit) if p.lambda_hat >= least]
            if passed:
                threshold = min(passed)
                if threshold not in truths:
                    truths[threshold] = of.truth(tau, threshold)
                served[name].append(truths[threshold])
    return {name: summary(each, limit, draws) for name, each in served.items()}


def lec_alone(rows: int, draws: int, seed: int) -> float:
    """How often LEC with all thresholds of one score accepts any row without information."""
    rng = np.random.default_rng(seed)
    wrong = rng.random((draws, rows)) < 1.2 * FLAT_LIMIT  # by ascending score
    sums = np.cumsum(wrong - FLAT_LIMIT, axis=1)
    return float((sums <= -1.0).any(axis=1).mean())


def summary(
    served: Sequence[tuple[float, float, float]], limit: float, draws: int
) -> dict[str, float | None]:
    """Over all draws, and over those that serve a threshold."""
    if not served:
        return {"served": 0.0, "broken": 0.0, "error": None, "answered": None, "calls": None}
    wrong, answered, calls = np.array(served).T
    return {
        "served": len(served) / draws,
        "broken": float((wrong / answered > limit).sum() / draws),
        "error": float(wrong.sum() / answered.sum()),
        "answered": float(answered.mean()),
        "calls": float(calls.mean()),
    }


def main() -> None:
    """Compare the rules, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: the simulated population alone")
    parser.add_argument("--rows", type=int, default=1_000, help="calibration rows, both halves")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    populations: dict[str, tuple[Population, Sequence[float]]] = {
        FLAT: (flat(args.seed), (FLAT_LIMIT,))
    }
    for name, limits in LIMITS.items() if args.data else ():
        (path,) = args.data.rglob(f"{name}.jsonl*")
        populations[name] = recorded(path, args.seed), limits
    results = {
        name: {
            f"{limit:g}": compared(of, limit, args.rows, args.draws, args.seed) for limit in limits
        }
        for name, (of, limits) in populations.items()
    }
    settings = {"rows": args.rows, "draws": args.draws, "seed": args.seed, "alpha": ALPHA}
    document: dict[str, Any] = {
        "manifest": rig.manifest(**settings),
        "results": results,
        "lec_alone": lec_alone(args.rows, 10_000, args.seed),
    }
    alone = f"{100 * document['lec_alone']:.1f} % of 10,000 sets"
    text = (
        f"{rig.taken(document['manifest'])}.\n\n{markdown(results)}\n"
        f"Without information, LEC with all thresholds of one score accepts rows in {alone}.\n"
    )
    rig.publish(document, text, args.json)


def markdown(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """One row for each population, limit and rule."""
    head = ("rows", "limit", "rule", "serves", "breaks the limit", "error", "answered", "calls")
    lines: list[Sequence[str]] = []
    for name, limits in results.items():
        for limit, rules in limits.items():
            for rule, each in rules.items():
                shares = (each["served"], each["broken"])
                means = (
                    "-" if each[key] is None else f"{each[key]:.{digits}f}"
                    for key, digits in (("error", 3), ("answered", 2), ("calls", 2))
                )
                lines.append((name, limit, rule, *(f"{100 * x:.1f} %" for x in shares), *means))
    return table(head, lines)


if __name__ == "__main__":
    main()
