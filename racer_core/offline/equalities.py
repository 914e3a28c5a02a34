"""Votes of recorded answers under every equality that the answers allow.

An equality is allowed if it reads nearly all answers that are there: letters of choices, numbers,
JSON, mathematics. Sentences are always allowed, and exact texts. What an equality is worth is how
often the vote that it counts is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.vote import Method
from racer_core.offline.protocol import Rows
from racer_core.offline.standard_errors import standard_error_of_mean
from racer_core.offline.votes import Votes
from racer_core.types import BoolArray, FloatArray, LabelledRow, any_column

MIN_READABLE: Final = 0.9  # share of the answers
# What takes long is tried less often, where it is not configured.
MIN_FORMULAS: Final = 0.1  # share of the answers with LaTeX: for mathematics
MAX_EMBEDDED: Final = 5_000  # answers: for meanings
# In the order in which equal ones are taken: the more special one first.
_COMPARED: Final = (
    Equality.CHOICE,
    Equality.NUMBER,
    Equality.JSON,
    Equality.MATH,
    Equality.TEXT,
    Equality.AUTO,
    Equality.EXACT,
    Equality.SEMANTIC,
)


@dataclass(frozen=True, kw_only=True)
class RuledAnswers:
    """Recorded answers under one rule.

    Attributes:
        rule: The rule.
        answers: Which of the answers are the same.
        readable: The share of all answers that the rule reads.
    """

    rule: AnswerRule
    answers: RowAnswers
    readable: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityTrial:
    """The majority vote of all candidates under one equality.

    Attributes:
        equality: The equality.
        readable: The share of all answers that it reads.
        agreement: The share of rows in which two candidates give the same answer.
        accuracy: The share of rows whose voted answer is right.
        se: Standard error of the accuracy, over rows or clusters of rows.
    """

    equality: Equality
    readable: float
    agreement: float
    accuracy: float
    se: float


def allowed(
    rows: Sequence[LabelledRow], pool: Sequence[str], configured: AnswerRule
) -> list[RuledAnswers]:
    """The answers under the configured rule, then under every other one that they allow.

    A rule that makes no difference to one before it is left out.

    Args:
        rows: Rows with recorded answers.
        pool: The candidates, in the order of the columns.
        configured: The rule in force; it has the encoder and the mathematics that others may take.
    """
    given = sum(text is not None for row in rows for text in row.answers.values())
    others = (each for each in _COMPARED if each is not configured.equality)
    found: list[RuledAnswers] = []
    for equality in (configured.equality, *others):
        if found and not _can_be_tried(equality, configured, rows):
            continue
        rule = replace(configured, equality=equality)
        answers = RowAnswers.of(rows, pool, rule)
        readable = int(np.count_nonzero(answers.classes >= 0)) / max(given, 1)
        is_read = equality in (Equality.TEXT, Equality.EXACT, Equality.AUTO, Equality.SEMANTIC)
        is_new = not any(_are_alike(answers, each.answers) for each in found)
        if not found or ((is_read or readable >= MIN_READABLE) and is_new):
            found.append(RuledAnswers(rule=rule, answers=answers, readable=readable))
    return found


def _can_be_tried(equality: Equality, configured: AnswerRule, rows: Sequence[LabelledRow]) -> bool:
    """Whether there is what an equality needs, and it does not take too long."""
    texts = [text for row in rows for text in row.answers.values() if text is not None]
    if equality is Equality.SEMANTIC:
        return configured.embed is not None and len(texts) <= MAX_EMBEDDED
    if equality is Equality.MATH:
        formulas = sum("\\" in text or "^" in text for text in texts)
        return configured.math_forms is not None and formulas >= MIN_FORMULAS * len(texts)
    return True


def compare_equalities(
    ruled: Sequence[RuledAnswers], pool: tuple[str, ...], labels: BoolArray, units: Rows
) -> tuple[EqualityTrial, ...]:
    """The majority vote of all candidates under each rule, the configured one first.

    Args:
        ruled: As :func:`allowed` gives them.
        pool: The candidates; ties go to the one that is right most often, then to the first name.
        labels: Whether each answer is right, shape (n, K).
        units: The cluster of each row, shape (n,).
    """
    scores: FloatArray = np.broadcast_to(labels.mean(axis=0), labels.shape)
    everyone = np.ones(labels.shape, dtype=bool)
    found: list[EqualityTrial] = []
    for each in ruled:
        votes = Votes(pool=pool, labels=labels, scores=scores, answers=each.answers, stacked=None)
        right = votes.right(Method.MAJORITY, everyone, 1.0).astype(np.float64)
        found.append(
            EqualityTrial(
                equality=each.rule.equality,
                readable=each.readable,
                agreement=_agreement(each.answers),
                accuracy=float(right.mean()),
                se=standard_error_of_mean(right, units),
            )
        )
    return tuple(found)


def _agreement(answers: RowAnswers) -> float:
    """The share of rows in which two candidates give the same readable answer."""
    classes = answers.classes
    same = (classes[:, :, None] == classes[:, None, :]) & (classes >= 0)[:, :, None]
    return float(any_column(same.sum(axis=2) > 1).mean())


def _are_alike(one: RowAnswers, other: RowAnswers) -> bool:
    """Whether two rules find the same answers equal."""
    return np.array_equal(_relation(one), _relation(other))


def _relation(answers: RowAnswers) -> BoolArray:
    readable = answers.classes >= 0
    if answers.equal is None:
        same = answers.classes[:, :, None] == answers.classes[:, None, :]
    else:
        same = answers.equal
    return np.asarray(same & readable[:, :, None] & readable[:, None, :], dtype=bool)
