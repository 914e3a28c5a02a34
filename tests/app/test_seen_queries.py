"""Repeats: nothing is learnt twice from one query, and what is learnt from the others stays fair.

Simulations have fixed seeds; the false-alarm probability of each comparison is one in a million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from app.monitoring.decisions.seen_queries import SeenQueries
from racer_core.calibration.martingales import ExchangeabilityMartingale
from tests.core.laws import assert_at_most

RARE = 1e-6
LEVEL = 0.2
ROWS, ARRIVALS = 100, 600

# Which of the values so far comes again; None: a new one comes.
Habit = Callable[[Sequence[float], np.random.Generator], int | None]


def test_a_query_is_a_repeat_after_its_first_time() -> None:
    """Calibration rows count as seen before every query."""
    repeats = SeenQueries([b"row"])
    assert repeats.record(b"row")
    assert not repeats.record(b"new")
    assert repeats.record(b"new")


def test_the_least_recently_seen_query_is_evicted_first() -> None:
    """Memory is bounded; a repeated health check stays among the seen queries."""
    repeats = SeenQueries([b"row 1", b"row 2", b"row 3"], limit=2)
    assert not repeats.record(b"row 1")  # forgotten at once, and row 2 for it
    assert not repeats.record(b"row 2")
    for number in range(1_000):
        assert repeats.record(b"row 2")
        assert not repeats.record(b"%d" % number)


def _loudest(values: Sequence[float], rng: np.random.Generator) -> int | None:
    """Nine of ten arrivals repeat the query whose score is largest so far."""
    return int(np.argmax(values)) if rng.random() < 0.9 else None


def _an_easy_check(values: Sequence[float], rng: np.random.Generator) -> int | None:
    """Every second arrival is a health check, whose score happens to be the largest row's."""
    return int(np.argmax(values[:ROWS])) if rng.random() < 0.5 else None


def _echo(values: Sequence[float], rng: np.random.Generator) -> int | None:
    """Queries with a score above the median are repeated until another query comes."""
    return len(values) - 1 if values[-1] > np.median(values) and rng.random() < 0.8 else None


HABITS = [_loudest, _an_easy_check, _echo]


def _alarms(habit: Habit, rng: np.random.Generator, *, repeats_count: bool) -> bool:
    """One run: rows, then arrivals of which those that are new are drawn like the rows."""
    values = rng.standard_normal(ROWS).tolist()
    repeats = SeenQueries([b"%d" % number for number in range(ROWS)])
    stream = ExchangeabilityMartingale(np.array(values), level=LEVEL, rng=rng, cap=50)
    for _ in range(ARRIVALS):
        which = habit(values, rng)
        if which is None:
            which = len(values)
            values.append(float(rng.standard_normal()))
        known = repeats.record(b"%d" % which)
        if repeats_count or not known:
            stream.update(values[which], *rng.random(2).tolist())
    return stream.alarmed


@pytest.mark.slow
@pytest.mark.parametrize("habit", HABITS)
def test_repeats_of_any_habit_leave_the_false_alarm_as_stated(habit: Habit) -> None:
    """The client that repeats may look at all scores so far: at most one run in five alarms."""
    rng, runs = np.random.default_rng(41), 100
    alarms = sum(_alarms(habit, rng, repeats_count=False) for _ in range(runs))
    assert_at_most(alarms, runs, LEVEL, RARE)


@pytest.mark.parametrize("habit", HABITS)
def test_counted_repeats_would_alarm_without_cause(habit: Habit) -> None:
    """Negative control for the test above: the same arrivals, each of them counted."""
    rng, runs = np.random.default_rng(41), 20
    alarms = sum(_alarms(habit, rng, repeats_count=True) for _ in range(runs))
    with pytest.raises(AssertionError):
        assert_at_most(alarms, runs, LEVEL, RARE)
