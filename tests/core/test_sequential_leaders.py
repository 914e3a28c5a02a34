"""Sequences under an equality that is not transitive: classes along the order of calls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.calibration.threshold import calibrate_threshold
from racer_core.errors import CalibrationError
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
from racer_core.sequential.serving import CallSequence
from tests.core.laws import assert_at_most
from tests.core.sequential_worlds import FALSE_ALARM

POOL = tuple("abcde")
SPREAD = np.array([0.3, 0.5, 0.6, 0.8, 1.0])


def compared(rng, count):
    """Answers are numbers, equal if they are near each other; some cannot be read."""
    given_numbers = rng.normal(scale=SPREAD, size=(count, len(POOL)))
    equal = np.abs(given_numbers[:, :, None] - given_numbers[:, None, :]) < 0.6
    readable = rng.random(given_numbers.shape) < 0.95
    prints = tuple(rng.bytes(8) for _ in range(count))
    return AnswerClasses.compared(POOL, equal, readable, prints)


def served(policy, threshold, noise, rows, row, arrival):
    """The sequence of one row, whose answers arrive in any order within a round."""

    def is_equal(one, other):
        return bool(rows.equal[row, POOL.index(one), POOL.index(other)])

    sequence = CallSequence(policy, threshold, noise, equals=is_equal)
    while candidates := sequence.next_round():
        for name in sorted(candidates, key=arrival.__getitem__):
            is_readable = rows.classes[row, POOL.index(name)] >= 0
            sequence.add(name, name if is_readable else None)
    return sequence


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_rounds=st.sampled_from([None, 1, 2, 3]),
    reference=st.sampled_from([None, "d"]),
)
def test_serving_decides_as_calibration_does_in_any_order_of_arrival(seed, max_rounds, reference):
    """The same rounds and winner, and the same doubts bit by bit."""
    rng = np.random.default_rng(seed)
    rows = compared(rng, 60)
    policy = fit_policy(rows.at(np.arange(20)), max_rounds=max_rounds, reference=reference)
    rows = rows.at(np.arange(20, 60))
    found = SequentialCalibration(policy=policy, answers=rows, salt=b"salt")
    threshold = found.lambda_hat(0.2)
    stops, outcomes = found.stops(rows, threshold), policy.outcomes(rows)
    noise = tie_noise(b"salt", rows.fingerprints)
    for row in range(len(rows)):
        arrival = dict(zip(POOL, rng.random(len(POOL)), strict=True))
        sequence = served(policy, threshold, float(noise[row]), rows, row, arrival)
        assert sequence.rounds == stops.rounds[row]
        assert sequence.winner == POOL[stops.winner[row]]
        doubts = [each.doubt for each in sequence.called]
        assert doubts == outcomes.doubt[row, : len(doubts)].tolist()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), border=st.integers(1, 4))
def test_what_follows_changes_no_earlier_round(seed, border):
    """Winner and doubt after a round do not depend on later answers."""
    rng = np.random.default_rng(seed)
    rows = compared(rng, 30)
    policy = fit_policy(rows, max_rounds=None)
    later = [POOL.index(name) for name in policy.order[border:]]
    equal = rows.equal.copy()
    changed = rng.random(equal.shape) < 0.5
    changed |= changed.swapaxes(1, 2)
    equal[:, later, :] = changed[:, later, :]
    equal[:, :, later] = changed[:, :, later]
    others = AnswerClasses.compared(POOL, equal, rows.classes >= 0, rows.fingerprints)
    one, other = policy.outcomes(rows), policy.outcomes(others)
    assert np.array_equal(one.doubt[:, :border], other.doubt[:, :border])
    assert np.array_equal(one.winner[:, :border], other.winner[:, :border])


def test_the_reference_is_compared_with_and_not_its_class():
    """A is like b and b like c, so all three are one class; but a is not like c."""
    pool = ("a", "b", "c")
    policy = Policy(
        pool=pool, reliabilities=(0.9, 0.8, 0.7), order=pool, borders=(2, 3), reference="c"
    )
    equal = np.eye(3, dtype=bool)[None].copy()
    equal[0, 0, 1] = equal[0, 1, 0] = equal[0, 1, 2] = equal[0, 2, 1] = True
    rows = AnswerClasses.compared(pool, equal, np.ones((1, 3), bool), (b"row",))
    assert rows.classes.tolist() == [[0, 0, 0]]
    assert policy.outcomes(rows).differs.tolist() == [[True, False]]
    with pytest.raises(CalibrationError, match="symmetric"):
        AnswerClasses.compared(pool, equal & ~np.tri(3, dtype=bool), rows.classes >= 0, (b"row",))


def test_the_promise_holds_for_an_equality_that_is_not_transitive():
    """Answers differ on at most alpha of fresh rows, two by two, on average over calibrations.

    Of each calibration one fresh row counts; false alarm 1e-6.
    """
    rng = np.random.default_rng(7)
    alpha, n, trials = 0.1, 39, 400
    policy = fit_policy(compared(rng, 200), max_rounds=2)
    outcomes = policy.outcomes(compared(rng, trials * (n + 1)))
    s = round_nonconformity(outcomes.doubt)
    scores = critical_scores(s, outcomes.differs).reshape(trials, n + 1)
    differing = 0
    for trial in range(trials):
        fresh = trial * (n + 1) + n
        threshold = calibrate_threshold(scores[trial, :n], alpha)
        last = rounds_called(s[fresh, None], threshold)[0] - 1
        differing += int(outcomes.differs[fresh, last])
    assert_at_most(differing, trials, alpha, FALSE_ALARM)
    assert differing > 0
