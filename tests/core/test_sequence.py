"""Sequences in serving: they decide as calibration does; failures, deadlines and references."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.errors import InputError
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import tie_noise
from racer_core.sequential.fit import fit_coverage_policy, fit_policy
from racer_core.sequential.serving import CallSequence, StopReason
from racer_core.sequential.verdicts import NO_VERDICT
from tests.core.sequential_worlds import answers, checked

CHANCES = (0.55, 0.75, 0.6, 0.45, 0.85)


def form(number):
    """The form of an answer of this class."""
    return None if number < 0 else f"form {number}"


def replay(sequence, row, failing=(), verdicts=None):
    """Serve one row; returns the number of candidates called."""
    called = 0
    while candidates := sequence.next_round():
        for name in candidates:
            called += 1
            if name in failing:
                sequence.fail(name)
            else:
                column = sequence.policy.pool.index(name)
                verdict = NO_VERDICT if verdicts is None else int(verdicts[column])
                sequence.add(name, form(row[column]), verdict)
    return called


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_rounds=st.sampled_from([None, 1, 2, 3]),
    reference=st.sampled_from([None, "d"]),
    salt=st.sampled_from([None, b"salt"]),
    kind=st.sampled_from(["answers", "checker", "misses"]),
)
def test_serving_decides_as_calibration_does(seed, max_rounds, reference, salt, kind):
    """On the calibration rows themselves, one of which has exactly lambda_hat."""
    rng = np.random.default_rng(seed)
    rows = answers(rng, 60, CHANCES)
    if kind != "answers":
        rows = checked(rng, rows).answerable()
    rows = rows.at(np.arange(40))
    if kind == "misses":
        policy = fit_coverage_policy(rows, max_rounds=max_rounds)
    else:
        policy = fit_policy(rows, max_rounds=max_rounds, reference=reference)
    calibration = SequentialCalibration(policy=policy, answers=rows, salt=salt)
    noise, outcomes = tie_noise(salt, rows.fingerprints), policy.outcomes(rows)
    for threshold in (*(calibration.lambda_hat(a) for a in (0.05, 0.2)), math.inf, -math.inf):
        stops = calibration.stops(rows, threshold)
        for at in range(0, 40, 8):
            sequence = CallSequence(policy, threshold, float(noise[at]))
            verdicts = None if rows.verdicts is None else rows.verdicts[at]
            assert replay(sequence, rows.classes[at], verdicts=verdicts) == stops.calls[at]
            assert sequence.rounds == stops.rounds[at]
            doubts = [each.doubt for each in sequence.called]
            assert doubts == outcomes.doubt[at, : sequence.rounds].tolist()
            assert sequence.winner == policy.pool[stops.winner[at]]
            is_all = stops.rounds[at] == len(policy.borders)
            assert sequence.stopped == (StopReason.ALL_CALLED if is_all else StopReason.CERTIFIED)


@pytest.mark.parametrize("reference", [None, "d"])
def test_the_frontier_is_what_serving_the_rows_takes(reference):
    """Calls, rounds and price at every level; below the least one everything is called."""
    rows = answers(np.random.default_rng(5), 60, CHANCES)
    policy = fit_policy(rows, max_rounds=3, reference=reference)
    calibration = SequentialCalibration(policy=policy, answers=rows, lost=2, salt=b"salt")
    prices = dict(zip(policy.pool, (1.0, 2.0, 4.0, 0.5, 8.0), strict=True))
    whole = prices["d"] if reference else sum(prices.values())
    noise = tie_noise(b"salt", rows.fingerprints)
    levels = (1 / 63, 0.04, calibration.least_alpha, 0.1, 0.3, 0.5)
    assert calibration.least_alpha == 3 / 63
    points = calibration.frontier(levels, prices)
    for alpha, point in zip(levels, points, strict=True):
        calls = rounds = spent = 0
        for row, shift in zip(rows.classes, noise, strict=True):
            sequence = CallSequence(policy, calibration.lambda_hat(alpha), float(shift))
            called = replay(sequence, row)
            calls, rounds = calls + called, rounds + sequence.rounds
            spent += sum(prices[name] for name in policy.order[:called])
        assert (point.alpha, point.threshold) == (alpha, calibration.lambda_hat(alpha))
        assert (point.calls, point.rounds) == pytest.approx((calls / 60, rounds / 60))
        assert point.price_share == pytest.approx(spent / 60 / whole)
    assert [each.threshold == math.inf for each in points] == [True, True, *[False] * 4]
    assert points[0].calls == len(policy.order) > points[2].calls > points[-1].calls
    assert calibration.frontier([0.1])[0].price_share is None


@pytest.fixture
def policy():
    """Three candidates, then two."""
    return fit_policy(answers(np.random.default_rng(1), 300, CHANCES))


def test_a_failure_calls_all_that_are_left(policy):
    """The answer is the survivors' full vote, whatever the threshold."""
    for threshold in (-math.inf, math.inf):
        sequence = CallSequence(policy, threshold)
        first = sequence.next_round()
        assert first == policy.order[:3]
        sequence.fail(first[0])
        for name in first[1:]:
            sequence.add(name, "x")
        rest = sequence.next_round()
        assert rest == policy.order[3:]
        for name in rest:
            sequence.add(name, "y")
        assert sequence.next_round() == ()
        assert sequence.stopped == StopReason.FAILURE
        survivors = policy.restrict(tuple(name for name in policy.pool if name != first[0]))
        row = np.array([[int(name in rest) for name in survivors.pool]], np.int16)
        winner, _ = survivors.standing(row, len(survivors.order))
        assert sequence.winner == survivors.pool[int(winner[0])]


