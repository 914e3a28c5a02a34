"""Negative control: rows that are not exchangeable break the bound; a random split keeps it.

GSM8K's recorded answers come from the benchmark's training and test questions, and some of the
candidates have met the former. Calibrating on one and serving the other breaks exchangeability.
The score is ``static``, a fixed order without any encoder, smoothed on both sides, so that the law
is exact. Every test has a fixed seed.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.types import BoolArray, Score
from tests.core.laws import assert_split_risk
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

RECORDS = Path(__file__).parents[3] / "shared" / "data" / "routerdc" / "gsm8k.jsonl.gz"
ALPHA = 0.1
FALSE_ALARM = 1e-5
ORDER_ROWS = 200  # of which the order is learnt; they are used for nothing else

pytestmark = pytest.mark.skipif(
    not RECORDS.exists(), reason="the recorded answers are not on this machine"
)


@dataclass(frozen=True)
class RecordedAnswers:
    """Answerable rows: who was right, and from which part of the benchmark each row is."""

    pool: tuple[str, ...]
    labels: BoolArray  # (n, K)
    of_training: BoolArray  # (n,)


@pytest.fixture(scope="module")
def recorded() -> RecordedAnswers:
    """The raw records; the reader of labelled rows does not tell the parts."""
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    pool = tuple(sorted(rows[0]["scores"]))
    labels = np.array([[name in row["correct"] for name in pool] for row in rows])
    part = np.array([row["split"] == "train" for row in rows])
    keep = labels.any(axis=1)
    return RecordedAnswers(pool, labels[keep], part[keep])


def misses(recorded, ordering, calibration_rows, test_rows):
    """How many test rows the sets miss, and the size of the calibration."""
    chances = recorded.labels[ordering].mean(axis=0)
    patterns = PatternModel.of(recorded.labels[ordering])
    prints = [f"row {row}".encode() for row in range(len(recorded.labels))]

    def fingerprints(rows):
        return tuple(prints[row] for row in rows)

    calibration = Calibration(
        pool=recorded.pool,
        fingerprints=fingerprints(calibration_rows),
        scores=np.tile(chances, (len(calibration_rows), 1)),
        labels=recorded.labels[calibration_rows],
        options=CalibrationOptions(alpha=ALPHA, score=Score.STATIC, smoothing_salt=b"salt"),
        patterns=patterns,
    )
    sets = calibration.sets(
        np.tile(chances, (len(test_rows), 1)),
        fingerprints(test_rows),
        calibration.lambda_hat(ALPHA, Score.STATIC),
        Score.STATIC,
    )
    hit = (sets.selected & recorded.labels[test_rows]).any(axis=1)
    return int(np.count_nonzero(~hit)), calibration.n


def evidence(count, n, n_test):
    """The probability of ``misses`` if calibration and test rows were exchangeable."""
    m = np.count_nonzero(np.arange(1, n + 1) / (n + 1) <= ALPHA)
    return stats.betabinom.sf(count - 1, n_test, m, n + 1 - m)


def divided(recorded, seed, divisions=21):
    """Misses on the test questions, for several divisions of the training questions."""
    rng = np.random.default_rng(seed)
    test = np.flatnonzero(~recorded.of_training)
    for _ in range(divisions):
        training = rng.permutation(np.flatnonzero(recorded.of_training))
        count, n = misses(recorded, training[:ORDER_ROWS], training[ORDER_ROWS:], test)
        yield count / len(test), evidence(count, n, len(test))


def test_calibrating_on_training_questions_breaks_the_bound(recorded):
    """A realised risk of 0.17 instead of 0.1 on the test questions: no bound for other rows.

    Which rows the order is learnt from is chance, so 21 divisions are looked at together: twice
    their median p-value is a p-value whatever their dependence (Rüger 1978). Were all questions
    exchangeable, it would fall below 1e-5 with a probability of at most 1e-5.
    """
    risks, chances = zip(*divided(recorded, seed=61), strict=True)
    assert 2 * np.median(chances) < FALSE_ALARM
    assert np.median(risks) > 1.5 * ALPHA


def test_a_random_split_of_the_same_rows_keeps_it(recorded):
    """The same sizes, drawn at random 20 times; the mean is within its law but for 1e-5."""
    rng = np.random.default_rng(62)
    n = np.count_nonzero(recorded.of_training) - ORDER_ROWS
    risks, splits = [], 20
    for _ in range(splits):
        rows = rng.permutation(len(recorded.labels))
        parts = np.split(rows, [ORDER_ROWS, ORDER_ROWS + n])
        count, found = misses(recorded, *parts)
        assert found == n
        risks.append(count / len(parts[2]))
    assert_split_risk(
        float(np.mean(risks)),
        splits=splits,
        n=n,
        n_test=len(recorded.labels) - ORDER_ROWS - n,
        alpha=ALPHA,
        false_alarm=FALSE_ALARM,
    )
