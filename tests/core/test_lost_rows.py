"""Rows without the answers of all candidates count as lost at every threshold.

Which requests candidates fail to answer is the worst that can be: those that would be lost. The
count that obeys its law fails with probability 1e-6; without lost rows it is seen to be broken.
"""

from dataclasses import replace

import numpy as np

from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Policy
from tests.core.laws import assert_at_most
from tests.core.sequential_worlds import FALSE_ALARM
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

POOL = ("a", "b", "c")
POLICY = Policy(pool=POOL, reliabilities=(0.9, 0.6, 0.6), order=POOL, borders=(1, 3))
N, ALPHA, TRIALS = 39, 0.2, 300


def world(seed, n):
    """One candidate is often outvoted by two others that agree."""
    rng = np.random.default_rng(seed)
    classes = np.zeros((n, 3), np.int16)
    classes[rng.random(n) < 0.5, 1:] = 1
    prints = tuple(str(i).encode() for i in range(n))
    return AnswerClasses(pool=POOL, classes=classes, fingerprints=prints)


def differing(counts_lost):
    """How many requests differ, where rows that would be lost mostly fail."""
    count = 0
    policy = replace(POLICY, reliabilities=(0.6, 0.6, 0.6))
    for trial in range(TRIALS):
        rows = world(trial, N + 1)
        request, rows = rows.at(np.array([N])), rows.at(np.arange(N))
        lost = policy.outcomes(rows).differs[:, 0]
        kept = rows.at(~lost)
        calibration = SequentialCalibration(
            policy=policy,
            answers=kept,
            lost=int(lost.sum()) if counts_lost else 0,
            salt=str(trial).encode(),
        )
        stops = calibration.stops(request, calibration.lambda_hat(ALPHA))
        count += int(stops.differs.sum())
    return count


def test_lost_rows_keep_the_bound():
    """Left out, rows are drawn by what could be answered, and the bound breaks."""
    assert_at_most(differing(counts_lost=True), TRIALS, ALPHA, FALSE_ALARM)
    assert differing(counts_lost=False) > stats.binom.isf(FALSE_ALARM, TRIALS, ALPHA)
    rows = world(1, 9)
    calibration = SequentialCalibration(policy=POLICY, answers=rows, lost=3)
    assert (calibration.n, calibration.lambda_hat(0.2)) == (12, np.inf)
    assert SequentialCalibration(policy=POLICY, answers=rows).n == 9
