"""Rows too few to tune on calibrate, and keep the exact law: the choice looks at counts alone."""

from collections.abc import Callable

import numpy as np
import pytest

from racer_core.calibration.threshold import allowed_misses, calibrate_threshold
from racer_core.records import split
from racer_core.records.split import TUNED_ROWS, TUNING_SHARES, UNTUNED_SHARES, shares_for
from racer_core.types import LabelledRow, LabelledRows

ALPHA = 0.1
POOL = ("one", "other")
COUNT = 60  # rows of a trial, 18 of them for validation
LEAST = 14  # of which the median number is answerable


def rows_of(right: np.ndarray) -> LabelledRows:
    """A list of questions; some are answered right by the first candidate."""
    rows = [
        LabelledRow(query=f"question {i}", correct=frozenset(POOL[:1]) if each else frozenset())
        for i, each in enumerate(right)
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


def is_answerable(row: LabelledRow) -> bool:
    """Whether the row counts for the risk target `answerable`."""
    return bool(row.correct)


@pytest.mark.parametrize(
    ("count", "right", "shares"),
    [(333, 1.0, TUNING_SHARES), (330, 1.0, UNTUNED_SHARES), (1_000, 0.3, UNTUNED_SHARES),
     (1_000, 0.4, TUNING_SHARES), (60, 0.8, UNTUNED_SHARES)],
)  # fmt: skip
def test_validation_rows_calibrate_where_too_few_of_them_count(count, right, shares):
    """100 answerable ones of the 30 % are enough; 400 of a thousand rows give 120."""
    rows = rows_of(np.arange(count) % 10 < 10 * right)
    assert shares_for(rows, is_answerable) == shares
    assert TUNED_ROWS == 100


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_training_rows_are_the_same_either_way(seed):
    """So that calibration has exactly the validation rows more."""
    rows = rows_of(np.arange(97) % 5 > 0)
    train, validation, calibration = split.split_rows(
        rows, *TUNING_SHARES.values(), seed=seed, by_group=True
    )
    own, more = split.split_rows(rows, *UNTUNED_SHARES.values(), seed=seed, by_group=True)
    assert own == train
    both = {row.query for row in (*validation.rows, *calibration.rows)}
    assert {row.query for row in more.rows} == both


def missed(choose: Callable[[LabelledRows, np.ndarray, int], bool], trials: int) -> float:
    """Z of the misses of the next answerable query, against the exact law of each trial's count.

    Args:
        choose: Whether the validation rows of this seed are left to tuning, by rows and scores.
        trials: Independent draws of rows, scores and query.
    """
    rng = np.random.default_rng(20260711)
    observed = expected = variance = 0.0
    for trial in range(trials):
        right = rng.random(COUNT) < 0.8
        scores = rng.standard_normal(COUNT)
        rows = rows_of(right)
        shares = TUNING_SHARES if choose(rows, scores, trial) else UNTUNED_SHARES
        part = split.split_rows(rows, *shares.values(), seed=trial, by_group=True)[-1]
        used = [int(row.query.split()[1]) for row in part.rows if is_answerable(row)]
        n = len(used)
        chance = (1 + allowed_misses(n, ALPHA)) / (n + 1)
        observed += rng.standard_normal() > calibrate_threshold(scores[used], ALPHA)
        expected += chance
        variance += chance * (1 - chance)
    return float((observed - expected) / np.sqrt(variance))


@pytest.mark.parametrize("trials", [800, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_choice_leaves_the_law_of_the_threshold_alone(monkeypatch, trials):
    """The next answerable query is missed with probability m/(n + 1), whichever n was chosen.

    Half of the trials tune. False alarm 6e-7 (five standard deviations).
    """
    monkeypatch.setattr(split, "TUNED_ROWS", LEAST + 1)
    tuned = []

    def by_counts(rows: LabelledRows, _: np.ndarray, seed: int) -> bool:
        tuned.append(shares_for(rows, is_answerable, seed=seed) == TUNING_SHARES)
        return tuned[-1]

    assert abs(missed(by_counts, trials)) < 5.0
    assert 0.3 < np.mean(tuned) < 0.7


@pytest.mark.slow
def test_a_choice_by_scores_would_be_seen():
    """Validation rows that calibrate only where their scores are small: more is missed.

    The simulation above has the power to show such an error: more than five standard deviations.
    """

    def by_scores(rows: LabelledRows, scores: np.ndarray, seed: int) -> bool:
        parts = split.split_rows(rows, *TUNING_SHARES.values(), seed=seed, by_group=True)
        own = [int(row.query.split()[1]) for row in parts[1].rows if is_answerable(row)]
        return bool(scores[own].max() > 1.2)

    assert missed(by_scores, 10_000) > 5.0
