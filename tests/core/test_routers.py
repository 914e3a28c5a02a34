"""KNN by hand on a plane, MLP on separable data."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.routers.base import Batch
from racer_core.routers.knn import KnnRouter
from racer_core.routers.mlp import MlpRouter
from tests.core.coordinates import Coordinates, scores_at
from tests.kit.lazy import LazyModule

torch = LazyModule("torch")


def random_batch(seed, rows, width):
    """Random directions; no two are equally near to a third."""
    vectors = np.random.default_rng(seed).standard_normal((rows, width))
    return Batch([" ".join(map(str, row)) for row in vectors], Coordinates())


EAST_NORTH_WEST = np.array([[1, 0], [0, 1], [-1, 0]], dtype=np.float32)
LABELS = np.array([[True, True], [False, True], [False, False]])


def test_knn_by_hand():
    """The share of the k nearest rows that a candidate answered right; length does not count."""
    nearest = KnnRouter.fit(EAST_NORTH_WEST, LABELS, k=1)
    assert scores_at(nearest, (5, 1), (1, 5), (-1, 0.1)) == [[1, 1], [0, 1], [0, 0]]
    two = KnnRouter.fit(EAST_NORTH_WEST, LABELS, k=2)
    assert scores_at(two, (2, 1), (-2, 1)) == [[0.5, 1], [0, 0.5]]


def test_knn_neighbours_closer_than_the_grid_tie_and_the_earlier_row_counts():
    """By hand: the query is the second row, the first is 1e-8 farther; k = 1 counts one of them."""
    near = np.array([[1, 0], [1, 1e-4], [1, 2e-4]], dtype=np.float32)
    router = KnnRouter.fit(near, np.eye(3, dtype=bool), k=1)
    assert scores_at(router, (1, 1e-4)) == [[1, 0, 0]]
    assert scores_at(replace(router, k=2), (1, 2e-4)) == [[0.5, 0.5, 0]]


def test_mlp_by_hand():
    """sigmoid(relu(x W1' + b1) W2' + b2) with the identity inside; no overflow at +-1e6."""
    identity = np.eye(2, dtype=np.float32)
    bias = np.array([0.0, -0.5], dtype=np.float32)
    router = MlpRouter(identity, bias, 2 * identity, np.array([0.0, 1.0], dtype=np.float32))
    expected = [[1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))], [0.5, 1 / (1 + np.exp(-2))]]
    np.testing.assert_allclose(scores_at(router, (1, 0), (0, 1)), expected, rtol=1e-6)
    huge = np.array([[1e6], [-1e6]], dtype=np.float32)
    router = MlpRouter(np.ones((1, 2), np.float32), np.ones(1, np.float32), huge, huge[:, 0])
    assert scores_at(router, (1, 0)) == [[1.0, 0.0]]
    for kind in (KnnRouter, MlpRouter):
        with pytest.raises(InputError, match="no training rows"):
            kind.fit(np.zeros((0, 2), np.float32), np.zeros((0, 2), bool))


@pytest.fixture(scope="module")
def separable():
    """Candidate 0 is right in the east, candidate 1 in the west: the base rate is 0.5."""
    batch = random_batch(5, 300, 2)
    east = batch.encoded.embeddings[:, 0] > 0
    return batch, np.column_stack([east, ~east])


def fit(separable, **options):
    """A small, quick network."""
    batch, labels = separable
    options = {"hidden": 16, "epochs": 20, "learning_rate": 1e-2, **options}
    return MlpRouter.fit(batch.encoded.embeddings, labels, **options)


def test_mlp_beats_the_base_rate(separable):
    """Nine in ten right on new points, and its loss falls below ln 2."""
    losses = []
    router = fit(separable, progress=lambda epoch, loss: losses.append((epoch, loss)))
    fresh = random_batch(6, 500, 2)
    east = fresh.encoded.embeddings[:, 0] > 0
    scores = router.predict(fresh).scores
    assert np.mean((scores > 0.5) == np.column_stack([east, ~east])) > 0.9
    assert [epoch for epoch, _ in losses] == list(range(1, 21))
    assert losses[-1][1] < min(losses[0][1], np.log(2))


def test_mlp_is_a_function_of_its_seed(separable):
    """The weights do not depend on earlier draws, and the process's generator is not used."""
    torch.manual_seed(1)
    first, state = fit(separable, seed=7, epochs=2), torch.random.get_rng_state()
    torch.manual_seed(2)
    second, other = fit(separable, seed=7, epochs=2), fit(separable, seed=8, epochs=2)
    np.testing.assert_array_equal(first.output_weight, second.output_weight)
    assert not np.array_equal(first.output_weight, other.output_weight)
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_tensors_and_settings_rebuild_a_router(separable):
    """tensors() and settings() rebuild it; both count their candidates."""
    batch, labels = separable
    knn = KnnRouter.fit(batch.encoded.embeddings, labels, k=9, reach=30)
    for router in (knn, fit(separable, epochs=1)):
        again = type(router).load(router.tensors(), router.settings())
        assert again.columns == router.columns == 2
        before, after = router.predict(batch), again.predict(batch)
        np.testing.assert_array_equal(after.scores, before.scores)
        np.testing.assert_array_equal(after.neighbours, before.neighbours)


def test_knn_tells_the_patterns_of_a_wider_circle_nearest_first():
    """By hand: ids name the distinct rows of labels; k rows vote for the scores all the same."""
    labels = np.vstack([LABELS, LABELS[:1]])
    around = np.vstack([EAST_NORTH_WEST, [[0, -1]]]).astype(np.float32)
    router = KnnRouter.fit(around, labels, k=1, reach=4)
    patterns = PatternModel.of(labels)
    output = router.predict(Batch(["3 1", "-3 -1"], Coordinates()))
    expected = [labels[[0, 1, 3, 2]], labels[[2, 3, 1, 0]]]
    np.testing.assert_array_equal(patterns.patterns[output.neighbours], expected)
    assert output.scores.tolist() == [[1, 1], [0, 0]]


def test_knn_neighbours_are_those_of_a_plain_sort():
    """1,100 queries, in chunks; ties of the grid to the earlier row; the k nearest vote alike."""
    train, queries = random_batch(1, 200, 6), random_batch(2, 1_100, 6)
    labels = np.random.default_rng(3).random((200, 3)) < 0.5
    vectors = (each.encoded.embeddings.astype(np.float64) for each in (queries, train))
    similarity = np.round(np.matmul(next(vectors), next(vectors).T), 6)
    order = np.argsort(-similarity, axis=1, kind="stable")
    near = KnnRouter.fit(train.encoded.embeddings, labels, k=7, reach=7)
    for reach in (3, 7, 60, 200):
        router = near.reaching(reach)
        output = router.predict(queries)
        np.testing.assert_array_equal(output.neighbours, pattern_ids(labels)[order[:, :reach]])
        np.testing.assert_array_equal(output.scores, near.predict(queries).scores)


def test_knn_neighbours_do_not_depend_on_the_batch():
    """Ties among templates go to the earlier training row, alone and in a batch."""
    texts = [f"What is {a} plus {b}?" for a in range(10, 25) for b in range(10, 25)]
    encoder = CharNgramEncoder()
    labels = np.random.default_rng(4).random((len(texts), 3)) < 0.5
    router = KnnRouter.fit(encoder.encode(texts).embeddings, labels)
    queries = [f"What is {a} times {b}?" for a in range(10, 16) for b in range(10, 16)]
    together = router.predict(Batch(queries, encoder)).neighbours
    alone = np.vstack([router.predict(Batch([query], encoder)).neighbours for query in queries])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("k", "reach", "rows", "found"),
    [
        (40, 200, 500, (40, 200)),
        (40, 10, 500, (40, 10)),
        (40, 200, 60, (40, 60)),
        (9, 9, 5, (5, 5)),
    ],
)
def test_knn_reaches_no_farther_than_there_are_rows(k, reach, rows, found):
    """Neither for its scores nor for the patterns, whichever of both takes more neighbours."""
    vectors = random_batch(1, rows, 3).encoded.embeddings
    router = KnnRouter.fit(vectors, np.ones((rows, 2), bool), k=k, reach=reach)
    assert (router.k, router.reach) == found
