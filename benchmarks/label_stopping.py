"""Stopping of labels: how often a corrected threshold breaks its bound where people choose the end.

    PYTHONPATH=. python benchmarks/label_stopping.py

A judge that passes 30 % of the wrong answers reads 800 rows; people label 60 to 240 of them:

- `fixed`: a number chosen beforehand.
- `random`: a number chosen without a look at the labels.
- `best`: people calibrate at seven numbers of labels, and stop where the sets are smallest.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import rig
from verdict import table

from tests.kit.judges import Draw, errors, population

ALPHA: Final = 0.1
DELTA: Final = 0.1
ROWS: Final = 800
SIZES: Final = (60, 80, 100, 120, 160, 200, 240)


def broken(draws: int, seed: int) -> dict[str, float]:
    """The share of draws whose threshold has a true risk above alpha, by the way to stop."""
    world, rng = population(20_000), np.random.default_rng(seed)
    wrong = errors("lenient 0.3", world)
    found = {"fixed": 0, "random": 0, "best": 0}
    for _ in range(draws):
        draw = Draw.of(world, wrong, ROWS, SIZES[0], rng)
        thresholds = [float(replace(draw, m=m).thresholds([ALPHA], DELTA)[0]) for m in SIZES]
        chosen = {
            "fixed": thresholds[-1],
            "random": thresholds[rng.integers(len(SIZES))],
            "best": min(thresholds),
        }
        for name, threshold in chosen.items():
            found[name] += world.risk(threshold) > ALPHA
    return {name: count / draws for name, count in found.items()}


def main() -> None:
    """Count, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    results = broken(args.draws, args.seed)
    document = {"manifest": rig.manifest(draws=args.draws, seed=args.seed), "results": results}
    lines = [[name, f"{100.0 * share:.1f} %"] for name, share in results.items()]
    text = f"{rig.taken(document['manifest'])}.\n\n{table(['stopping', 'broken'], lines)}"
    rig.publish(document, text, args.json)


if __name__ == "__main__":
    main()
