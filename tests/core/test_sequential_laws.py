"""Exact laws of sequential calls, and what breaks them.

Each test draws thousands of calibrations with one further request each. A count that obeys its law
fails with probability 1e-6. Each tempting wrong version is seen to break the law that holds beside.
"""

import numpy as np
import pytest

from racer_core.calibration.realised_risk import BAND_DELTA
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.threshold import allowed_misses, calibrate_threshold
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import (
    critical_scores,
    round_nonconformity,
    rounds_called,
    tie_noise,
)
from racer_core.sequential.fit import fit_policy
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


def assert_broken(count, alpha=ALPHA):
    """More losses than any law with a mean of at most alpha allows."""
    assert count > stats.binom.isf(FALSE_ALARM, TRIALS, alpha)


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


def test_rows_that_never_lose_may_make_every_threshold_valid():
    """1 % of rows lose: lambda_hat is -inf, one round is called, and 1 % of requests lose."""
    doubt, lost = world(5)
    lost &= np.random.default_rng(55).random(len(lost))[:, None] < 0.01
    s, lost, critical = drawn(doubt, lost)
    threshold = thresholds(critical[:, :-1], ALPHA)
    assert np.isneginf(threshold).mean() > 0.99
    assert (rounds_called(s[:, -1], -np.inf) == 1).all()
    assert_at_most(int(lost_at(s[:, -1], lost[:, -1], threshold).sum()), TRIALS, ALPHA, FALSE_ALARM)


def test_a_row_that_loses_after_its_last_round_is_missed_by_every_threshold():
    """As the miss of all candidates, or an answer that the full vote has wrong, too."""
    doubt = np.array([[0.1, 0.2, 0.3]] * 4)
    lost = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=bool)
    s = round_nonconformity(doubt)
    np.testing.assert_array_equal(s[0], [-np.inf, -0.1, -0.1])
    np.testing.assert_array_equal(critical_scores(s, lost), [np.inf, -0.1, -0.1, -np.inf])


def test_each_group_has_its_own_law_and_a_common_threshold_breaks_the_harder_one():
    """Requests of the hard group alone."""
    doubt, lost = world(6)
    easy, hard = lost & (np.random.default_rng(66).random(lost.shape) < 0.1), lost
    s, hard, critical = drawn(doubt, hard)
    own = thresholds(critical[:, :-1], ALPHA)
    assert_at_most(int(lost_at(s[:, -1], hard[:, -1], own).sum()), TRIALS, ALPHA, FALSE_ALARM)
    common = np.concatenate([critical[:, :-1], drawn(doubt, easy)[2][:, :-1]], axis=1)
    both = thresholds(common, ALPHA)
    assert_broken(int((critical[:, -1:] > both).sum()))


# Tempting wrong versions.


def test_stopping_at_equality_is_caught():
    """All doubts are equal, and 30 % of first answers differ: going on at equality loses none."""
    rng = np.random.default_rng(7)
    rows = TRIALS * (N + 1)
    doubt = np.full((rows, 2), 0.3)
    lost = np.column_stack([rng.random(rows) < 0.3, np.zeros(rows, dtype=bool)])
    s, lost, critical = drawn(doubt, lost)
    threshold = thresholds(critical[:, :-1], ALPHA)
    assert lost_at(s[:, -1], lost[:, -1], threshold).sum() < 0.05 * TRIALS
    stopped = np.where(np.isneginf(s[:, -1]), s[:, -1], np.nextafter(s[:, -1], np.inf))
    assert_broken(int(lost_at(stopped, lost[:, -1], threshold).sum()))


def alternating(rng):
    """70 % of rows differ after the second round, 30 % after the first; none at the end."""
    rows = TRIALS * (N + 1)
    second = rng.random(rows) < 0.7
    lost = np.column_stack([~second, second, np.zeros(rows, dtype=bool)])
    doubt = rng.random((rows, 3)) * np.array([0.4, 0.2, 0.0])
    return doubt, lost


