"""The six numbers of an evaluation, on a table small enough to count by hand."""

import math

import numpy as np

from racer_core.calibration.metrics import set_metrics

# G, C without the null model, whether the null model is in C
TABLE = [
    ("a", "ab", False),  # hit
    ("b", "a", False),  # missed: answered without a right candidate
    ("", "", True),  # no candidate is right, and none was called
    ("", "a", True),  # the paper counts it as covered; the user got a wrong answer
    ("", "abc", False),  # missed in every sense
    ("c", "", True),  # false abstention
    ("ab", "bc", True),  # hit
    ("c", "c", False),  # hit
]


def flags(names):
    """One row per text: which of a, b and c it names."""
    return np.array([[name in row for name in "abc"] for row in names])


def test_metrics_of_a_table_counted_by_hand():
    """Eight rows, five of them answerable."""
    right, called, null = zip(*TABLE, strict=True)
    metrics = set_metrics(flags(called), np.array(null), flags(right))
    assert metrics.risk == 3 / 8  # rows 2, 5, 6
    assert metrics.miss_given_answerable == 2 / 5  # rows 2, 6 of 1, 2, 6, 7, 8
    assert metrics.served_error == 3 / 8  # rows 2, 4, 5
    assert metrics.false_abstain == 1 / 5  # row 6
    assert metrics.abstain == 2 / 8  # rows 3, 6
    assert metrics.size == 10 / 8  # 2 + 1 + 0 + 1 + 3 + 0 + 2 + 1


def test_share_of_no_rows_is_nan():
    """Not 0: a risk that was never measured must not look good."""
    none_right = set_metrics(flags(["a"]), np.array([False]), flags([""]))
    assert math.isnan(none_right.miss_given_answerable)
    assert math.isnan(none_right.false_abstain)
    assert none_right.risk == none_right.served_error == 1.0
    nothing = set_metrics(flags(["a"])[:0], np.zeros(0, bool), flags(["a"])[:0])
    assert math.isnan(nothing.risk)
    assert math.isnan(nothing.size)
