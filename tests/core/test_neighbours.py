"""Search: sparse is exact, approximate is exact where it looks; damaged rows are refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core import artifacts
from racer_core.encoder.base import unit_rows
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.routers.base import Batch
from racer_core.routers.inverted_file import InvertedFile, build_inverted_file, fewest_probes
from racer_core.routers.knn import EXACT_BELOW, KnnRouter
from racer_core.routers.neighbours import ExactSearch
from racer_core.routers.sparse_search import SparseSearch
from tests.kit.synthetic import POOL, synthetic_rows

COUNTS = (10, 50)


def clustered(seed, rows, centres=60, width=24, noise=0.5):
    """Unit vectors around centres that depend on no seed."""
    middle = unit_rows(np.random.default_rng(0).standard_normal((centres, width)))
    rng = np.random.default_rng(seed)
    spread = noise / np.sqrt(width) * rng.standard_normal((rows, width))
    return unit_rows((middle[rng.integers(0, centres, rows)] + spread).astype(np.float32))


@pytest.fixture(scope="module")
def lists():
    """Lists of 5,000 rows."""
    return build_inverted_file(clustered(1, 5_000), max(COUNTS))


def in_order(lists):
    """The rows of lists as they came."""
    rows = np.empty_like(lists.embeddings)
    rows[lists.rows] = lists.embeddings
    return rows


def probing(lists, probes):
    """The same lists, a given number of them probed for any number of neighbours."""
    return replace(lists, probes=np.array([probes]))


@st.composite
def worlds(draw):
    """Rows on a coarse lattice, so that many are equally near, and queries among them."""
    width = draw(st.integers(2, 4))
    vectors = st.lists(st.integers(-2, 2), min_size=width, max_size=width).filter(any)
    rows = draw(st.lists(vectors, min_size=4, max_size=60))
    queries = draw(st.lists(vectors, min_size=1, max_size=4))
    made = (unit_rows(np.array(each, np.float32)) for each in (rows, queries))
    return next(made), next(made), draw(st.integers(1, len(rows)))


@given(world=worlds(), seed=st.integers(0, 9))
def test_probing_all_lists_is_exact_search(world, seed):
    """The same rows in the same order, ties included. Red when lists lose rows."""
    rows, queries, reach = world
    lists = build_inverted_file(rows, reach, seed)
    np.testing.assert_array_equal(in_order(lists), rows)
    everywhere = probing(lists, len(lists.sizes))
    queries64 = queries.astype(np.float64)
    np.testing.assert_array_equal(
        everywhere.nearest(queries64, reach), ExactSearch(rows).nearest(queries64, reach)
    )


@given(world=worlds(), seed=st.integers(0, 9), data=st.data())
def test_results_are_the_nearest_rows_of_the_probed_lists(world, seed, data):
    """Whatever is probed: ``reach`` different rows, no nearer one in the lists of those found."""
    rows, queries, reach = world
    lists = build_inverted_file(rows, reach, seed)
    lists = probing(lists, data.draw(st.integers(1, len(lists.sizes))))
    owner = np.empty(len(rows), int)
    owner[lists.rows] = np.repeat(np.arange(len(lists.sizes)), lists.sizes)
    for query, found in zip(queries, lists.nearest(queries.astype(float), reach), strict=True):
        assert len(set(found.tolist())) == reach
        exact = np.round(rows.astype(float) @ query.astype(float), 6)
        ranked = [(-exact[row], row) for row in found]
        assert ranked == sorted(ranked)
        missed = np.setdiff1d(np.flatnonzero(np.isin(owner, owner[found])), found)
        assert all((-exact[row], row) > ranked[-1] for row in missed)


def test_recall_is_what_was_aimed_at_and_what_is_stored(lists):
    """On queries of their own: 0.99 of those that vote, and of those that are reported."""
    queries = clustered(2, 1_000).astype(np.float64)
    found = lists.nearest(queries, max(COUNTS))
    exact = ExactSearch(in_order(lists)).nearest(queries, max(COUNTS))
    for count in COUNTS:
        pairs = zip(found[:, :count], exact[:, :count], strict=True)
        recall = np.mean([np.isin(true, seen).mean() for seen, true in pairs])
        assert recall >= 0.99
        # 500 held-out rows chose the probes: their mean is off by a few thousandths.
        assert recall == pytest.approx(lists.recall, abs=0.01)
    assert lists.recall >= 0.995
    assert lists.probes.max() < len(lists.sizes) / 4  # or it would be no search in lists


def test_a_larger_k_finds_no_fewer_of_the_nearest():
    """By hand: the nearest of one query in a hundred is in the fourth list, all else in the first.

    0.995 of the nearest need four lists; of the three nearest 0.9967 are in the first one.
    """
    places = np.zeros((1_000, 3), int)
    places[:10, 0] = 3
    probes, recall = fewest_probes(places)
    assert probes.tolist() == [4, 4, 4]
    assert recall == 1.0
    assert fewest_probes(places[:, 1:])[0].tolist() == [1, 1]


def test_lists_that_hold_too_few_rows_are_not_all_that_is_looked_at(lists):
    """One list has fewer than 400 rows: more are probed until there are enough."""
    one = probing(lists, 1)
    query = clustered(3, 1).astype(np.float64)
    assert lists.sizes.max() < 400
    for reach in (400, 5_000):
        assert len(set(one.nearest(query, reach)[0].tolist())) == reach


def test_neighbours_do_not_depend_on_the_batch(lists):
    """Alone, and among 300; in another order too."""
    queries = clustered(4, 300).astype(np.float64)
    together = lists.nearest(queries, 50)
    alone = np.vstack([lists.nearest(query[None], 50) for query in queries])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(lists.nearest(queries[::-1], 50), together[::-1])


# Sparse rows ------------------------------------------------------------------------------------


def sparse_rows(seed, count, width=40):
    """Few entries of few values, so that many rows are equally near; some rows have none at all."""
    rng = np.random.default_rng(seed)
    chances = np.geomspace(0.9, 0.02, width)  # columns of every frequency, some of them empty
    entries = rng.integers(-2, 3, (count, width)) * (rng.random((count, width)) < chances)
    return unit_rows(entries.astype(np.float32))


@given(seed=st.integers(0, 10**6), count=st.integers(1, 80), data=st.data())
def test_sparse_search_is_exact_search(seed, count, data):
    """The same rows in the same order, ties included; also for queries that are not sparse."""
    rows, reach = sparse_rows(seed, count), data.draw(st.integers(1, count))
    dense = unit_rows(np.random.default_rng(seed).standard_normal((2, 40)).astype(np.float32))
    queries = np.concatenate([sparse_rows(seed + 1, 6), dense]).astype(np.float64)
    exact, sparse = ExactSearch(rows), SparseSearch.of(rows)
    nearest = exact.nearest(queries, reach)
    np.testing.assert_array_equal(sparse.nearest(queries, reach), nearest)
    np.testing.assert_allclose(
        sparse.similarity(queries, nearest[:, 0]),
        exact.similarity(queries, nearest[:, 0]),
        atol=1e-12,
    )


def test_queries_of_another_width_are_refused():
    """A narrower query must not be compared with the first columns, nor a wider one be cut."""
    for width in (39, 41):
        with pytest.raises(ValueError, match=f"{width} columns"):
            SparseSearch.of(sparse_rows(0, 9)).nearest(np.ones((1, width)), 2)


SPARSE_DAMAGE = {
    "sizes that do not add up": ("sparse_sizes", lambda sizes: changed(sizes, 0, sizes[0] + 1)),
    "a negative size": ("sparse_sizes", lambda sizes: moved(sizes, sizes[0] + 1)),
    "sizes are no whole numbers": ("sparse_sizes", lambda sizes: sizes.astype(np.float64)),
    "a column twice": ("sparse_columns", lambda columns: changed(columns, 1, columns[0])),
    "a negative column": ("sparse_columns", lambda columns: changed(columns, 0, -1)),
    "a column beyond the width": ("sparse_columns", lambda columns: changed(columns, -1, 40)),
    "an entry less": ("sparse_values", lambda values: values[:-1]),
    "an entry is no number": ("sparse_values", lambda values: changed(values, 3, np.nan)),
    "a width that is no number": ("width", lambda _: "40"),
}


@pytest.mark.parametrize("damage", SPARSE_DAMAGE)
def test_tensors_that_are_no_sparse_rows_are_refused(damage):
    """When they are loaded."""
    name, change = SPARSE_DAMAGE[damage]
    whole = SparseSearch.of(sparse_rows(0, 9))
    given = {**whole.tensors(), **whole.settings()}
    damaged = {**given, name: change(given[name])}
    SparseSearch.load(given, given)
    with pytest.raises(InputError):
        SparseSearch.load(damaged, damaged)


# In a router ------------------------------------------------------------------------------------


def router_of(rows, **options):
    """A KNN on character n-grams of synthetic rows."""
    embeddings = CharNgramEncoder().encode(rows.queries).embeddings
    return KnnRouter.fit(embeddings, rows.labels(POOL), k=5, reach=20, **options)


def test_below_the_limit_search_and_artifact_are_those_of_exact_search():
    """Not a tensor and not a setting more; lists from the limit on, which is 100,000 rows."""
    rows = synthetic_rows(80, seed=3)
    exact = router_of(rows, exact_below=81)
    assert isinstance(exact.index, SparseSearch)
    assert set(exact.tensors()) == {"labels", *exact.index.tensors()}
    assert exact.settings() == {"k": 5, "reach": 20, "width": 4096}
    dense = KnnRouter.fit(clustered(1, 80), rows.labels(POOL), k=5, reach=20, exact_below=81)
    assert isinstance(dense.index, ExactSearch)
    assert set(dense.tensors()) == {"embeddings", "labels"}
    assert dense.settings() == {"k": 5, "reach": 20}
    listed = router_of(rows, exact_below=80)
    assert isinstance(listed.index, InvertedFile)
    assert "embeddings" not in listed.tensors()  # who does not know lists takes no rows for others
    assert EXACT_BELOW == 100_000


READ_AND_PREDICT = """
import hashlib, sys
from racer_core import artifacts
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.routers.base import Batch
output = artifacts.load(sys.argv[1]).router.predict(Batch(sys.argv[2:], CharNgramEncoder()))
print(hashlib.sha256(output.scores.tobytes() + output.neighbours.tobytes()).hexdigest())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_artifact_with_lists_gives_the_same_scores_in_another_process(
    router_folder, tmp_path, threads
):
    """Whatever the threads: calibration and serving may not differ."""
    artifact = artifacts.load(router_folder)
    router = router_of(synthetic_rows(600, seed=3), exact_below=1)
    artifacts.save(replace(artifact, router=router), tmp_path / "listed")
    queries = synthetic_rows(40, seed=4).queries
    output = router.predict(Batch(queries, CharNgramEncoder()))
    again = subprocess.run(
        [sys.executable, "-c", READ_AND_PREDICT, str(tmp_path / "listed"), *queries],
        env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    expected = hashlib.sha256(output.scores.tobytes() + output.neighbours.tobytes())
    assert again.stdout.strip() == expected.hexdigest()


# Hostile artifacts ------------------------------------------------------------------------------


def changed(tensor, place, value):
    """A copy with one value changed."""
    copy = tensor.copy()
    copy[place] = value
    return copy


def moved(sizes, count):
    """Rows of the first list counted in the second one: their sum stays."""
    return changed(sizes, [0, 1], [sizes[0] - count, sizes[1] + count])


DAMAGE = {
    "a row twice": ("listed_rows", lambda rows: changed(rows, 0, rows[1])),
    "a row that is not there": ("listed_rows", lambda rows: changed(rows, 0, 10**12)),
    "a negative row": ("listed_rows", lambda rows: changed(rows, 0, -1)),
    "rows are 2-D": ("listed_rows", lambda rows: rows[None]),
    "a row less": ("listed_rows", lambda rows: rows[:-1]),
    "an empty list": ("list_sizes", lambda sizes: moved(sizes, sizes[0])),
    "a list more": ("list_sizes", lambda sizes: np.append(sizes, 1)),
    "sizes that wrap": ("list_sizes", lambda sizes: changed(sizes, range(4), sizes[:4] + 2**62)),
    "a list too long": ("list_sizes", lambda sizes: changed(sizes, 0, sizes[0] + 1)),
    "sizes are no whole numbers": ("list_sizes", lambda sizes: sizes.astype(np.float64)),
    "a centre is no number": ("list_centres", lambda rows: changed(rows, (0, 0), np.nan)),
    "a centre too long": ("list_centres", lambda rows: changed(rows, 0, 10.0)),
    "narrower centres": ("list_centres", lambda rows: rows[:, :-1].copy()),
    "a row is no number": ("listed_embeddings", lambda rows: changed(rows, (3, 0), np.nan)),
    "an embedding less": ("listed_embeddings", lambda rows: rows[:-1]),
    "no probes": ("list_probes", lambda probes: probes[:0]),
    "probes of no list": ("list_probes", lambda probes: changed(probes, 0, 0)),
    "probes of more lists than there are": ("list_probes", lambda probes: changed(probes, 0, 99)),
    "labels are of fewer rows": ("labels", lambda labels: labels[:-1]),
}


@pytest.fixture(scope="module")
def saved():
    """Tensors and settings of a router with lists."""
    router = router_of(synthetic_rows(80, seed=3), exact_below=1)
    return dict(router.tensors()), dict(router.settings())


@pytest.mark.parametrize("damage", DAMAGE)
def test_tensors_that_are_no_lists_are_refused(saved, damage):
    """When it is loaded: at a request each of these would raise, mislead or read another's row."""
    tensors, settings = saved
    name, change = DAMAGE[damage]
    with pytest.raises(InputError):
        KnnRouter.load({**tensors, name: change(tensors[name])}, settings)


def test_a_missing_tensor_or_setting_is_named(saved):
    """And no rows of lists are taken for rows in their order."""
    tensors, settings = saved
    for name in tensors:
        missed = "embeddings" if name == "list_sizes" else name
        with pytest.raises(KeyError, match=missed):
            KnnRouter.load({key: tensors[key] for key in tensors if key != name}, settings)
    with pytest.raises(KeyError, match="recall"):
        KnnRouter.load(tensors, {"k": 5, "reach": 20})
    for recall in (-0.1, 1.1, float("nan"), "high", None):
        with pytest.raises(InputError, match="recall"):
            KnnRouter.load(tensors, {**settings, "recall": recall})