def test_a_deadline_calls_all_others_at_once(policy):
    """Also while answers are outstanding; the answer is then the full vote."""
    sequence = CallSequence(policy, math.inf)
    first = sequence.next_round()
    sequence.add(first[0], "x")
    assert sequence.call_rest() == policy.order[3:]
    with pytest.raises(InputError, match="report the answers"):
        sequence.next_round()
    for name in policy.order[1:]:
        sequence.add(name, "x")
    assert sequence.next_round() == ()
    assert (sequence.stopped, sequence.rounds) == (StopReason.DEADLINE, 2)
    assert [each.doubt for each in sequence.called] == [None, None]
    assert sequence.call_rest() == ()


def test_a_failure_leads_to_the_reference_alone():
    """Its answer is the promised one; candidates beyond it are not called."""
    rows = answers(np.random.default_rng(1), 300, CHANCES)
    policy = fit_policy(rows, reference="d", before_reference=3)
    sequence = CallSequence(policy, -math.inf)
    first = sequence.next_round()
    for name in first[:-1]:
        sequence.add(name, "x")
    sequence.fail(first[-1])
    assert sequence.next_round() == ("d",)
    sequence.add("d", "y")
    assert sequence.next_round() == ()
    assert (sequence.winner, sequence.has_reference) == ("d", True)


def test_a_reference_that_fails_leaves_the_vote_of_all_others_without_certificate():
    """All others of the pool are called, also those outside the order."""
    rows = answers(np.random.default_rng(1), 300, CHANCES)
    policy = fit_policy(rows, reference="d", before_reference=3)
    sequence = CallSequence(policy, math.inf)
    for name in sequence.next_round():
        sequence.add(name, "x")
    assert sequence.next_round() == ("d",)
    sequence.fail("d")
    rest = sequence.next_round()
    assert {*policy.order, *rest} == set(policy.pool)
    for name in rest:
        sequence.add(name, "x")
    assert sequence.next_round() == ()
    assert sequence.winner != "d"
    assert not sequence.has_reference


def test_all_fail(policy):
    """No answer, and no endless loop."""
    sequence = CallSequence(policy, -math.inf)
    while candidates := sequence.next_round():
        for name in candidates:
            sequence.fail(name)
    assert sequence.winner is None
    assert sequence.stopped == StopReason.FAILURE


def test_only_called_candidates_are_reported_and_once(policy):
    """A late answer of a hedged call is no answer of a later round."""
    sequence = CallSequence(policy, math.inf)
    with pytest.raises(InputError, match="is not called"):
        sequence.add("a", "x")
    name = sequence.next_round()[0]
    sequence.add(name, "x")
    with pytest.raises(InputError, match="reported already"):
        sequence.fail(name)


def test_misses_are_settled_only_when_every_candidate_has_answered():
    """The vote may be decided before; the one candidate that is right may be the last."""
    rng = np.random.default_rng(3)
    rows = checked(rng, answers(rng, 60, CHANCES)).answerable()
    sequence = CallSequence(fit_coverage_policy(rows), math.inf)
    first = sequence.next_round()
    left = sequence.call_rest()
    for name in (*first, *left[:-1]):
        sequence.add(name, "same")
        assert not sequence.is_decided
    sequence.add(left[-1], "other", None)  # its verdict is lost: all were called
    assert sequence.is_decided
    failing = CallSequence(fit_coverage_policy(rows), math.inf)
    failing.next_round()
    failing.fail(first[0])
    for name in first[1:]:
        failing.add(name, "same")
    assert failing.next_round() == left
    for name in left:
        failing.add(name, "same")
    assert not failing.is_decided
