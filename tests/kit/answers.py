"""Recorded answers, numbered as votes see them."""

from __future__ import annotations

from collections.abc import Sequence

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.leaders import ClassArray
from racer_core.aggregation.reasoning import REASONING, ReasoningFilter
from racer_core.aggregation.rule import AnswerRule
from racer_core.types import LabelledRow


def answer_classes(
    answers: Sequence[Sequence[str | None]],
    equality: Equality,
    reasoning: ReasoningFilter = REASONING,
) -> ClassArray:
    """Number the distinct answers of each row; -1 where none can be read. Shape (n, K)."""
    return row_answers(answers, equality, reasoning).classes


def row_answers(
    answers: Sequence[Sequence[str | None]],
    equality: Equality,
    reasoning: ReasoningFilter = REASONING,
) -> RowAnswers:
    """Which of the answers of each row are the same; the questions are empty."""
    pool = [f"{column}" for column in range(len(answers[0]) if answers else 0)]
    rows = [
        LabelledRow(query="", correct=frozenset(), answers=dict(zip(pool, each, strict=True)))
        for each in answers
    ]
    rule = AnswerRule(equality=equality, reasoning=reasoning)
    return RowAnswers.of(rows, pool, rule)
