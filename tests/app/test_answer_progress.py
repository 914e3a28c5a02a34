"""Progress of a calibration of `same_answer`: rows needed, and when there are enough."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from app.same_answer.calibration import expected_at, fitting_rows, rows_needed
from racer_core.calibration.threshold import allowed_misses

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def arrivals(rng: np.random.Generator, count: int) -> list[datetime]:
    """Requests at random, one a minute on average."""
    gaps = rng.exponential(60.0, count)
    return [BEGIN + timedelta(seconds=float(each)) for each in np.cumsum(gaps)]


@pytest.mark.parametrize("alpha", [0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_rows_needed_are_the_fewest_with_a_finite_threshold(alpha: float) -> None:
    """One row fewer has none."""
    needed = rows_needed(alpha)
    for total, is_enough in ((needed, True), (needed - 1, False)):
        rest = total - fitting_rows(total)
        assert (rest > 0 and allowed_misses(rest, alpha) >= 0) == is_enough
    assert needed >= fitting_rows(needed)


def test_the_estimate_is_right_on_average_and_bounded_in_spread() -> None:
    """Of 25 rows needed 50: the mean over 2,000 runs is 25 minutes, within six standard errors."""
    rng = np.random.default_rng(5)
    waits: list[float] = []
    for _ in range(2_000):
        times = arrivals(rng, 25)
        found = expected_at(times, 50, times[-1])
        assert found is not None
        waits.append((found - times[-1]) / timedelta(minutes=1))
    # The gaps between 25 rows are 24, and the sum is divided by 25.
    mean = 25 * 24 / 25
    assert abs(np.mean(waits) - mean) < 6.0 * mean / math.sqrt(24 * 2_000)


def test_no_estimate_where_there_is_nothing_to_estimate() -> None:
    """Few rows, enough rows, or traffic that ended."""
    times = [BEGIN + timedelta(minutes=each) for each in range(20)]
    end = times[-1]
    assert expected_at(times, 30, end) == end + 10 * timedelta(minutes=19) / 20
    assert expected_at(times, 20, end) is None
    assert expected_at(times[:9], 30, times[8]) is None
    assert expected_at(times, 30, end + timedelta(minutes=8)) is None
    assert expected_at([], 30, end) is None
