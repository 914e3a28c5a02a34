"""Verdicts of a checker as evidence: rates, votes and doubts, and the miss promise in sequence.

Counts that obey their law fail with probability 1e-6. Each tempting wrong version is seen to break
the law that holds beside it.
"""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.calibration.threshold import allowed_misses
from racer_core.errors import CalibrationError, InputError
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import critical_scores
from racer_core.sequential.fit import fit_coverage_policy, fit_policy, tuned_policy
from racer_core.sequential.policy import Loss, Policy
from racer_core.sequential.reliability import one_coin_reliabilities
from racer_core.sequential.verdicts import NO_VERDICT, VERDICTS, VerdictRates, verdict_of
from tests.core.laws import assert_at_most, assert_binomial
from tests.core.sequential_worlds import FALSE_ALARM, NAMES, answers, checked, thresholds

CHANCES = (0.55, 0.75, 0.6, 0.45, 0.85)
N, ALPHA, TRIALS = 29, 0.1, 1_500
RATES = VerdictRates(
    right=(0.04, 0.06, 0.1, 0.15, 0.2, 0.35, 0.1), wrong=(0.3, 0.15, 0.1, 0.1, 0.05, 0.05, 0.25)
)


def test_a_score_is_cut_at_fixed_places_and_what_is_no_score_is_no_verdict():
    """0 and 1 are the outer verdicts; a score on an edge belongs above it."""
    scores = (0.0, 0.04, 0.05, 0.3, 0.5, 0.8, 0.95, 1.0)
    assert [verdict_of(each) for each in scores] == [0, 0, 1, 2, 3, 4, 5, 5]
    assert {verdict_of(each) for each in (None, math.nan, math.inf, -0.01, 1.01)} == {NO_VERDICT}


def rates_by_verdict(rates, verdict):
    """P(verdict | right) and P(verdict | wrong), by the verdict's own place."""
    place = VERDICTS if verdict == NO_VERDICT else verdict
    return rates.right[place], rates.wrong[place]


def test_vote_and_doubt_follow_bayes_rule_over_all_answers_and_verdicts():
    """Three candidates, each with one of two answers or none, and one of three verdicts."""
    reliabilities, options = (0.55, 0.7, 0.31, 0.6), 5
    odds = 6.0 * np.array(RATES.right) / np.array(RATES.wrong)
    change = np.maximum(odds, 1 / odds).max()
    policy = Policy(
        pool=("a", "b", "c", "d"),
        reliabilities=reliabilities,
        order=("a", "b", "c", "d"),
        borders=(1, 2, 3, 4),
        options=options,
        checker=RATES,
    )
    every = list(
        itertools.product(
            itertools.product((-1, 0, 1), repeat=3), itertools.product((-1, 0, 5), repeat=3)
        )
    )
    classes, verdicts = (np.array([(*each[i], 0) for each in every], np.int16) for i in (0, 1))
    winner, doubt = policy.standing(classes, 3, verdicts)
    _, missing = replace(policy, loss=Loss.MISSES).standing(classes, 2, verdicts)
    for row, (given_classes, given_verdicts) in enumerate(every):
        likelihood = np.ones((2, options))  # after two calls and after three
        for k, (answer, verdict) in enumerate(zip(given_classes, given_verdicts, strict=True)):
            if answer >= 0:
                right, wrong = rates_by_verdict(RATES, verdict)
                factor = np.full(options, (1 - reliabilities[k]) / (options - 1) * wrong)
                factor[answer] = reliabilities[k] * right
                likelihood[k == 2 :] *= factor
        two, three = likelihood / likelihood.sum(axis=1, keepdims=True)
        answer = given_classes[winner[row]]
        lead = three[answer] if answer >= 0 else three.max()
        is_decided = lead > change * max(three[x] for x in range(options) if x != answer)
        expected = 0.0 if is_decided else 1 - (lead if answer >= 0 else 1 / options)
        assert doubt[row] == pytest.approx(expected, abs=1e-12)
        if answer >= 0:
            assert three[answer] == pytest.approx(max(three[x] for x in given_classes if x >= 0))
        unseen = 1 - sum(two[x] for x in {*given_classes[:2]} if x >= 0)
        assert missing[row] == pytest.approx(unseen * (1 - 0.69 * 0.4), abs=1e-12)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), loss=st.sampled_from(Loss))
def test_one_row_in_python_is_one_of_many_rows(seed, loss):
    """The same winners, and the same doubts bit by bit, with verdicts and without."""
    rng = np.random.default_rng(seed)
    rows = checked(rng, answers(rng, 50, CHANCES)).answerable()
    policy = Policy(
        pool=rows.pool,
        reliabilities=tuple(rng.uniform(0.1, 0.95, 5).tolist()),
        order=NAMES[:5],
        borders=(1, 2, 3, 4, 5),
        checker=RATES if seed % 4 else None,
        loss=loss,
    )
    many = policy.outcomes(rows)
    for row in range(len(rows)):
        for called in range(1, 6):
            forms = {
                name: None if each < 0 else str(each)
                for name, each in zip(policy.order[:called], rows.classes[row], strict=False)
            }
            verdicts = dict(zip(rows.pool, rows.verdicts[row].tolist(), strict=True))
            winner = policy.vote(forms, verdicts)
            assert winner == policy.pool[many.winner[row, called - 1]]
            assert policy.doubt(forms, winner, verdicts) == many.doubt[row, called - 1]


