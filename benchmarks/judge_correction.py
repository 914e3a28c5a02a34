"""Judge correction: validity, and sizes of sets beside people's labels alone, of simulated judges.

    PYTHONPATH=. python benchmarks/judge_correction.py --data DATA

Rows are drawn with replacement from a population, so that the true risk of every threshold is
known: a simulated one, or with DATA, a folder with labelled rows, two thirds of a file with the
scores of a router that learned the others. The judge sees all rows, people label some. `e` is the
judge's mean share of wrong verdicts:

- `symmetric e`: every verdict is wrong with probability e.
- `lenient e`, `strict e`: only wrong answers pass, or only right ones fail.
- `hard e`: wrong on hard queries; `partial e`: it passes one candidate's wrong answers.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import rig
from answer_limits import recorded
from numpy.typing import NDArray
from verdict import table

from racer_core.calibration.judge_correction import Losses
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from tests.kit.judges import Draw, Population, covered, errors, population

DELTA: Final = 0.05
ALPHAS: Final = (0.05, 0.1)
JUDGES: Final = ("symmetric 0", "symmetric 0.05", "symmetric 0.1", "symmetric 0.2",
                 "symmetric 0.3", "lenient 0.1", "lenient 0.3", "strict 0.2", "hard 0.2",
                 "partial 0.1")  # fmt: skip
FILE: Final = "mmlu_pro"
CORRECTED, LABELS, VERDICTS, EVERYTHING = "corrected", "labels alone", "judge alone", "all labelled"


def compared(world: Population, kind: str, rows: int, people: int, draws: int, seed: int) -> Any:
    """Thresholds of the rules over independent draws, by alpha."""
    rng = np.random.default_rng(seed)
    wrong = errors(kind, world)
    found: dict[str, list[NDArray[np.float64]]] = {}
    weights: list[NDArray[np.float64]] = []
    for _ in range(draws):
        draw = Draw.of(world, wrong, rows, people, rng)
        corrected = draw.corrected(ALPHAS, DELTA)
        weights.append(corrected.weights)
        labelled = draw.people.take(np.arange(people))
        for rule, thresholds in {
            CORRECTED: corrected.thresholds,
            LABELS: binomial(labelled),
            VERDICTS: binomial(draw.judge),
            EVERYTHING: binomial(draw.people),
        }.items():
            found.setdefault(rule, []).append(thresholds)
    risk, size = np.vectorize(world.risk), np.vectorize(world.size)
    return {
        f"{alpha:g}": {
            "weight": float(np.mean(weights, axis=0)[place]),
            "rules": {
                rule: {
                    "broken": float((risk(np.array(thresholds)[:, place]) > alpha).mean()),
                    "size": float(size(np.array(thresholds)[:, place]).mean()),
                }
                for rule, thresholds in found.items()
            },
        }
        for place, alpha in enumerate(ALPHAS)
    }


def binomial(rows: Losses) -> NDArray[np.float64]:
    """The exact binomial rule at each alpha."""
    critical = np.sort(rows.critical[rows.counted])
    misses = [allowed_misses(critical.size, alpha, DELTA) for alpha in ALPHAS]
    return np.array([threshold_from_sorted(critical, each) for each in misses])


def of_file(path: Path, seed: int) -> Population:
    """The rows of a file with the scores of a router of the others."""
    calibration = recorded(path, seed).calibration
    return Population(
        difficulty=2.0 - 4.0 * calibration.labels.mean(axis=1),
        nonconformity=covered(calibration.scores),
        labels=calibration.labels,
    )


def main() -> None:
    """Compare the rules, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: the simulated population")
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--people", type=int, default=300, help="rows that people label")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    if args.data:
        (path,) = args.data.rglob(f"{FILE}.jsonl*")
        populations = {FILE: of_file(path, args.seed)}
    else:
        populations = {"simulated": population(20_000)}
    results = {
        name: {
            kind: compared(world, kind, args.rows, args.people, args.draws, args.seed)
            for kind in JUDGES
        }
        for name, world in populations.items()
    }
    settings = {"rows": args.rows, "people": args.people, "draws": args.draws, "seed": args.seed}
    document = {"manifest": rig.manifest(**settings), "results": results}
    text = f"{rig.taken(document['manifest'])}.\n\n{markdown(results)}"
    rig.publish(document, text, args.json)


def markdown(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """One row for each population, alpha and judge."""
    rules = (CORRECTED, LABELS, VERDICTS, EVERYTHING)
    head = ["rows", "alpha", "judge", "weight", *(f"{rule}: broken, size" for rule in rules)]
    lines = [
        [name, alpha, kind, f"{by_alpha[alpha]['weight']:.2f}"]
        + [
            f"{100.0 * each['broken']:.1f} %, {each['size']:.2f}"
            for each in (by_alpha[alpha]["rules"][rule] for rule in rules)
        ]
        for name, judges in results.items()
        for alpha in (f"{alpha:g}" for alpha in ALPHAS)
        for kind, by_alpha in judges.items()
    ]
    return table(head, lines)


if __name__ == "__main__":
    main()
