"""Realised risk of the cover scores against the law that any score follows.

Every test has a fixed seed and a false-alarm probability of 1e-6. Calibration sets are drawn
anew for each trial and tested on several queries, whose misses are then BetaBinomial.
"""

import numpy as np
import pytest

from racer_core.types import BINARY_TARGETS, RiskTarget, Score
from tests.core.kinds import Kinds, missed
from tests.core.laws import assert_split_risk, assert_split_risk_at_most

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-6
COVERS = [Score.COVER, Score.COVER_COST, Score.STATIC]
# n, alpha with a whole alpha(n + 1), trials, queries per trial
SIZES = [(19, 0.1, 1_000, 10), (99, 0.05, 500, 40), (999, 0.1, 40, 400)]
EXTRA = 7  # rows that no candidate answers, in every calibration for ``answerable``


def realised(seed, n, alpha, trials, queries, *, served=None, finds=True, **options):
    """Mean risk over the trials; with noise, each trial has its own.

    For ``answerable`` n rows count; a few unanswerable rows are mixed in.
    """
    world = Kinds(seed)
    paper = options["risk_target"] is RiskTarget.PAPER
    drawn = world.draw(trials * (n + queries), answerable=None if paper else True)
    unanswerable = world.draw(trials * EXTRA, answerable=False)
    total = 0
    for trial in range(trials):
        block = drawn[trial * (n + queries) : (trial + 1) * (n + queries)]
        rows = block[:n]
        if not paper:
            rows = together(unanswerable[trial * EXTRA : (trial + 1) * EXTRA], rows)
        calibrated = world.calibration(rows, finds=finds, **noisy(options, trial))
        serving = calibrated
        if served is not None:
            serving = world.calibration(rows, finds=finds, **noisy(served, trial))
        assert calibrated.n == n
        total += missed(serving, block[n:], calibrated.lambda_hat(alpha, options["score"]), trial)
    return total / (trials * queries)


def noisy(options, trial):
    """The options with a salt for each trial, if they ask for noise."""
    salt = f"trial {trial}".encode() if options.get("smoothing_salt") else None
    return {**options, "smoothing_salt": salt}


def together(one, other):
    """The rows of both."""
    names = ("scores", "neighbours", "labels", "groups")
    pairs = ([getattr(each, name) for each in (one, other)] for name in names)
    return type(one)(*map(np.concatenate, pairs))


@pytest.mark.parametrize(
    ("score", "n", "alpha", "trials", "queries"),
    [
        pytest.param(score, *size, marks=(pytest.mark.slow,) * (at > 0 and score != COVERS[0]))
        for score in COVERS
        for at, size in enumerate(SIZES)
    ],
)
@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_smoothed_risk_has_its_exact_value(target, score, n, alpha, trials, queries):
    """Smoothed on both sides no two scores are equal, so the risk is floor(alpha(n+1))/(n+1).

    A rank off by one passes with probability below 1e-9 at n = 19. It moves the risk by 0.01 at
    n = 99 and 0.001 at n = 999, which so few trials do not show; noise on one side alone they do.
    """
    risk = realised(
        n, n, alpha, trials, queries, score=score, risk_target=target, smoothing_salt=b"both"
    )
    assert_split_risk(
        risk, splits=trials, n=n, n_test=queries, alpha=alpha, false_alarm=FALSE_ALARM
    )


@pytest.mark.parametrize("score", COVERS)
@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("finds", [True, False])
def test_risk_with_ties_stays_below_alpha(target, score, finds):
    """Unsmoothed, ``static`` has five scores for all queries: ties only lower the risk.

    Neighbours counted, or the frequencies tilted by the scores. A risk of 0.15, that is a rank too
    few, passes with probability below 1e-9.
    """
    n, alpha, trials, queries = SIZES[0]
    risk = realised(1, n, alpha, trials, queries, finds=finds, score=score, risk_target=target)
    assert_split_risk_at_most(
        risk, splits=trials, n=n, n_test=queries, alpha=alpha, false_alarm=FALSE_ALARM
    )
