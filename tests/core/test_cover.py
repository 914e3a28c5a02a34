"""Greedy cover against brute force in rational numbers, and what follows from its definition."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from racer_core.calibration.cover import greedy_cover
from tests.core.exact_cover import columns_of, greedy
from tests.kit.strategies import pool_of

PRICES = [0.25, 1.0, 4.0]  # powers of two: a mass per price is as exact as the mass


@st.composite
def worlds(draw, max_columns=5, max_patterns=7):
    """Weights as whole numbers of votes, patterns (P, C), and prices."""
    shape = (draw(st.integers(1, max_patterns)), draw(st.integers(1, max_columns)))
    patterns = draw(hnp.arrays(np.bool_, shape, elements=st.booleans(), fill=st.nothing()))
    votes = draw(st.lists(st.integers(0, 9), min_size=shape[0], max_size=shape[0]))
    assume(sum(votes))
    prices = draw(st.lists(st.sampled_from(PRICES), min_size=shape[1], max_size=shape[1]))
    return votes, patterns, prices


def in_doubles(votes):
    """One query's weights, shape (1, P)."""
    return np.array([votes], dtype=np.float64) / sum(votes)


def by_hand(votes, patterns, prices=None):
    """Names in the order in which they are taken, with the mass before each."""
    pool = pool_of(patterns.shape[1])
    weights = [Fraction(vote, sum(votes)) for vote in votes]
    covers = columns_of(patterns.tolist(), pool, with_null=False)
    if prices is not None:  # masses on the grid: thirds per price are no exact ties in doubles
        priced = dict(zip(pool, map(Fraction, prices), strict=True))
        return greedy(weights, covers, priced, on_grid=True)
    return greedy(weights, covers)


@given(world=worlds(), priced=st.booleans())
def test_scores_are_those_of_brute_force(world, priced):
    """Every column, ties included: they go from left to right."""
    votes, patterns, prices = world
    found = greedy_cover(in_doubles(votes), patterns, np.array(prices) if priced else None)[0]
    for taken in by_hand(votes, patterns, prices if priced else None):
        assert found[int(taken.name[1:])] == pytest.approx(float(taken.before), rel=0, abs=1e-8)


def test_greedy_by_hand():
    """Copies enter last, complements first; a cheap one may come before a better one."""
    # Half the mass on {a, b} (copies), three tenths on {c}, a fifth on {b, d}.
    patterns = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1]], dtype=bool)
    weights = np.array([[0.5, 0.3, 0.2]])
    np.testing.assert_allclose(greedy_cover(weights, patterns), [[1.0, 0.0, 0.7, 1.0]])
    # Per price: a gains 0.5, b 0.7 / 8, c 0.3 / 2, d 0.2 / 0.25: d, a, c, b.
    priced = greedy_cover(weights, patterns, np.array([1.0, 8.0, 2.0, 0.25]))
    np.testing.assert_allclose(priced, [[0.2, 1.0, 0.7, 0.0]])


def test_columns_that_add_equally_much_are_taken_from_left_to_right():
    """Sums that differ in their last bits alone are equal: 0.1 + 0.2 against 0.3."""
    patterns = np.array([[0, 1], [0, 1], [1, 0]], dtype=bool)
    scores = greedy_cover(np.array([[0.1, 0.2, 0.3]]) / 0.6, patterns)
    np.testing.assert_allclose(scores, [[0.0, 0.5]])
    none_right = np.zeros((2, 3), dtype=bool)
    assert greedy_cover(np.array([[0.5, 0.5]]), none_right).tolist() == [[0.0, 0.0, 0.0]]


@given(world=worlds(max_columns=4), seed=st.integers(0, 99))
def test_a_query_does_not_see_the_rest_of_its_batch(world, seed):
    """Each row's result does not depend on the other rows or on its place."""
    votes, patterns, prices = world
    rng = np.random.default_rng(seed)
    others = rng.integers(0, 10, (6, len(votes))) + np.eye(len(votes), dtype=int)[0]
    batch = np.vstack([in_doubles(row.tolist()) for row in (np.array(votes), *others)])
    order = rng.permutation(len(batch))
    for each in (None, np.array(prices)):
        together = greedy_cover(batch[order], patterns, each)
        for place, row in enumerate(order):
            alone = greedy_cover(batch[[row]], patterns, each)
            np.testing.assert_array_equal(together[place], alone[0])
