"""Fitting of the equality of sentences: when two answers of labelled rows are both right.

Pairs of answers to one question, at least one of which is right, teach how much an overlap of
content words, a conflict of numbers, and the lengths say: two right answers are the same answer, a
right one and a wrong one are not. Two wrong ones teach nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import compared_answers
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.wording import SHIPPED, TextRule, Wording, features
from racer_core.offline.one_thread import one_thread
from racer_core.offline.protocol import Rows
from racer_core.sequential.stacked import LogisticScore
from racer_core.types import BoolArray, FloatArray, LabelledRow

MIN_PAIRS: Final = 100  # of both right answers, and of others
SURE: Final = 0.7  # chance from which two answers count as the same
_FOLDS: Final = 5


def fit_text_rule(
    rows: Sequence[LabelledRow],
    labels: BoolArray,
    pool: Sequence[str],
    rule: AnswerRule,
    units: Rows,
) -> TextRule | None:
    """The rule that fits labelled answers, if it ranks pairs better than the shipped one.

    Each fifth of the rows is ranked by a rule of the others. The rule is taken if all five rank
    better by it: without a difference that has a chance of 1/32.

    Args:
        rows: Rows with recorded answers.
        labels: Whether each answer is right, shape (n, K), in the order of ``pool``.
        pool: The candidates.
        rule: How the answers are compared; only what it compares as ``text`` teaches.
        units: The unit of each row, shape (n,), numbered from 0: no unit is in two folds.

    Returns:
        None if the shipped rule stays: too few pairs, or no better.
    """
    if rule.equality not in (Equality.TEXT, Equality.AUTO):
        return None
    numbers: list[int] = []
    found: list[tuple[float, ...]] = []
    both: list[bool] = []
    for number, answers in enumerate(compared_answers(rows, pool, rule)):
        for (i, one), (j, other) in combinations(enumerate(answers), 2):
            if (
                isinstance(one, Wording)
                and isinstance(other, Wording)
                and one.form != other.form
                and (labels[number, i] or labels[number, j])
            ):
                numbers.append(number)
                found.append(features(one, other)[1:])
                both.append(bool(labels[number, i] and labels[number, j]))
    right = np.array(both, dtype=bool)
    if min(np.count_nonzero(right), np.count_nonzero(~right)) < MIN_PAIRS:
        return None
    pairs, fold = np.array(found), (units % _FOLDS)[numbers]
    with one_thread():
        is_better = all(_is_better(pairs, right, fold == each) for each in range(_FOLDS))
        return _rule(LogisticScore.fit(pairs, right)) if is_better else None


def _is_better(pairs: FloatArray, right: BoolArray, held_out: BoolArray) -> bool:
    """Whether a rule of the other pairs ranks these better than the shipped rule."""
    if right[held_out].all() or not right[held_out].any() or held_out.all():
        return False
    fitted = LogisticScore.fit(pairs[~held_out], right[~held_out]).chance(pairs[held_out])
    shipped = pairs[held_out] @ np.array(SHIPPED.weights[1:])
    of = right[held_out]
    return area_under_curve(fitted, of) > area_under_curve(shipped, of)


def _rule(score: LogisticScore) -> TextRule:
    """The rule by which two answers are the same from a chance of ``SURE``."""
    weights = score.weights[1:] / score.scale
    intercept = float(score.weights[0] - weights @ score.mean)
    return TextRule.of([intercept - math.log(SURE / (1.0 - SURE)), *weights.tolist()])


def area_under_curve(scores: FloatArray, right: BoolArray) -> float:
    """The chance that a right pair scores above another one; ties count half."""
    values, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2.0
    ones = int(np.count_nonzero(right))
    others = len(right) - ones
    total = float(ranks[places][right].sum())
    return (total - ones * (ones + 1) / 2.0) / (ones * others) if len(values) else 0.5
