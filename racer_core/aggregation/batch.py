"""Vectorised votes for evaluation: :mod:`racer_core.aggregation.vote` for many queries at once.

Elects the same winner as ``aggregate`` in every row, at thousands of rows a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.reasoning import REASONING, ReasoningFilter
from racer_core.types import BoolArray, FloatArray, LabelledRow

ClassArray = NDArray[np.int16]
_TIE = 1e-12  # sums of floats that differ by less are the same vote


def row_classes(
    rows: Iterable[LabelledRow],
    pool: Sequence[str],
    equality: Equality,
    reasoning: ReasoningFilter = REASONING,
) -> ClassArray:
    """Number the distinct answers of each row; -1 where none can be read. Shape (n, K).

    Args:
        rows: Rows with recorded answers; tool calls vote as such.
        pool: The candidates, in the order of the columns.
        equality: When two answers are the same.
        reasoning: Removes the reasoning from each text.
    """
    return _numbered([[_row_form(row, name, equality, reasoning) for name in pool] for row in rows])


def _row_form(
    row: LabelledRow, candidate: str, equality: Equality, reasoning: ReasoningFilter
) -> str | None:
    """The form of a recorded answer.

    Without a record of its call, a list of calls is tool calls where the request has tools.
    """
    text, record, request = row.answers.get(candidate), row.calls.get(candidate), row.request or {}
    is_unknown = not record and bool(request.get("tools") or request.get("functions"))
    if is_unknown or (record and "tool_calls" in record):
        calls = _form(text, Equality.TOOL_CALL, reasoning)
        if calls is not None or not is_unknown:
            return calls
    return _form(text, equality, reasoning)


def _form(text: str | None, equality: Equality, reasoning: ReasoningFilter) -> str | None:
    return None if text is None else normalise(equality, reasoning.answer(text))


def _numbered(forms: Sequence[Sequence[str | None]]) -> ClassArray:
    classes = np.full((len(forms), len(forms[0]) if forms else 0), -1, dtype=np.int16)
    for row, given in zip(classes, forms, strict=True):
        numbers: dict[str, int] = {}
        for column, form in enumerate(given):
            if form is not None:
                row[column] = numbers.setdefault(form, len(numbers))
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
