"""The encoder without weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.encoder.base import unit_rows
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.components import COMPONENTS, principal_components, projected

# Blank queries are refused before they are embedded.
words = st.text(max_size=30).filter(lambda text: text.strip())
texts = st.lists(words, min_size=1, max_size=5)


def cosine(first, second):
    """Cosine of two texts' embeddings, which have length 1."""
    one, other = CharNgramEncoder().encode([first, second]).embeddings
    return float(one @ other)


@given(batch=texts)
def test_rows_have_length_one_and_do_not_depend_on_the_batch(batch):
    """Bit for bit: the same text, the same row, in another batch and another instance."""
    encoded = CharNgramEncoder().encode(batch)
    assert encoded.embeddings.shape == (len(batch), 4096)
    assert encoded.embeddings.dtype == np.float32
    lengths = np.linalg.norm(encoded.embeddings, axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-5)
    for row, text in zip(encoded.embeddings, batch, strict=True):
        np.testing.assert_array_equal(row, CharNgramEncoder().encode([text]).embeddings[0])


def test_similar_spelling_is_near_and_case_and_space_do_not_count():
    """All that this encoder promises."""
    assert cosine("What is 2 + 2?", "  what IS 2 +\n2?") == pytest.approx(1.0, abs=1e-6)
    assert cosine("What is 2 plus 2?", "What is 3 plus 2?") > 0.7
    assert abs(cosine("What is 2 plus 2?", "Translate the dog")) < 0.3


def test_embeddings_are_the_same_on_every_machine():
    """An artifact trained elsewhere still fits: no process-wide hash seed may enter."""
    row = CharNgramEncoder().encode(["racer"]).embeddings[0]
    assert np.flatnonzero(row).size == 6 + 5 + 4  # 2-, 3- and 4-grams of " racer "
    assert np.flatnonzero(row)[:3].tolist() == [921, 1352, 1414]


def test_texts_beyond_the_limit_are_cut_and_reported():
    """2,048 characters; what follows changes nothing but the report."""
    whole, cut = "x y" * 682 + "zz", "x y" * 682 + "zz and more"
    assert len(whole) == 2_048
    encoded = CharNgramEncoder().encode([whole, cut, "short"])
    assert encoded.truncated.tolist() == [False, True, False]
    np.testing.assert_array_equal(encoded.embeddings[0], encoded.embeddings[1])


def test_text_that_begins_with_more_space_than_is_read_has_a_zero_embedding():
    """2,048 blanks and then a word: no division by zero, and no NaN in a similarity."""
    encoded = CharNgramEncoder().encode([" " * 2_048 + "word"])
    assert encoded.truncated.tolist() == [True]
    assert not encoded.embeddings.any()


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