def test_the_raw_loss_is_caught():
    """The first round without a loss is no critical score: a later one may lose again."""
    doubt, lost = alternating(np.random.default_rng(8))
    s, lost, critical = drawn(doubt, lost)
    right = lost_at(s[:, -1], lost[:, -1], thresholds(critical[:, :-1], ALPHA))
    assert_at_most(int(right.sum()), TRIALS, ALPHA, FALSE_ALARM)
    raw = np.take_along_axis(s, (~lost).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    assert_broken(int(lost_at(s[:, -1], lost[:, -1], thresholds(raw[:, :-1], ALPHA)).sum()))


def test_a_first_round_or_an_order_that_depends_on_lambda_is_caught():
    """Below lambda = -0.5 one plan, above it another: losses do not fall in lambda.

    A row's smallest lambda without a loss is then no critical score.
    """
    doubt, lost = alternating(np.random.default_rng(9))
    # Both plans are sure after their first round, which has one candidate or two.
    small, large = (lost[:, at].reshape(TRIALS, N + 1) for at in (0, 1))
    smallest = np.where(~small, -np.inf, np.where(~large, -0.5, 0.0))
    threshold = thresholds(smallest[:, :-1], ALPHA)
    chosen = np.where(threshold[:, 0] < -0.5, small[:, -1], large[:, -1])
    assert_broken(int(chosen.sum()))
    # With one plan for every lambda the law holds: here the first.
    s, lost, critical = drawn(doubt, lost)
    right = lost_at(s[:, -1], lost[:, -1], thresholds(critical[:, :-1], ALPHA))
    assert_at_most(int(right.sum()), TRIALS, ALPHA, FALSE_ALARM)


def test_noise_for_each_round_of_a_row_is_caught():
    """Equal doubts in 8 rounds: the largest of several draws stops early, one draw does not."""
    rng, rounds = np.random.default_rng(10), 8
    rows = TRIALS * (N + 1)
    doubt = np.full((rows, rounds), 0.3)
    lost = np.arange(rounds) < rng.integers(0, rounds, rows)[:, None]
    noise = 1e-6 * rng.random(rows)
    s, losses, critical = drawn(doubt, lost, noise)
    right = lost_at(s[:, -1], losses[:, -1], thresholds(critical[:, :-1], ALPHA))
    assert_at_most(int(right.sum()), TRIALS, ALPHA, FALSE_ALARM)
    # Each round compares its own draw; the critical score has that of its round.
    each = 1e-6 * rng.random((rows, rounds))
    wrong = np.where(np.isneginf(round_nonconformity(doubt)), -np.inf, -0.3 + each)
    critical = critical_scores(wrong, lost).reshape(TRIALS, N + 1)
    goes_on = np.maximum.accumulate(wrong, axis=1).reshape(TRIALS, N + 1, rounds)[:, -1]
    threshold = thresholds(critical[:, :-1], ALPHA)
    assert_broken(int(lost_at(goes_on, losses[:, -1], threshold).sum()))


def test_stopping_inside_a_round_is_caught():
    """Calibrated for rounds that end after 3 and 5 calls, stopped after any call."""
    doubt, lost = world(11)
    borders = [2, 4]
    s, at_borders, critical = drawn(doubt[:, borders], lost[:, borders])
    threshold = thresholds(critical[:, :-1], ALPHA)
    right = lost_at(s[:, -1], at_borders[:, -1], threshold)
    assert_at_most(int(right.sum()), TRIALS, ALPHA, FALSE_ALARM)
    inside = round_nonconformity(doubt).reshape(TRIALS, N + 1, -1)[:, -1]
    stopped = lost_at(inside, lost.reshape(TRIALS, N + 1, -1)[:, -1], threshold)
    assert_broken(int(stopped.sum()))


def alarms(runs, rate_before, rate_after, *, bets_first):
    """How often a test of differences alarms in ``runs`` streams of 12 batches of 40 rows.

    Each batch recalibrates. From the fourth batch on answers differ at another rate.
    """
    raised = 0
    for run in range(runs):
        rng = np.random.default_rng(1_000 + run)
        process, threshold = RiskEProcess(0.3, level=0.01), None
        for batch in range(12):
            rate = rate_before if batch < 3 else rate_after
            doubt = rng.random((40, 2))
            lost = np.column_stack([rng.random(40) < rate, np.zeros(40, dtype=bool)])
            critical = critical_scores(round_nonconformity(doubt), lost)
            fresh = float(thresholds(critical[None, :], ALPHA)[0, 0])
            bet_at = threshold if bets_first else fresh
            for loss in () if bet_at is None else critical > bet_at:
                process.update(float(loss))
            threshold = fresh if batch < 2 else threshold
            if not bets_first:
                threshold = fresh
        raised += process.alarmed
    return raised


def test_rows_that_bet_after_they_calibrated_are_caught():
    """They lose at most their allowed share by construction: no change would ever be seen.

    A bet with rows that came before the calibration sees it in nearly every stream.
    """
    assert alarms(20, 0.3, 0.3, bets_first=True) == 0
    assert alarms(20, 0.3, 0.9, bets_first=True) >= 18
    assert alarms(20, 0.3, 0.9, bets_first=False) == 0


def test_requests_that_chose_another_promise_are_caught_as_rows():
    """Of 2 (N + 1) requests half choose the promise, mostly hard ones; the last of them is served.

    Only those are drawn like it. With the others as rows it differs too often.
    """
    rng, requests = np.random.default_rng(13), (TRIALS, 2 * (N + 1))
    hard, doubt = rng.random(requests), rng.random(requests)
    lost = rng.random(requests) < 0.9 * hard
    losses = np.stack([lost, np.zeros_like(lost)], axis=2).reshape(-1, 2)
    doubts = np.stack([doubt, np.zeros_like(doubt)], axis=2).reshape(-1, 2)
    critical = critical_scores(round_nonconformity(doubts), losses).reshape(requests)
    chosen = rng.random(requests) < hard
    own = every = 0
    for scores, is_chosen in zip(critical, chosen, strict=True):
        served = int(is_chosen.nonzero()[0][-1])
        is_chosen[served] = False
        own += scores[served] > calibrate_threshold(scores[is_chosen], ALPHA)
        every += scores[served] > calibrate_threshold(np.delete(scores, served), ALPHA)
    assert_at_most(int(own), TRIALS, ALPHA, FALSE_ALARM)
    assert own > 0.8 * ALPHA * TRIALS
    assert_broken(int(every))


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_first_round_is_always_called(rounds):
    """Also at lambda = -inf; at +inf every round is."""
    doubt, _ = paths(np.random.default_rng(12), 20, rounds)
    s = round_nonconformity(doubt)
    assert (rounds_called(s, -np.inf) == 1).all()
    assert (rounds_called(s, np.inf) == rounds).all()
