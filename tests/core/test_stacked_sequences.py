"""Sequential calls with labels: votes, decided votes, the exact law, and the logistic score."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from racer_core.aggregation.stacked import StackedVote
from racer_core.calibration.threshold import allowed_misses, calibrate_threshold
from racer_core.errors import InputError
from racer_core.sequential.critical import critical_scores, round_nonconformity, rounds_called
from racer_core.sequential.fit import fit_policy
from racer_core.sequential.reliability import log_odds
from racer_core.sequential.stacked import LogisticScore, StackedPolicy, fit_stacked_policy
from tests.core.laws import assert_at_most, assert_binomial
from tests.core.sequential_worlds import FALSE_ALARM, NAMES, answers, thresholds

CHANCES = (0.55, 0.75, 0.6, 0.45, 0.85)
N, ALPHA, TRIALS = 29, 0.1, 600
VOTE = StackedVote(NAMES[:5], np.array([0.4, 1.2, 0.7, -0.2, 1.6]), np.full(5, 0.5))


def scored(rows, seed):
    """Router scores that know nothing, so that each request has an order of its own."""
    return np.random.default_rng(seed).uniform(0.1, 0.9, (rows, 5))


def test_counts_that_are_the_same_for_all_requests_give_the_policy_without_labels():
    """Two programs, one in odds and one in logarithms, decide alike in every row."""
    rows = answers(np.random.default_rng(1), 2_000, CHANCES)
    policy = fit_policy(rows, max_rounds=None)
    reliabilities = np.array(policy.reliabilities)
    skill = log_odds(reliabilities, policy.options)
    stacked = StackedPolicy(vote=StackedVote(rows.pool, skill, np.zeros(5)))
    found = stacked.outcomes(rows, np.broadcast_to(reliabilities, (2_000, 5)))
    expected = policy.outcomes(rows)
    np.testing.assert_array_equal(found.winner, expected.winner)
    np.testing.assert_array_equal(found.differs, expected.differs)
    np.testing.assert_allclose(found.doubt[:, :-1], expected.doubt[:, :-1], atol=1e-9)


def test_doubt_is_the_posterior_of_the_softmax_and_zero_where_nothing_can_change():
    """All answers of three candidates, one of whom votes against its answer."""
    vote = StackedVote(NAMES[:3], np.array([1.1, -0.4, 0.6]), np.zeros(3))
    classes = np.array(list(itertools.product((-1, 0, 1, 2), repeat=3)), np.int16)
    rows = replace(answers(np.random.default_rng(0), len(classes), (0.5,) * 3), classes=classes)
    scores = np.full(classes.shape, 0.5)
    order = [0, 2, 1]
    outcomes = StackedPolicy(vote=vote, options=5).outcomes(rows, scores)
    for row, called in itertools.product(range(len(classes)), (1, 2)):
        strength = np.zeros(5)
        for column in order[:called]:
            if classes[row, column] >= 0:
                strength[classes[row, column]] += vote.skill[column]
        answer = classes[row, outcomes.winner[row, called - 1]]
        left = np.abs(vote.skill[order[called:]]).sum()
        lead = strength[answer] if answer >= 0 else 0.0
        rival = np.delete(strength, answer).max() if answer >= 0 else np.inf
        expected = 1.0 - np.exp(lead) / np.exp(strength).sum()
        found = outcomes.doubt[row, called - 1]
        assert found == pytest.approx(0.0 if lead - rival > left else expected, abs=1e-9)
    assert not outcomes.differs[outcomes.doubt == 0.0].any()


@pytest.mark.parametrize("is_logistic", [False, True])
def test_orders_of_each_request_obey_the_law(is_logistic):
    """P(differs from the stop on) = m/(n + 1), whichever score; it is fitted on other rows."""
    fitted = answers(np.random.default_rng(2), 400, CHANCES)
    rows = answers(np.random.default_rng(3), TRIALS * (N + 1), CHANCES)
    policy = StackedPolicy(vote=VOTE)
    if is_logistic:
        noise = LogisticScore(mean=np.zeros(6), scale=np.ones(6), weights=np.arange(7) / 9.0)
        policy = StackedPolicy(vote=VOTE, score=noise)
        assert policy.outcomes(fitted, scored(400, 4)).doubt.max() > 0.5
    outcomes = policy.outcomes(rows, scored(len(rows.classes), 5))
    assert not outcomes.differs[:, -1].any()
    noise = 1e-9 * np.random.default_rng(6).random(len(rows))
    s = round_nonconformity(outcomes.doubt, noise)
    critical = critical_scores(s, outcomes.differs).reshape(TRIALS, N + 1)
    lost = int((critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum())
    assert_at_most(lost, TRIALS, ALPHA, FALSE_ALARM)
    ranked = -2.0 - np.random.default_rng(7).random(critical.shape)
    critical = np.where(np.isneginf(critical), ranked, critical)
    above = int((critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum())
    assert_binomial(above, TRIALS, (allowed_misses(N, ALPHA) + 1) / (N + 1), FALSE_ALARM)


def test_a_logistic_score_finds_the_chances():
    """20,000 prefixes of the model itself, one feature constant: within five standard errors."""
    rng = np.random.default_rng(8)
    features = np.column_stack([rng.normal(3.0, 2.0, 20_000), np.ones(20_000)])
    truth = 1.0 / (1.0 + np.exp(1.0 - 0.5 * features[:, 0]))
    score = LogisticScore.fit(features, rng.random(20_000) < truth)
    np.testing.assert_allclose(score.chance(features), truth, atol=0.03)


def test_the_logistic_score_is_taken_only_where_held_out_rows_gain_by_it():
    """Scores tell hard requests from easy ones, and the counts ignore it; fresh rows gain, too."""
    rng, rows = np.random.default_rng(9), answers(np.random.default_rng(9), 3_000, (0.7,) * 5)
    is_hard = rng.random((3_000, 1)) < 0.3
    wrong = rng.integers(1, 4, (3_000, 5))
    right = rng.random((3_000, 5)) < np.where(is_hard, 0.3, 0.9)
    rows = replace(rows, classes=np.where(right, 0, wrong).astype(np.int16))
    scores = np.where(is_hard, 0.2, 0.8) + 0.01 * rng.random((3_000, 5))
    vote = StackedVote(rows.pool, np.array([1.4, 1.3, 1.2, 1.1, 1.0]), np.zeros(5))
    fitting, fresh = rows.at(np.arange(1_000)), rows.at(np.arange(1_000, 3_000))
    policy = fit_stacked_policy(vote, fitting, scores[:1_000])
    assert policy.score is not None
    calls = []
    for each in (policy, StackedPolicy(vote=vote)):
        outcomes = each.outcomes(fresh, scores[1_000:])
        s = round_nonconformity(outcomes.doubt, 1e-9 * rng.random(2_000))
        threshold = calibrate_threshold(critical_scores(s, outcomes.differs), 0.05)
        calls.append(float(rounds_called(s, threshold).mean()))
    assert calls[0] < calls[1]
    model = answers(rng, 600, CHANCES, common=0.0)
    skill = log_odds(np.array(fit_policy(model).reliabilities), 10)
    known = StackedVote(model.pool, skill, np.zeros(5))
    assert fit_stacked_policy(known, model, np.full((600, 5), 0.5)).score is None
    assert fit_stacked_policy(vote, rows.at(np.arange(40)), scores[:40]).score is None
    with pytest.raises(InputError, match="another pool"):
        policy.outcomes(rows.restrict(("a", "b")), scores[:, :2])
