"""The law of a sample of which one part trains a router and all others calibrate it.

The router knows its training rows by heart, and labels are missing not at random: hard rows have
none with chance one half. 400 samples of 80 rows; a mean beyond 5 standard errors fails the test,
by luck with probability 6e-7.
"""

from __future__ import annotations

import math

import numpy as np

from racer_core.offline.training_rows import sampled_units
from racer_core.records.split import split_rows
from racer_core.records.units import sampled_unit
from racer_core.types import LabelledRow, LabelledRows, RowsKind

ALPHA, ROWS, TRIALS = 0.3, 80, 400
HARD, UNLABELLED = 0.7, 0.5  # scores from which rows are hard; chance that these have no label


def risks() -> tuple[np.ndarray, float]:
    """The risk of each sample's threshold, and what the ranks of its rows promise."""
    rng = np.random.default_rng(7)
    found, promised = [], 0.0
    for trial in range(TRIALS):
        scores = rng.random(ROWS)
        unknown = (scores >= HARD) & (rng.random(ROWS) < UNLABELLED)
        rows = LabelledRows(
            pool=("a",),
            rows=tuple(
                LabelledRow(
                    query="q", correct=frozenset(), decision_id=f"dec-{i}", unlabelled=bool(missing)
                )
                for i, missing in enumerate(unknown)
            ),
            kind=RowsKind.TRAFFIC,
        )
        train, validation = split_rows(rows, 0.4, 0.1, seed=trial)
        names = np.array([sampled_unit(row) for row in rows])
        scores[np.isin(names, [*sampled_units(train)]) & ~unknown] = 0.0
        scores[unknown] = math.inf
        apart = ~np.isin(names, [*sampled_units(train), *sampled_units(validation)])
        rank = math.ceil((apart.sum() + 1) * (1.0 - ALPHA))
        threshold = np.sort(scores[apart])[rank - 1]
        hard = 0.0 if math.isinf(threshold) else (1.0 - HARD) * UNLABELLED
        easy = max(0.0, HARD - threshold) + min(1.0 - HARD, 1.0 - threshold) * (1.0 - UNLABELLED)
        found.append(hard + (0.0 if math.isinf(threshold) else easy))
        promised += (1.0 - rank / (apart.sum() + 1)) / TRIALS
    return np.array(found), promised


def test_rows_beside_those_of_training_keep_the_exact_law() -> None:
    """Whatever the router knows of its own rows, and whichever rows have no label."""
    found, promised = risks()
    assert abs(found.mean() - promised) < 5.0 * found.std() / math.sqrt(TRIALS)