def test_rates_are_found_without_labels_and_say_little_where_there_are_few():
    """4,000 rows of the model; no verdicts at all; 3 rows."""
    rng, truth = np.random.default_rng(1), np.array([0.9, 0.75, 0.6, 0.5, 0.35])
    right = rng.random((4_000, 5)) < truth
    classes = np.where(right, 0, rng.integers(1, 6, right.shape)).astype(np.int16)
    drawn = [rng.choice(VERDICTS + 1, right.shape, p=each) for each in (RATES.right, RATES.wrong)]
    verdicts = np.where(right, *drawn)
    verdicts = np.where(verdicts == VERDICTS, NO_VERDICT, verdicts).astype(np.int8)
    found, rates = one_coin_reliabilities(classes, 6, verdicts)
    np.testing.assert_allclose(found, truth, atol=0.04)
    np.testing.assert_allclose(rates.right, RATES.right, atol=0.03)
    np.testing.assert_allclose(rates.wrong, RATES.wrong, atol=0.03)
    for silent in (np.full_like(verdicts, NO_VERDICT), np.full_like(verdicts, 3)):
        plain, _ = one_coin_reliabilities(classes[:200], 6)
        again, rates = one_coin_reliabilities(classes[:200], 6, silent[:200])
        np.testing.assert_allclose(again, plain, atol=1e-3)
        np.testing.assert_allclose(rates.reliabilities(plain)[:, silent[0, 0]], plain, atol=0.02)
    _, few = one_coin_reliabilities(classes[:3], 6, verdicts[:3])
    assert 1 / 6 < few.right[5] / few.wrong[5] < 6


def critical_of(policy, rows, salt=b"salt"):
    """Critical scores of rows in their own order, in trials of N + 1."""
    calibration = SequentialCalibration(policy=policy, answers=rows, salt=salt)
    outcomes = policy.outcomes(rows)
    s = calibration.nonconformity(outcomes.doubt, rows.fingerprints)
    return critical_scores(s, outcomes.differs).reshape(-1, N + 1)


@pytest.fixture(scope="module")
def world():
    """Rows that fit policies, and rows of TRIALS calibrations with a request each."""
    rng = np.random.default_rng(6)
    fitted = checked(rng, answers(rng, 300, CHANCES))
    rows = checked(rng, answers(rng, TRIALS * (N + 1) * 5 // 4, CHANCES)).answerable()
    return fitted, rows.at(np.arange(TRIALS * (N + 1)))


@pytest.mark.parametrize(
    ("fit", "terms"),
    [
        (fit_policy, {"max_rounds": None}),
        (fit_policy, {"max_rounds": 2, "reference": "d"}),
        (fit_coverage_policy, {"max_rounds": None}),
        (fit_coverage_policy, {"max_rounds": 3}),
    ],
)
def test_checked_votes_and_misses_obey_the_law(world, fit, terms):
    """P(loss from the stop on) = m/(n + 1); and a checker's rows stop earlier than without one."""
    fitted, rows = world
    policy = fit(fitted, **terms)
    critical = critical_of(policy, rows)
    lost = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    assert_at_most(int(lost), TRIALS, ALPHA, FALSE_ALARM)
    ranked = -2.0 - np.random.default_rng(77).random(critical.shape)
    critical = np.where(np.isneginf(critical), ranked, critical)
    above = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    share = (allowed_misses(N, ALPHA) + 1) / (N + 1)
    assert_binomial(int(above), TRIALS, share, FALSE_ALARM)
    blind = fit(replace(fitted, verdicts=None), **terms)
    few = rows.at(np.arange(2_000))
    calls = [
        (found := SequentialCalibration(policy=each, answers=few)).expected_calls(
            found.lambda_hat(0.05)
        )
        for each in (policy, blind)
    ]
    assert calls[0] < calls[1]


# Tempting wrong versions.


def test_a_policy_with_a_checker_survives_json_and_wants_verdicts(world):
    """As a gateway stores it; without verdicts or labels its rows mean something else."""
    fitted, rows = world
    policy = fit_coverage_policy(fitted)
    assert Policy.from_state(json.loads(json.dumps(policy.to_state()))) == policy
    few = rows.at(np.arange(20))
    with pytest.raises(CalibrationError, match="lack its verdicts"):
        policy.outcomes(replace(few, verdicts=None))
    with pytest.raises(CalibrationError, match="have none"):
        policy.outcomes(replace(few, labels=None))
    with pytest.raises(CalibrationError, match="leave out others"):
        SequentialCalibration(policy=policy, answers=replace(few, labels=few.labels & False))
    with pytest.raises(CalibrationError, match="must lie in"):
        replace(few, verdicts=few.verdicts + 1)
    with pytest.raises(CalibrationError, match="must be"):
        replace(few, verdicts=few.verdicts[:, :2])
    with pytest.raises(InputError, match="no use"):
        replace(fit_policy(fitted, reference="d"), loss=Loss.MISSES)
    with pytest.raises(InputError, match="7 rates"):
        VerdictRates((1.0,), (1.0,))


def test_the_order_of_coverage_and_its_smaller_pools(world):
    """Greedy; without a candidate the rows that it alone could answer leave the condition."""
    fitted, rows = world
    policy = fit_coverage_policy(fitted, max_rounds=2)
    assert policy.order[0] == "e"
    assert policy.borders == (3, 5)
    assert sorted(tuned_policy(policy, fitted.answerable(), 0.1, 2).order) == sorted(rows.pool)
    whole = SequentialCalibration(policy=policy, answers=rows.at(np.arange(400)))
    smaller = whole.restrict(("a", "b", "c"))
    assert smaller.n < whole.n
    assert smaller.answers.labels.any(axis=1).all()
    assert not smaller.policy.outcomes(smaller.answers).differs[:, -1].any()
