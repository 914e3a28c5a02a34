"""Exact laws of sequential calls, and what breaks them.

Each test draws thousands of calibrations with one further request each. A count that obeys its law
fails with probability 1e-6. Each tempting wrong version is seen to break the law that holds beside.
"""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.realised_risk import BAND_DELTA
from racer_core.calibration.threshold import allowed_misses
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import (
    critical_scores,
    round_nonconformity,
    rounds_called,
    tie_noise,
)
from racer_core.sequential.fit import fit_policy
from racer_core.sequential.policy import Policy
from tests.core.laws import assert_at_most, assert_binomial
from tests.core.sequential_worlds import FALSE_ALARM, answers, lost_at, paths, thresholds
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

N, ALPHA, TRIALS = 39, 0.2, 4_000
M = allowed_misses(N, ALPHA) + 1  # 8: M/(N + 1) = 0.2 exactly


def drawn(doubt, lost, noise=0.0):
    """s, losses and critical scores of TRIALS calibrations: the last row of each is the request."""
    s = round_nonconformity(doubt, noise)
    critical = critical_scores(s, lost)
    shape = TRIALS, N + 1, -1
    return s.reshape(shape), lost.reshape(shape), critical.reshape(TRIALS, N + 1)


def world(seed, rounds=5):
    """Rows of all trials."""
    return paths(np.random.default_rng(seed), TRIALS * (N + 1), rounds)


def test_the_running_maximum_is_lost_on_exactly_its_share():
    """Distinct scores: P(some answer from the stop on differs) = m/(n + 1); the stop loses less."""
    s, lost, critical = drawn(*world(1))
    threshold = thresholds(critical[:, :-1], ALPHA)
    later = (critical[:, -1:] > threshold).sum()
    assert_binomial(int(later), TRIALS, M / (N + 1), FALSE_ALARM)
    assert_at_most(int(lost_at(s[:, -1], lost[:, -1], threshold).sum()), TRIALS, ALPHA, FALSE_ALARM)


def test_calling_more_rounds_than_the_threshold_demands_is_safe():
    """Any further rounds, chosen with a view of everything: here one that loses, if any does."""
    s, lost, critical = drawn(*world(2))
    threshold = thresholds(critical[:, :-1], ALPHA)
    rounds = (s[:, -1] <= threshold).sum(axis=1)
    worst = np.array([loss[r - 1 :].any() for loss, r in zip(lost[:, -1], rounds, strict=True)])
    assert_at_most(int(worst.sum()), TRIALS, ALPHA, FALSE_ALARM)


def test_doubts_of_three_values_stay_below_alpha_and_one_noise_per_row_restores_the_law():
    """Ties waste calls; noise on both sides gives the share m/(n + 1) back."""
    doubt, lost = world(3)
    coarse = np.round(2.0 * doubt) / 2.0
    _, _, critical = drawn(coarse, lost)
    tied = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    assert_at_most(int(tied), TRIALS, ALPHA, FALSE_ALARM)
    assert tied < 0.9 * ALPHA * TRIALS
    noise = 1e-6 * np.random.default_rng(33).random(len(coarse))
    _, _, critical = drawn(coarse, lost, noise)
    later = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    assert_binomial(int(later), TRIALS, M / (N + 1), FALSE_ALARM)


def test_the_noise_of_a_row_depends_on_salt_and_fingerprint_alone():
    """Retries and replicas draw the same; another calibration draws anew; no salt, no noise."""
    prints = (b"x", b"y", b"x")
    noise = tie_noise(b"salt", prints)
    assert noise[0] == noise[2] != noise[1]
    assert tie_noise(b"other", prints)[0] != noise[0]
    assert not tie_noise(None, prints).any()


def test_the_realised_risk_has_its_beta_law_and_delta_bounds_it():
    """Critical score -q where the first answer loses: the risk at lambda is half of -lambda."""
    rng = np.random.default_rng(4)
    doubt = np.column_stack([rng.random(TRIALS * N), np.zeros(TRIALS * N)])
    lost = np.column_stack([rng.random(TRIALS * N) < 0.5, np.zeros(TRIALS * N, dtype=bool)])
    critical = critical_scores(round_nonconformity(doubt), lost).reshape(TRIALS, N)
    risk = -thresholds(critical, ALPHA)[:, 0] / 2.0
    assert stats.kstest(risk, stats.beta(M, N + 1 - M).cdf).pvalue > FALSE_ALARM
    certain = -thresholds(critical, 0.3, delta=0.1)[:, 0] / 2.0
    assert_at_most(int((certain > 0.3).sum()), TRIALS, 0.1, FALSE_ALARM)


