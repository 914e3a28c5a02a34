"""Units: in a list of questions no query and no cluster is on two sides of a split."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.errors import CalibrationError
from racer_core.offline.protocol import Protocol, halves, split_benchmarks
from racer_core.offline.table import benchmark_units, draw_division
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.units import one_per_unit, renumbered, rows_kind, rows_units, units_of
from racer_core.types import LabelledRow, LabelledRows, RowsKind
from tests.core.laws import assert_binomial

FALSE_ALARM = 1e-6
QUERIES = st.sampled_from(["p", "q", " P ", *map(str, range(20))])
CLUSTERS = st.sampled_from([None, None, None, *"uvwxyz"])
BENCHMARKS = st.dictionaries(
    st.sampled_from(["one", "two", "three"]),
    st.lists(st.tuples(QUERIES, CLUSTERS), min_size=5, max_size=40),
    min_size=1,
)


def rows_of(pairs, kind=None, **fields):
    """Rows with these queries and clusters."""
    return LabelledRows(
        pool=("a", "b"),
        rows=tuple(
            LabelledRow(query=query, cluster=cluster, correct=frozenset(), **fields)
            for query, cluster in pairs
        ),
        kind=kind,
    )


def plain(query):
    """The query without differences in case and space."""
    return query.strip().lower()


def assert_apart(*sides):
    """No query and no cluster of a benchmark is on two sides."""
    for position in range(2):
        named = [{each[position] for each in side if each[position]} for side in sides]
        assert sum(map(len, named)) == len(set().union(*named))


@given(pairs=BENCHMARKS, seed=st.integers(0, 9))
def test_no_query_and_no_cluster_of_a_list_is_on_two_sides(pairs, seed):
    """Of training rows, of every split of the others, of cross-fitted halves and of folds."""
    files = {name: rows_of(own, RowsKind.QUESTIONS) for name, own in pairs.items()}
    known = [
        (plain(query), cluster and (name, cluster))
        for name, own in pairs.items()
        for query, cluster in own
    ]
    units = benchmark_units(files, dict.fromkeys(files, RowsKind.QUESTIONS))
    protocol = Protocol()
    with suppress(CalibrationError):  # too few units
        training, others, places = draw_division(files, units, protocol, seed)
        assert sorted([*training, *others]) == list(range(len(known)))
        assert_apart([known[i] for i in training], [known[i] for i in others])
        rest = renumbered(units[others])
        parts = split_benchmarks(places, rest, protocol, np.random.default_rng(seed))
        of = [known[i] for i in others]
        sides = [
            np.concatenate([getattr(each, side) for each in parts.values()])
            for side in ("calibration", "validation", "test")
        ]
        assert sorted(np.concatenate(sides)) == list(range(len(of)))
        assert_apart(*([of[i] for i in side] for side in sides))
        validation = sides[1]
        own, other = next(halves(renumbered(rest[validation])))
        assert_apart([of[i] for i in validation[own]], [of[i] for i in validation[other]])
        fold = renumbered(units[training]) % 5
        assert_apart(*([known[i] for i in training[fold == each]] for each in range(5)))


@given(pairs=st.lists(st.tuples(QUERIES, CLUSTERS), min_size=1, max_size=40))
def test_units_are_no_larger_than_they_must_be(pairs):
    """Two rows are one unit exactly if a chain of shared queries and clusters joins them."""
    units = rows_units(rows_of(pairs, RowsKind.QUESTIONS))
    reached = np.eye(len(pairs), dtype=bool)
    for i, (query, cluster) in enumerate(pairs):
        for j, (other, its) in enumerate(pairs):
            reached[i, j] |= plain(query) == plain(other) or bool(cluster and cluster == its)
    for _ in pairs:
        reached = reached @ reached
    np.testing.assert_array_equal(reached, units[:, None] == units)
    np.testing.assert_array_equal(units, renumbered(units))


def test_rows_of_traffic_are_split_one_by_one():
    """A query may be on both sides, as the next request may repeat a row."""
    pairs = [("same", "user")] * 6
    assert rows_units(rows_of(pairs, RowsKind.TRAFFIC)).tolist() == list(range(6))
    assert rows_units(rows_of(pairs, RowsKind.QUESTIONS)).tolist() == [0] * 6


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (rows_of([("p", None), ("q", None)]), RowsKind.QUESTIONS),
        (rows_of([("p", None), ("p", None)]), RowsKind.TRAFFIC),
        (rows_of([("p", None), ("p", "user")]), RowsKind.QUESTIONS),
        (rows_of([("p", None), ("p", None)], task="sums"), RowsKind.QUESTIONS),
        (rows_of([("p", None), ("p", None)], reference="4"), RowsKind.QUESTIONS),
        (rows_of([("p", None), ("q", None)], RowsKind.TRAFFIC), RowsKind.TRAFFIC),
    ],
)
def test_the_kind_is_what_was_said_or_a_guess(rows, kind):
    """Repeats alone, without a sign of a collected list, look like traffic."""
    assert rows_kind(rows) is kind


def test_one_row_of_each_unit_is_drawn_uniformly_and_alike_each_time():
    """False-alarm probability 1e-6 a row of each unit, over 4,000 keys."""
    units = np.array([0, 1, 1, 0, 1, 2, 0, 0])
    drawn = [one_per_unit(units, str(key).encode()) for key in range(4_000)]
    counts = np.bincount(np.concatenate(drawn), minlength=len(units))
    for row, unit in enumerate(units):
        assert_binomial(counts[row], len(drawn), 1.0 / np.sum(units == unit), FALSE_ALARM)
    assert all(sorted(units[rows]) == [0, 1, 2] for rows in drawn)
    np.testing.assert_array_equal(one_per_unit(units, b"7"), drawn[7])


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
        (np.full(200, 1 / 200), 600, 300), (np.full(2_000, 1 / 2_000), 6_000, 300),
        (np.full(2_000, 1 / 2_000), 1_000, 1_000), (zipf(500), 4_000, 1_000),
        (zipf(100_000), 2_000, 2_000), (zipf(100_000), 20_000, 500),
    ],
)  # fmt: skip
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


def test_rows_without_queries_and_clusters_are_units_of_their_own():
    """Rows of router scores share nothing."""
    assert units_of((None, None, "p", "p"), None).tolist() == [0, 1, 2, 2]
