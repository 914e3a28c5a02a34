"""Labelled rows of arrays and data frames, and their slices."""

import numpy as np
import pytest

import racer_core as rc
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

pandas = LazyModule("pandas")

CSV = "query,task,group,small,large\nWhat is 2 + 2?,sum,en,1,1\nWarum?,,,0,true\nWhy?,,en,0,0\n"


def test_a_frame_has_the_rows_of_its_csv(tmp_path):
    """Read by pandas with its own types, booleans and gaps: the same rows."""
    path = tmp_path / "rows.csv"
    path.write_text(CSV, encoding="utf-8")
    rows = rc.read_rows(path)
    frame = pandas.read_csv(path)
    assert rc.rows_from_frame(frame) == rows
    assert (
        rc.rows_from_frame(frame.assign(small=[1.0, 0.0, 0.0], large=[True, True, False])) == rows
    )
    assert rows[0].group == "en"
    assert rows[1].group is None
    assert rows.pool == ("small", "large")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"small": [1, None, 0]}, "line 3: .*'small'"),
        ({"small": [1, 2, 0]}, "line 3: .*'small'"),
        ({"query": ["a", "", "b"]}, 'line 3: no "query"'),
    ],
)
def test_a_wrong_frame_is_refused(change, message):
    """By the line that the frame's row would have in a file."""
    frame = pandas.DataFrame({"query": ["a", "b", "c"], "small": [1, 0, 1]} | change)
    with pytest.raises(rc.RowsError, match=message):
        rc.rows_from_frame(frame)


def test_arrays_are_the_rows_of_their_columns():
    """Fields of a row come in by their names, with one value or one per candidate."""
    made = synthetic_rows(20, seed=1, answers=True)
    rows = rc.rows_from_arrays(
        made.queries,
        made.labels().astype(int),
        pool=POOL,
        group=["a", None] * 10,
        answers=[[row.answers[name] for name in POOL] for row in made],
    )
    assert rows.pool == POOL
    assert [row.correct for row in rows] == [row.correct for row in made]
    assert [dict(row.answers) for row in rows] == [dict(row.answers) for row in made]
    assert [row.group for row in rows] == ["a", None] * 10


def test_wrong_arrays_are_refused():
    """Other lengths, unknown fields and empty queries."""
    with pytest.raises(rc.InputError, match="shape"):
        rc.rows_from_arrays(["a"], [[True]], pool=("m", "n"))
    with pytest.raises(rc.InputError, match="2 values of group for 1"):
        rc.rows_from_arrays(["a"], [[True]], pool=("m",), group=["x", "y"])
    with pytest.raises(rc.InputError, match="no field 'colour'"):
        rc.rows_from_arrays(["a"], [[True]], pool=("m",), colour=["x"])
    with pytest.raises(rc.RowsError, match="row 2: query is empty"):
        rc.rows_from_arrays(["a", " "], [[True]] * 2, pool=("m",))


def test_rows_are_sliced_like_an_array():
    """A number gives a row; a slice, numbers and a mask give rows of the same pool."""
    rows = synthetic_rows(10, seed=1)
    mask = np.arange(10) % 3 == 0
    assert rows[3] == rows[np.int64(3)] == rows.rows[3] == list(rows)[3]
    assert rows[2:5].rows == rows.rows[2:5]
    assert rows[[4, 0, -1]].rows == (rows.rows[4], rows.rows[0], rows.rows[9])
    assert rows[mask].rows == rows.rows[::3]
    assert rows[:0].labels().shape == (0, 3)
    assert (rows[:4] + rows[4:]).rows == rows.rows
    np.testing.assert_array_equal(rows[mask].labels(), rows.labels()[mask])
    with pytest.raises(IndexError):
        rows[np.array([True, False])]
    with pytest.raises(rc.InputError, match="pools"):
        rows + rc.LabelledRows(pool=("other",), rows=())


def test_a_split_is_random_and_loses_no_row():
    """Parts of the shares' sizes, the same for the same seed, in the order of the file."""
    rows = synthetic_rows(100, seed=1)
    parts = rc.split_rows(rows, 0.5, 0.3, 0.2, seed=4)
    assert list(map(len, parts)) == [50, 30, 20]
    assert {query for part in parts for query in part.queries} == set(rows.queries)
    assert parts == rc.split_rows(rows, 0.5, 0.3, 0.2, seed=4)
    assert parts != rc.split_rows(rows, 0.5, 0.3, 0.2, seed=5)
    places = [rows.queries.index(query) for query in parts[0].queries]
    assert places == sorted(places)
    assert len(rc.split_rows(rows, 0.1, seed=1)[0]) == 10


def test_copies_and_clusters_of_questions_stay_together_and_traffic_is_split_by_rows():
    """20 queries, five times each: as questions no query is in two parts."""
    queries = [f"What is {i % 20}?" for i in range(100)]
    clusters = [None if i % 20 > 3 else "document" for i in range(100)]
    rows = rc.rows_from_arrays(queries, np.ones((100, 1)), pool=("m",), cluster=clusters)
    one, other = rc.split_rows(rows, 0.5, 0.5)
    assert not set(one.queries) & set(other.queries)
    assert sum(any(row.cluster for row in part) for part in (one, other)) == 1
    traffic = rc.rows_from_arrays(queries, np.ones((100, 1)), pool=("m",))
    one, other = rc.split_rows(traffic, 0.5, 0.5)
    assert (len(one), len(other)) == (50, 50)
    assert set(one.queries) & set(other.queries)
    assert one.kind is None  # a guess is no word of the operator


def test_wrong_shares_are_refused():
    """More than all rows, none, or a part without a row."""
    rows = synthetic_rows(10, seed=1)
    for shares in ((), (0.6, 0.6), (0.5, 0.0), (0.5, -0.1)):
        with pytest.raises(rc.InputError, match="shares must be"):
            rc.split_rows(rows, *shares)
    with pytest.raises(rc.InputError, match="too few for 2 parts"):
        rc.split_rows(rows, 0.01, 0.9)
