"""lambda_hat: Algorithm 1, line 9; its edge cases, and an audit of its floats."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.null_threshold import choose_null_threshold
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.threshold import (
    allowed_misses,
    calibrate_threshold,
    critical_scores,
    threshold_from_sorted,
)
from racer_core.errors import CalibrationError, InputError
from racer_core.types import checked_alpha
from tests.kit.strategies import alpha_texts, nonconformities, tables

endless = st.sampled_from([math.inf, -math.inf])  # a row that every threshold misses, or none
critical = st.lists(st.one_of(nonconformities, endless), min_size=1, max_size=40)


def smallest_valid(scores: list[float], alpha: Fraction) -> float:
    """Try every score from below, in rational arithmetic; the count only falls on the way up."""
    for threshold in sorted(scores):
        misses = sum(score > threshold for score in scores)
        if Fraction(1 + misses, len(scores) + 1) <= alpha:
            return threshold
    return math.inf


@given(scores=critical, alpha=alpha_texts)
def test_lambda_hat_is_the_smallest_valid_threshold(scores, alpha):
    """Eq. (6): nothing smaller keeps the adjusted empirical risk at alpha; a rank off fails."""
    expected = smallest_valid(scores, Fraction(alpha))
    assert calibrate_threshold(np.array(scores), float(alpha)) == expected


def test_budget_is_exact_wherever_alpha_times_rows_is_whole():
    """8,400 pairs on the 0.01 grid; ceil((n+1)(1-alpha)) is wrong in 19 % of them, floor in 2 %."""
    wrong = [
        (hundredths, n)
        for hundredths in range(1, 100)
        for n in range(1, 2_001)
        if hundredths * (n + 1) % 100 == 0
        and allowed_misses(n, hundredths / 100) != hundredths * (n + 1) // 100 - 1
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("scores", "alpha", "expected"),
    [
        ([0.3], 0.5, 0.3),
        ([0.3], 0.49, math.inf),
        ([0.1, 0.2, 0.3], 0.76, 0.1),  # n/(n+1) < alpha < 1: the smallest score, never -inf
        ([0.1, 0.2, 0.3], 0.999, 0.1),
        ([0.1, 0.2, 0.3], 0.25, 0.3),  # alpha = 1/(n+1): the largest
        ([0.1, 0.2, 0.3], 0.249, math.inf),  # below it nothing is valid, not even max(s)
        ([0.0, 0.0, 0.0, 1.0], 0.4, 0.0),  # without duplicates it would be 1.0
        ([0.2, math.inf], 0.67, 0.2),
        ([0.2, math.inf], 0.34, math.inf),  # +inf is a miss at every finite threshold
    ],
)
def test_edge_cases(scores, alpha, expected):
    """Infeasible and nearly infeasible alphas, one row, ties, and rows that no set covers."""
    assert calibrate_threshold(np.array(scores), alpha) == expected


@pytest.mark.parametrize(
    ("n", "alpha", "misses"),
    [
        (300, 0.1, 21), (1_000, 0.1, 84), (10_000, 0.1, 950), (1_000, 0.05, 38), (1_000, 0.01, 4),
        (28, 0.1, -1), (29, 0.1, 0), (58, 0.05, -1), (59, 0.05, 0), (298, 0.01, -1), (299, 0.01, 0),
    ],
)  # fmt: skip
def test_delta_rule_allows_what_the_exact_binomial_allows(n, alpha, misses):
    """Exact binomial rule, delta = 0.05; feasible from n >= ln(delta)/ln(1 - alpha) on."""
    assert allowed_misses(n, alpha, delta=0.05) == misses


BAD_ALPHAS = [0, 1, 0.0, 1.0, -0.1, 10, math.nan, math.inf, True, False, "0.1", None, 10**400]


@pytest.mark.parametrize("alpha", BAD_ALPHAS)
def test_alpha_outside_the_open_interval_is_refused(alpha):
    """With alpha = 1 lambda_hat would empty every set; True is an int in Python; "0.1" is text."""
    with pytest.raises(InputError):
        checked_alpha(alpha)
    with pytest.raises(InputError):
        calibrate_threshold(np.array([0.1, 0.2]), alpha)
    with pytest.raises(InputError):
        CalibrationOptions(alpha=alpha)


def column(*p_null):
    """Scores of one candidate, so that p_null is as given (multiples of 1/64 are exact)."""
    return 1.0 - np.array(p_null)[:, None]


@given(table=tables(), budget=st.sampled_from([0.0, 0.01, 0.2, 0.5]))
def test_tau_is_the_smallest_observed_value_within_the_budget(table, budget):
    """Every smaller p_null breaks the budget; None only when the largest does too."""
    p_null = 1.0 - table.scores.max(axis=1)
    answerable = p_null[table.labels.any(axis=1)]

    def abstained(tau):
        return sum(value >= tau for value in answerable) / len(answerable)

    tau = choose_null_threshold(table.scores, table.labels, budget)
    if tau is None:
        assert abstained(p_null.max()) > budget
    else:
        assert tau in p_null
        assert abstained(tau) <= budget
        assert all(abstained(other) > budget for other in p_null if other < tau)


def test_budget_is_a_bound_that_may_be_reached():
    """One of 100 answerable rows may abstain at 1 %, so tau is that row's p_null, closed."""
    p_null = [*np.linspace(0.0, 0.5, 99), 0.75, 0.875]
    labels = np.array([[True]] * 100 + [[False]])
    assert choose_null_threshold(column(*p_null), labels, 0.01) == 0.75
    assert choose_null_threshold(column(*p_null), labels, 0.009) == 0.875


def test_unanswerable_rows_cost_nothing():
    """Abstaining where no candidate is right costs nothing of the budget."""
    labels = np.array([[True], [False], [False]])
    assert choose_null_threshold(column(0.25, 0.5, 0.75), labels, 0.0) == 0.5


@pytest.mark.parametrize(
    ("p_null", "labels"),
    [([0.25, 0.75], [False, False]), ([0.25, 0.75], [True, True]), ([0.5, 0.5], [True, False])],
)
def test_no_tau_without_a_value_that_keeps_the_budget(p_null, labels):
    """No answerable rows, or an answerable row has the largest p_null: never abstain by tau."""
    assert choose_null_threshold(column(*p_null), np.array(labels)[:, None]) is None


def test_scores_and_options_without_a_threshold_are_refused():
    """NaN sorts last and would act as +inf; an empty truth was not augmented; r = 0 is always met.

    -1 misses means infeasible, and must not read the array from its end.
    """
    for scores in ([], [0.1, math.nan]):
        with pytest.raises(CalibrationError):
            calibrate_threshold(np.array(scores), 0.1)
    with pytest.raises(CalibrationError, match="augment"):
        critical_scores(np.array([[0.1, 0.2]]), np.array([[False, False]]))
    with pytest.raises(CalibrationError, match="r must be"):
        CalibrationOptions(r=0)
    for delta in (0.0, 1.0, True):
        with pytest.raises(InputError, match="delta") as caught:
            CalibrationOptions(delta=delta)
        assert caught.value.param == "delta"
    assert threshold_from_sorted(np.array([0.1, 0.2]), -1) == math.inf
    assert threshold_from_sorted(np.array([0.1, 0.2]), 0) == 0.2
