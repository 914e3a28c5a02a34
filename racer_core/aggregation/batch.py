"""Vectorised votes for evaluation: :mod:`racer_core.aggregation.vote` for many queries at once.

Elects the same winner as ``aggregate`` in every row, at thousands of rows a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.leaders import UNREADABLE, ClassArray, led_classes
from racer_core.aggregation.rule import AnswerRule, Compared, equality_of
from racer_core.aggregation.semantic import Meaning
from racer_core.types import BoolArray, FloatArray, LabelledRow

_TIE = 1e-12  # sums of floats that differ by less are the same vote


@dataclass(frozen=True, kw_only=True)
class RowAnswers:
    """Which recorded answers of each row are the same.

    Attributes:
        classes: The number of each answer among the distinct ones of its row, along the pool; -1
            where none can be read. Shape (n, K).
        equal: Whether two answers of a row are equal, shape (n, K, K), symmetric; None: those of
            one class are. An equality that is not transitive has classes along an order only.
    """

    classes: ClassArray
    equal: BoolArray | None = None

    @classmethod
    def of(cls, rows: Iterable[LabelledRow], pool: Sequence[str], rule: AnswerRule) -> Self:
        """Compare the recorded answers of rows; tool calls are compared as such.

        Args:
            rows: The rows.
            pool: The candidates, in the order of the columns.
            rule: When two answers are the same.
        """
        compared = compared_answers(list(rows), pool, rule)
        if not rule.equality.is_pairwise:
            return cls(classes=_numbered(compared, len(pool)))
        equal = np.zeros((len(compared), len(pool), len(pool)), dtype=bool)
        equal[:] = np.eye(len(pool), dtype=bool)
        for same, row in zip(equal, compared, strict=True):
            for column, one in enumerate(row):
                for before, other in enumerate(row[:column]):
                    if one is not None and other is not None and rule.are_same(one, other):
                        same[column, before] = same[before, column] = True
        cells = [each is not None for row in compared for each in row]
        readable = np.array(cells, dtype=bool).reshape(len(compared), len(pool))
        return cls.along_pool(equal, readable)

    @classmethod
    def along_pool(cls, equal: BoolArray, readable: BoolArray) -> Self:
        """Answers that were compared two by two, (n, K, K), those that can be read, (n, K)."""
        columns = range(readable.shape[1])
        return cls(classes=led_classes(equal, readable, columns), equal=equal)

    def __len__(self) -> int:
        return len(self.classes)

    def at(self, rows: NDArray[Any]) -> RowAnswers:
        """Some of the rows."""
        return RowAnswers(
            classes=self.classes[rows], equal=None if self.equal is None else self.equal[rows]
        )

    def of_columns(self, columns: Sequence[int]) -> RowAnswers:
        """The same of some candidates, in another order."""
        if self.equal is None:
            return RowAnswers(classes=self.classes[:, columns])
        equal = self.equal[:, columns][:, :, columns]
        return RowAnswers.along_pool(equal, self.classes[:, columns] != UNREADABLE)

    def voted(self, selected: BoolArray, scores: FloatArray, by_name: Sequence[int]) -> ClassArray:
        """The classes of a vote among sets (n, K): along the router scores, then the names.

        Args:
            selected: The sets.
            scores: Router scores, shape (n, K).
            by_name: The columns in the order of the candidates' names.
        """
        if self.equal is None:
            return np.where(selected, self.classes, np.int16(UNREADABLE))
        named = np.array(by_name)
        order = named[np.argsort(-scores[:, named], axis=1, kind="stable")]
        return led_classes(self.equal, selected & (self.classes != UNREADABLE), order)

    def same(self, selected: BoolArray, scores: FloatArray, by_name: Sequence[int]) -> FloatArray:
        """:func:`agreement` of the votes of sets."""
        if self.equal is None:
            return self._agreement
        return agreement(self.voted(selected, scores, by_name))

    @cached_property
    def _agreement(self) -> FloatArray:
        return agreement(self.classes)


def compared_answers(
    rows: Sequence[LabelledRow], pool: Sequence[str], rule: AnswerRule
) -> list[list[Compared | None]]:
    """What every answer is compared by; None where it cannot be read.

    Without a record of its call, a list of calls is tool calls where the request has tools.
    """
    found: list[list[Compared | None]] = [[None] * len(pool) for _ in rows]
    waiting: dict[Equality, list[tuple[int, int, str]]] = {}
    for number, row in enumerate(rows):
        request = row.request or {}
        kind = equality_of(rule.equality, row.query, request)
        for column, name in enumerate(pool):
            text, record = row.answers.get(name), row.calls.get(name)
            if text is None:
                continue
            text = rule.reasoning.answer(text)
            is_unknown = not record and bool(request.get("tools") or request.get("functions"))
            if is_unknown or (record and "tool_calls" in record):
                calls = normalise(Equality.TOOL_CALL, text)
                found[number][column] = None if calls is None else Meaning(calls)
                if calls is not None or not is_unknown:
                    continue
            waiting.setdefault(kind, []).append((number, column, text))
    for kind, cells in waiting.items():
        texts = [text for _, _, text in cells]
        compared = rule.compared(kind, texts, [rows[number].query for number, *_ in cells])
        for (number, column, _), each in zip(cells, compared, strict=True):
            found[number][column] = each
    return found


def _numbered(compared: Sequence[Sequence[Compared | None]], columns: int) -> ClassArray:
    classes = np.full((len(compared), columns), UNREADABLE, dtype=np.int16)
    for row, given in zip(classes, compared, strict=True):
        numbers: dict[str, int] = {}
        for column, each in enumerate(given):
            if each is not None:
                row[column] = numbers.setdefault(each.form, len(numbers))
    return classes


def one_hot(classes: ClassArray) -> BoolArray:
    """The candidates that gave each answer: shape (n, K) to (n, C, K), with C = K answers."""
    numbers = np.arange(classes.shape[1], dtype=np.int16)[:, None]
    return np.asarray(classes[:, None, :] == numbers, dtype=bool)


def agreement(classes: ClassArray) -> FloatArray:
    """1 where two candidates gave the same readable answer, else 0. Shape (n, K, K)."""
    same = (classes[:, :, None] == classes[:, None, :]) & (classes >= 0)[:, :, None]
    return same.astype(np.float64)


def winners(
    same: FloatArray,
    selected: BoolArray,
    counts: FloatArray,
    scores: FloatArray,
    by_name: Sequence[int],
) -> NDArray[np.intp]:
    """The candidate whose answer is returned in each row, shape (n,).

    Args:
        same: :func:`agreement` of the rows, shape (n, K, K).
        selected: The sets, shape (n, K); a row of an empty set has no meaning.
        counts: What each candidate's vote counts, shape (n, K).
        scores: Router scores, for ties, shape (n, K).
        by_name: The columns in the order of the candidates' names, for the last ties.
    """
    inside = selected.astype(np.float64)
    votes, size = np.moveaxis(same @ np.stack([inside * counts, inside], axis=2), 2, 0)
    readable = selected & (size > 0.0)
    # Without a readable answer, the best score among all that answered.
    alive = np.where(readable.any(axis=1, keepdims=True), readable, selected)
    alive = _strongest(alive, votes)
    # More candidates than agree with the first one: different answers have equally many votes.
    first = alive.argmax(axis=1)[:, None]
    tied = np.flatnonzero(alive.sum(axis=1) > np.take_along_axis(size, first, axis=1)[:, 0])
    if tied.size:
        voters = same[tied] * inside[tied, None, :]
        mean = (voters @ scores[tied, :, None])[:, :, 0] / np.maximum(size[tied], 1.0)
        best = np.where(voters > 0.0, scores[tied, None, :], -np.inf).max(axis=2)
        alive[tied] = _strongest(_strongest(alive[tied], mean), best)
    alive = _strongest(alive, scores)
    order = list(by_name)
    return np.array(order)[alive[:, order].argmax(axis=1)]


def _strongest(alive: BoolArray, strength: FloatArray) -> BoolArray:
    """The remaining candidates with the largest strength, shape (n, K)."""
    left = np.where(alive, strength, -np.inf)
    return alive & (left >= left.max(axis=1, keepdims=True) - _TIE)
