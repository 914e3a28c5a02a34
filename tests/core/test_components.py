"""Components of embeddings: directions of largest variance, the same for a query in every batch."""

from __future__ import annotations

import numpy as np
import pytest

from racer_core.encoder.base import unit_rows
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.components import COMPONENTS, principal_components, projected


def test_the_components_are_those_of_the_covariance() -> None:
    """Orthonormal, with the largest variances, as a singular value decomposition gives them."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((300, 40)) * np.linspace(3, 0.1, 40)).astype(np.float32)
    components = principal_components(rows)
    assert components is not None
    assert components.shape == (40, COMPONENTS)
    assert components.T @ components == pytest.approx(np.eye(COMPONENTS), abs=1e-4)
    expected = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:COMPONENTS]
    assert np.abs(np.einsum("dk,kd->k", components, expected)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("rows", "count"), [(1, None), (2, 1), (4, 3)])
def test_few_rows_have_few_components(rows: int, count: int | None) -> None:
    """A single row has no direction; n rows have n - 1."""
    found = principal_components(np.random.default_rng(1).random((rows, 20)).astype(np.float32))
    assert (None if found is None else found.shape[1]) == count


def test_a_query_has_the_same_projection_in_every_batch() -> None:
    """Alone and among others: the values are on a grid."""
    texts = [f"query {i} about {'sums' if i % 2 else 'poems'}" for i in range(60)]
    encoder = CharNgramEncoder()
    embeddings = encoder.encode(texts).embeddings
    components = principal_components(embeddings)
    assert components is not None
    together = projected(embeddings, components)
    alone = [projected(unit_rows(row[None]), components)[0] for row in embeddings]
    assert together == pytest.approx(np.array(alone), abs=2e-4)
    odd = np.arange(60) % 2 == 1
    gap = np.abs(together[odd].mean(axis=0) - together[~odd].mean(axis=0)).max()
    assert gap > 3.0 * together[odd].std(axis=0).max() / np.sqrt(30)
