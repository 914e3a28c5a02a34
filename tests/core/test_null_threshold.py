"""tau: the smallest p_null at which few enough answerable validation rows abstain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.null_threshold import choose_null_threshold
from tests.kit.strategies import tables


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
