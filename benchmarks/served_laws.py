"""The risk of what a gateway serves, beside its exact law: what activates must look at no figure.

    python benchmarks/served_laws.py [--checkout OLD --out OLD.json]

An operator uploads fresh rows every week, and the rule of the checkout says whether they become
active. What is active misses m / (n + 1) of the answerable queries, m = floor(alpha (n + 1)), if
and only if activation looks at no threshold, set or risk. z is the distance from this in standard
errors of the law: BetaBinomial(queries, m, n + 1 - m) in each week, in independent weeks. Weeks
that share a calibration are not independent, so z of an old rule is too large by up to a factor of
two. Writes results/served_laws.json, or OUT; takes two minutes on one core.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
POOL = ("first", "second", "third", "fourth", "fifth", "sixth")
RIGHT = (0.7, 0.15, 0.08, 0.04, 0.02, 0.01)  # which one is right, of exactly one
CHANCES = np.array((0.95, 0.75, 0.6, 0.45, 0.3, 0.15))  # a fixed order, but for noise without ties
NOISE = 0.04
WEEKS, QUERIES = 26, 200
# alpha, answerable rows a week, operators, share of answerable queries that are refused
CELLS = (
    (0.1, 59, 100, 0.0),
    (0.1, 99, 100, 0.0),
    (0.1, 199, 100, 0.0),
    (0.05, 59, 100, 0.02),
    (0.05, 199, 100, 0.04),
    (0.01, 999, 30, 0.01),
)


class Operator:
    """Rows of a week, and what they activate by the rule of the checkout.

    Args:
        alpha: Risk level.
        rows: Answerable rows a week.
        refused: The share of answerable queries that are refused.
        seed: Of the rows.
    """

    def __init__(self, alpha: float, rows: int, refused: float, seed: int) -> None:
        self.alpha, self.rows, self.refused = alpha, rows, refused
        self.rng = np.random.default_rng(seed)
        self.active: Any = None

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
        """Scores and labels (count, K), and fingerprints."""
        right = self.rng.choice(len(POOL), count, p=RIGHT)
        scores = CHANCES + NOISE * self.rng.random((count, len(POOL)))
        scores[self.rng.random(count) < self.refused] *= 0.1  # none seems able to answer
        labels = np.arange(len(POOL)) == right[:, None]
        return scores, labels, [self.rng.bytes(16) for _ in range(count)]

    def upload(self) -> None:
        """Calibrate on fresh rows; they become active or not."""
        from app.calibrations import service
        from app.calibrations.evidence import evidence
        from racer_core.calibration.calibration import Calibration
        from racer_core.calibration.options import CalibrationOptions
        from racer_core.types import Score

        scores, labels, fingerprints = self.draw(self.rows)
        options = CalibrationOptions(
            alpha=self.alpha, score=Score.GAP, null_threshold=0.8 if self.refused else None
        )
        made = Calibration(
            pool=POOL,
            fingerprints=tuple(fingerprints),
            scores=scores,
            labels=labels,
            options=options,
        )
        found = evidence(made) | {"sample": {"unit": "request"}}
        old_rule = getattr(service, "refusal", None)
        if old_rule is None:
            service.refuse_infeasible(found)
            is_active = True
        else:
            before = None if self.active is None else _Record("cal-1", self.active[1])
            is_active = old_rule(found, before) is None
        if is_active:
            self.active = made, found

    def missed(self) -> int:
        """How many fresh answerable queries are missed."""
        made, _ = self.active
        scores, labels, fingerprints = self.draw(QUERIES)
        sets = made.sets(scores, fingerprints, made.lambda_hat(), made.options.score)
        return int((~(sets.selected & labels).any(axis=1)).sum())


class _Record:
    """What the old rule reads of the active calibration."""

    def __init__(self, record_id: str, found: dict[str, Any]) -> None:
        self.id, self.evidence = record_id, found


def measured(alpha: float, rows: int, operators: int, refused: float) -> dict[str, float]:
    """The risk over all weeks in which something is active, and its distance from the law."""
    missed = weeks = 0
    for seed in range(operators):
        operator = Operator(alpha, rows, refused, seed)
        for _ in range(WEEKS):
            operator.upload()
            if operator.active is not None:
                missed += operator.missed()
                weeks += 1
    m = math.floor(alpha * (rows + 1) + 1e-9)
    kept = rows + 1 - m
    variance = QUERIES * m * kept * (rows + 1 + QUERIES) / ((rows + 1) ** 2 * (rows + 2))
    found = {"alpha": alpha, "rows": rows, "refused": refused, "law": m / (rows + 1)}
    found["active_share"] = weeks / operators / WEEKS
    found["risk"] = missed / weeks / QUERIES
    error = math.sqrt(variance / weeks) / QUERIES
    return found | {"se": error, "z": (found["risk"] - found["law"]) / error}


def main() -> None:
    """Measure each cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=HERE.parent)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "served_laws.json")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.checkout.resolve()))
    found = [measured(*cell) for cell in CELLS]
    for each in found:
        print({name: round(value, 4) for name, value in each.items()}, flush=True)
    git = ["git", "-C", str(arguments.checkout), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    document = {"commit": commit, "weeks": WEEKS, "queries": QUERIES, "cells": found}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
