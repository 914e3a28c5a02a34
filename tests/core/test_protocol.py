"""Splits of rows: training rows are never tested, and shares are the paper's."""

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import CalibrationError, RowsError
from racer_core.offline.protocol import Protocol, Shares, split, training_units
from racer_core.offline.table import build_table
from tests.kit.synthetic import POOL, synthetic_rows


@pytest.mark.parametrize(
    ("count", "shares", "sizes"),
    [
        (1_000, Shares(), (400, 300, 60, 240)),  # 0.4 of all; 0.5 and 0.1 of what is left
        (1_000, Shares(train=0.5), (500, 250, 50, 200)),  # the paper's GSM8K
        (11, Shares(), (4, 4, 1, 2)),
    ],
)
def test_splits_are_disjoint_and_sized_as_the_shares_say(count, shares, sizes):
    """Together they are all rows, in every repetition."""
    rng = np.random.default_rng(3)
    training, rest = training_units("name", count, shares, seed=0)
    for _ in range(5):
        part = split(rest, shares, rng)
        parts = (training, part.calibration, part.validation, part.test)
        assert tuple(map(len, parts)) == sizes
        assert sorted(np.concatenate(parts)) == list(range(count))


def test_repetitions_differ_and_the_training_rows_stay():
    """The seed and the benchmark's name choose who trains; the repetition chooses the rest."""
    training, rest = training_units("name", 100, Shares(), seed=0)
    np.testing.assert_array_equal(training, training_units("name", 100, Shares(), seed=0)[0])
    for name, seed in (("other", 0), ("name", 1)):
        assert set(training) != set(training_units(name, 100, Shares(), seed=seed)[0])
    rng = np.random.default_rng(0)
    first, second = split(rest, Shares(), rng), split(rest, Shares(), rng)
    assert set(first.test) != set(second.test)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_that_cannot_be_split_are_refused_by_name(count):
    """One row at least to train, calibrate, validate and test on."""
    with pytest.raises(CalibrationError, match=f"arc: {count} rows are too few"):
        training_units("arc", count, Shares(validation=0.2), seed=0)


def test_no_training_row_is_scored_and_benchmarks_keep_their_rows():
    """Each benchmark has the share it was given; the router sees the training rows of all."""
    files = {"one": synthetic_rows(50, seed=1), "two": synthetic_rows(40, seed=2)}
    protocol = Protocol(shares_of={"two": Shares(train=0.25)})
    table = build_table(files, encoder=CharNgramEncoder(), router="knn", protocol=protocol)
    assert table.n_train == 20 + 10
    assert {name: len(rows) for name, rows in table.benchmarks.items()} == {"one": 30, "two": 30}
    places = np.concatenate(list(table.benchmarks.values()))
    assert sorted(places) == list(range(60))
    assert len(set(table.rows.fingerprints)) == 60
    for name, rows in files.items():
        share = rows.labels(POOL).sum(axis=0)
        assert np.all(table.rows.labels[table.benchmarks[name]].sum(axis=0) <= share)


@pytest.mark.parametrize("name", ["average", "merged"])
def test_a_benchmark_cannot_have_a_scope_s_name(name):
    """Its numbers and those of the scope would be one."""
    rows = {name: synthetic_rows(40, seed=1)}
    with pytest.raises(RowsError, match=name):
        build_table(rows, encoder=CharNgramEncoder(), router="knn", protocol=Protocol())
