"""The equality of sentences on answers that people judged: Natural Questions, if they are there.

The set lies beside the repository and is no part of it. `benchmarks/text_equality.py` has all
figures.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers, compared_answers
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.vote import Method
from racer_core.aggregation.wording import SHIPPED, Wording
from racer_core.offline.votes import Votes
from racer_core.offline.wordings import area_under_curve
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows

FILE = Path(__file__).parents[3] / "shared" / "data" / "qa_nq" / "qa_nq.jsonl.gz"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="the questions are not beside the repository"),
]


@pytest.fixture(scope="module")
def rows() -> LabelledRows:
    """3,015 questions with sentences of five systems."""
    return read_rows(FILE)


def test_shared_words_tell_right_pairs_from_others(rows: LabelledRows) -> None:
    """Measured: .824; .816 where stop words count, too."""
    labels, evidence, both = rows.labels(), [], []
    compared = compared_answers(rows.rows, rows.pool, AnswerRule(equality=Equality.TEXT))
    for right, answers in zip(labels, compared, strict=True):
        for (i, one), (j, other) in combinations(enumerate(answers), 2):
            if isinstance(one, Wording) and isinstance(other, Wording) and (right[i] or right[j]):
                evidence.append(SHIPPED.evidence(one, other))
                both.append(right[i] and right[j])
    assert area_under_curve(np.array(evidence), np.array(both)) > 0.82


def test_the_vote_of_five_is_better_than_that_of_exact_texts(rows: LabelledRows) -> None:
    """Measured: 81.9 and 80.0 %, ties by how often each system is right."""
    labels = rows.labels()
    scores = np.broadcast_to(labels.mean(axis=0), labels.shape)

    def right(equality: Equality) -> float:
        answers = RowAnswers.of(rows.rows, rows.pool, AnswerRule(equality=equality))
        votes = Votes(pool=rows.pool, labels=labels, scores=scores, answers=answers, stacked=None)
        return float(votes.right(Method.MAJORITY, np.ones_like(labels), 1.0).mean())

    assert right(Equality.TEXT) > right(Equality.EXACT) + 0.01
