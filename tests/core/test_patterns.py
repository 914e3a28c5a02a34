"""W(x, g): counted among neighbours or tilted by scores, against rational arithmetic by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.errors import InputError
from tests.core.by_hand import tilted_weights, training_counts
from tests.core.exact_cover import counted_weights
from tests.kit.strategies import REACH, pattern_models, probabilities

LABELS = np.array([[1, 1], [0, 1], [0, 0], [0, 1]], dtype=bool)


@given(model=pattern_models(columns=3), seed=st.integers(0, 99))
def test_patterns_are_counted_once_each(model, seed):
    """Distinct rows with their shares, for any order of the training rows."""
    patterns = [tuple(row) for row in model.patterns.tolist()]
    assert len(set(patterns)) == len(patterns)
    rows = np.repeat(model.patterns, training_counts(model), axis=0)
    again = PatternModel.of(np.random.default_rng(seed).permutation(rows))
    np.testing.assert_array_equal(again.patterns, model.patterns)
    np.testing.assert_array_equal(again.frequencies, model.frequencies)


def test_patterns_by_hand():
    """Three patterns of four rows; a row's id is the place of its pattern."""
    model, ids = PatternModel.of(LABELS), pattern_ids(LABELS)
    assert sorted(zip(model.patterns.tolist(), model.frequencies, strict=True)) == [
        ([False, False], 0.25),
        ([False, True], 0.5),
        ([True, True], 0.25),
    ]
    np.testing.assert_array_equal(model.patterns[ids], LABELS)
    np.testing.assert_array_equal(model.answerable, model.patterns.any(axis=1))


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 64, 100])
def test_ids_name_patterns_for_any_width_of_the_pool(columns):
    """Eight candidates are a byte; the ninth must not be lost, nor 100 candidates overflow."""
    labels = np.random.default_rng(columns).random((300, columns)) < 0.5
    labels[150:] = labels[:150]
    labels[299] = ~labels[0]
    model, ids = PatternModel.of(labels), pattern_ids(labels)
    assert len(model.frequencies) == len({tuple(row) for row in labels.tolist()})
    np.testing.assert_array_equal(model.patterns[ids], labels)
    assert ids.min() == 0
    assert ids.max() == len(model.frequencies) - 1


@given(
    model=pattern_models(columns=3),
    near=st.lists(st.integers(0, 7), min_size=REACH, max_size=REACH),
)
def test_neighbours_vote_and_the_prior_votes_with_them(model, near):
    """(votes + prior * share) / (J + prior); neighbours beyond the J nearest do not count."""
    ids = np.array([near], dtype=np.uint8) % len(model.frequencies)
    counted = ids[0, : model.neighbours].tolist()
    expected = counted_weights(training_counts(model), Fraction(model.prior), counted)
    found = model.weights(np.full((1, 3), 0.5), ids)
    np.testing.assert_allclose(found[0], np.array(expected, dtype=float), rtol=0, atol=1e-12)
    cut = model.weights(np.full((1, 3), 0.5), ids[:, : model.neighbours])
    np.testing.assert_array_equal(found, cut)


def test_small_ids_do_not_overflow_in_a_large_batch():
    """Ids are stored as single bytes; 300 rows with 200 patterns count in 60,000 cells."""
    labels = (np.arange(1, 201)[:, None] >> np.arange(8)) & 1 == 1
    model = PatternModel.of(labels)
    near = np.tile(np.arange(200, dtype=np.uint8)[:, None], (2, 3))[:300]
    weights = model.weights(np.full((300, 8), 0.5), near)
    np.testing.assert_array_equal(weights.argmax(axis=1), near[:, 0])
    assert near.dtype == np.uint8
    np.testing.assert_array_equal(near[:3, 0], [0, 1, 2])  # the caller's array is left alone


@given(model=pattern_models(columns=3), f=st.lists(probabilities, min_size=3, max_size=3))
def test_tilt_by_hand(model, f):
    """The frequencies times exp of the log-odds that the router adds, over T."""
    expected = np.array(tilted_weights(model, f), dtype=float)
    found = model.weights(np.array([f]), None)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9, atol=1e-12)


GOOD = {"patterns": np.eye(2, dtype=bool), "frequencies": np.array([0.25, 0.75])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patterns": np.ones(2, bool)}, "differ"),
        ({"patterns": np.ones((3, 2), bool)}, "differ"),
        ({"patterns": np.ones((2, 0), bool)}, "differ"),
        ({"patterns": np.ones((0, 2), bool), "frequencies": np.ones(0)}, "differ"),
        ({"frequencies": np.array([[0.25, 0.75]])}, "differ"),
        ({"frequencies": np.array([0.0, 1.0])}, "above 0 and sum to 1"),
        ({"frequencies": np.array([-0.5, 1.5])}, "above 0 and sum to 1"),
        ({"frequencies": np.array([0.25, 0.5])}, "above 0 and sum to 1"),
        ({"frequencies": np.array([math.nan, 0.5])}, "above 0 and sum to 1"),
        ({"neighbours": 0}, "at least 1 neighbour, not 0"),
        ({"prior": 0.0}, "prior and temperature"),
        ({"prior": math.nan}, "prior and temperature"),
        ({"prior": math.inf}, "prior and temperature"),
        ({"temperature": 0.0}, "prior and temperature"),
        ({"temperature": math.nan}, "prior and temperature"),
        ({"temperature": math.inf}, "prior and temperature"),
    ],
)
def test_invalid_pattern_weights_are_refused(changes, message):
    """When built, not at the first query, where it would be a NaN in every set."""
    PatternModel(**GOOD)
    with pytest.raises(InputError, match=message):
        PatternModel(**{**GOOD, **changes})


def test_no_training_rows_have_no_patterns():
    """Not an empty table that divides by zero."""
    with pytest.raises(InputError):
        PatternModel.of(np.zeros((0, 2), dtype=bool))
