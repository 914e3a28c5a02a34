"""Near copies of training rows: found by embedding where a keyed hash sees another query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.records.conversation import fingerprint
from racer_core.records.near_copies import count_near_copies
from racer_core.routers.base import Batch
from racer_core.routers.inverted_file import build_inverted_file
from racer_core.routers.knn import KnnRouter
from racer_core.routers.neighbours import ExactSearch
from racer_core.types import LabelledRow, LabelledRows

TRAINING = [
    f"{name} has {i + 3} {fruit} and buys {i + 7} more at the market. How many {fruit} are left?"
    for i, (name, fruit) in enumerate(
        (name, fruit) for name in ("Anna", "Boris", "Clara") for fruit in ("apples", "plums")
    )
]
OTHERS = [
    "What is the boiling point of water on a high mountain?",
    "Translate the word for river into Spanish.",
    "Sort these four numbers: 8, 3, 5 and 1.",
]


def similarity(texts: list[str]) -> np.ndarray:
    """The cosines that a KNN router reports."""
    encoder = CharNgramEncoder()
    labels = np.ones((len(TRAINING), 2), bool)
    router = KnnRouter.fit(encoder.encode(TRAINING).embeddings, labels)
    found = router.predict(Batch(texts, encoder)).similarity
    assert found is not None
    return found


def test_a_changed_number_is_a_near_copy() -> None:
    """Its keyed hash differs; unrelated queries are none."""
    copy = TRAINING[2].replace("buys 9", "buys 8")
    assert copy != TRAINING[2]
    assert fingerprint("salt", copy) != fingerprint("salt", TRAINING[2])
    assert count_near_copies(similarity([copy, *OTHERS])) == 1
    assert count_near_copies(similarity(OTHERS)) == 0


@pytest.mark.parametrize(("near", "count"), [(0, 0), (4, 4), (5, None), (10, None)])
def test_near_copies_are_not_reported_if_half_of_the_rows_are_near(
    near: int, count: int | None
) -> None:
    """Some encoders put every text near every other."""
    values = np.array([0.99] * near + [0.5] * (10 - near))
    assert count_near_copies(values) == count


def rows(texts: list[str]) -> LabelledRows:
    """Rows that the first of two candidates answers right."""
    labelled = [LabelledRow(query=text, correct=frozenset({"one"})) for text in texts]
    return LabelledRows(pool=("one", "two"), rows=tuple(labelled))


@pytest.mark.parametrize(("kind", "count"), [("knn", 1), ("mlp", None)])
def test_training_counts_near_copies_among_validation_rows(
    tmp_path: Path, kind: str, count: int | None
) -> None:
    """A file that was divided at random has them; MLP keeps no training rows to compare with."""
    copy = TRAINING[2].replace("buys 9", "buys 8")
    artifact = train(
        rows(TRAINING), rows([copy, *OTHERS]), tmp_path, encoder=CharNgramEncoder(), kind=kind
    )
    assert artifact.validation_copies == count


def test_the_inverted_file_reports_the_cosines_of_the_exact_search() -> None:
    """Rows stand in another order there."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = rows[:20].astype(np.float64)
    index = build_inverted_file(rows, 10)
    for chosen in (np.arange(20), np.arange(380, 400)):
        exact = ExactSearch(rows).similarity(queries, chosen)
        assert index.similarity(queries, chosen) == pytest.approx(exact, abs=1e-6)
    assert ExactSearch(rows).similarity(queries, np.arange(20)) == pytest.approx(1.0, abs=1e-5)
