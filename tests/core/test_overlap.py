"""Which rows with queries of training can be a fresh sample of traffic."""

import numpy as np
import pytest

from racer_core.records.overlap import is_fresh_traffic
from racer_core.types import RowsKind


def prints(ids):
    """A fingerprint for each query."""
    return [b"%d" % each for each in ids]


def zipf(count):
    """Chances of queries in falling order."""
    chances = 1.0 / np.arange(1, count + 1)
    return chances / chances.sum()


@pytest.mark.parametrize(
    ("chances", "trained", "rows"),
    [
        (np.full(200, 1 / 200), 600, 300),
        (np.full(2_000, 1 / 2_000), 6_000, 300),
        (np.full(2_000, 1 / 2_000), 1_000, 1_000),
        (zipf(500), 4_000, 1_000),
        (zipf(100_000), 2_000, 2_000),
        (zipf(100_000), 20_000, 500),
    ],
)
def test_a_fresh_sample_of_narrow_or_broad_traffic_is_fresh(chances, trained, rows):
    """However much of it the training rows held: 20 of 20 draws."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        seen = set(prints(rng.choice(len(chances), trained, p=chances)))
        drawn = prints(rng.choice(len(chances), rows, p=chances))
        assert is_fresh_traffic(drawn, seen, RowsKind.TRAFFIC)


@pytest.mark.parametrize("share", [0.6, 0.9, 0.98])
def test_training_rows_with_some_new_ones_are_not_fresh(share):
    """Their own file repeats too little to explain so many queries of training."""
    trained = prints(range(1_000))
    count = round(1_000 * (1 - share) / share)
    rows = trained + prints(range(1_000, 1_000 + count))
    assert not is_fresh_traffic(rows, set(trained), RowsKind.TRAFFIC)
    repeated = rows + rows[:200]
    assert not is_fresh_traffic(repeated, set(trained), RowsKind.TRAFFIC)


def test_up_to_half_of_the_queries_may_be_known():
    """Of a collected training list that covers common queries; only if traffic was said."""
    trained = set(prints(range(40)))
    rows = prints(range(80))
    assert is_fresh_traffic(rows, trained, RowsKind.TRAFFIC)
    assert not is_fresh_traffic(rows[:79], trained, RowsKind.TRAFFIC)
    assert not is_fresh_traffic(rows, trained, None)