def test_an_alpha_picked_by_its_outcome_has_the_band_and_not_itself():
    """Of one policy, whichever alpha looks best; rows are drawn from 3,000 known ones, with ties.

    The band fails anywhere in at most 5 % of the calibrations; alpha itself does in most.
    """
    rng = np.random.default_rng(8)
    population = answers(rng, 3_000, (0.7, 0.65, 0.6, 0.5, 0.45))
    policy = fit_policy(answers(rng, 100, (0.7, 0.65, 0.6, 0.5, 0.45)), max_rounds=3)
    every = SequentialCalibration(policy=policy, answers=population).ascending
    trials, broken, picked = 100, 0, 0
    for _ in range(trials):
        rows = population.at(rng.integers(len(population), size=80))
        calibration = SequentialCalibration(policy=policy, answers=rows)
        alphas = [0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3]
        risks = [float((every > calibration.lambda_hat(alpha)).mean()) for alpha in alphas]
        bands = [
            1.0 if (realised := calibration.realised_risk(alpha)) is None else realised.band()
            for alpha in alphas
        ]
        broken += any(risk > band for risk, band in zip(risks, bands, strict=True))
        picked += any(risk > alpha for risk, alpha in zip(risks, alphas, strict=True))
    assert_at_most(broken, trials, BAND_DELTA, FALSE_ALARM)
    with pytest.raises(AssertionError):
        assert_at_most(picked, trials, BAND_DELTA, FALSE_ALARM)


def test_a_row_that_loses_after_its_last_round_is_missed_by_every_threshold():
    """As the miss of all candidates, or an answer that the full vote has wrong, too."""
    doubt = np.array([[0.1, 0.2, 0.3]] * 4)
    lost = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=bool)
    s = round_nonconformity(doubt)
    np.testing.assert_array_equal(s[0], [-np.inf, -0.1, -0.1])
    np.testing.assert_array_equal(critical_scores(s, lost), [np.inf, -0.1, -0.1, -np.inf])


# Tempting wrong versions.


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_first_round_is_always_called(rounds):
    """Also at lambda = -inf; at +inf every round is."""
    doubt, _ = paths(np.random.default_rng(12), 20, rounds)
    s = round_nonconformity(doubt)
    assert (rounds_called(s, -np.inf) == 1).all()
    assert (rounds_called(s, np.inf) == rounds).all()


def differing_requests(counts_lost):
    """How many requests differ, where rows that would be lost mostly fail."""
    count = 0
    policy = replace(POLICY, reliabilities=(0.6, 0.6, 0.6))
    for trial in range(300):
        rows = outvoted(trial, 40)
        request, rows = rows.at(np.array([39])), rows.at(np.arange(39))
        lost = policy.outcomes(rows).differs[:, 0]
        calibration = SequentialCalibration(
            policy=policy,
            answers=rows.at(~lost),
            lost=int(lost.sum()) if counts_lost else 0,
            salt=str(trial).encode(),
        )
        stops = calibration.stops(request, calibration.lambda_hat(0.2))
        count += int(stops.differs.sum())
    return count


def outvoted(seed, n):
    """One candidate is often outvoted by two others that agree."""
    rng = np.random.default_rng(seed)
    classes = np.zeros((n, 3), np.int16)
    classes[rng.random(n) < 0.5, 1:] = 1
    prints = tuple(str(i).encode() for i in range(n))
    return AnswerClasses(pool=("a", "b", "c"), classes=classes, fingerprints=prints)


POLICY = Policy(
    pool=("a", "b", "c"), reliabilities=(0.9, 0.6, 0.6), order=("a", "b", "c"), borders=(1, 3)
)


def test_lost_rows_keep_the_bound():
    """Rows without the answers of all candidates count as lost; left out, the bound breaks.

    Which requests candidates fail to answer is the worst that can be: those that would be lost.
    """
    assert_at_most(differing_requests(counts_lost=True), 300, 0.2, FALSE_ALARM)
    assert differing_requests(counts_lost=False) > stats.binom.isf(FALSE_ALARM, 300, 0.2)
    rows = outvoted(1, 9)
    calibration = SequentialCalibration(policy=POLICY, answers=rows, lost=3)
    assert (calibration.n, calibration.lambda_hat(0.2)) == (12, np.inf)
    assert SequentialCalibration(policy=POLICY, answers=rows).n == 9
