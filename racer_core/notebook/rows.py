"""Labelled rows of arrays and data frames, checked as those of a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, cast

import numpy as np
from numpy.typing import ArrayLike

from racer_core.errors import InputError
from racer_core.notebook.calibrate import checked_labels
from racer_core.records.checks import check_rows
from racer_core.records.reader import parse_rows
from racer_core.types import LabelledRow, LabelledRows

FIELDS: Final = {each.name for each in fields(LabelledRow)} - {"query", "correct", "earlier"}


def rows_from_arrays(
    queries: Sequence[str], correct: ArrayLike, *, pool: Sequence[str], **columns: Sequence[Any]
) -> LabelledRows:
    """Make labelled rows of columns.

    Args:
        queries: The texts, n of them.
        correct: Whether each candidate answers each query right, shape (n, K), of booleans or of
            0 and 1.
        pool: The candidates' names, K of them, in the order of the columns.
        columns: Further fields of :class:`LabelledRow`, such as ``group`` or ``answers``: n values,
            or n sequences of K values for a field with a value per candidate.

    Returns:
        The rows, in the order of the arrays.

    Raises:
        InputError: The lengths differ, or a column is no field of a row.
        RowsError: A value is wrong; names the rows, 20 at most.
    """
    labels = checked_labels(correct, (len(queries), len(pool))).tolist()
    for name, column in columns.items():
        if name not in FIELDS:
            raise InputError(f"a row has no field {name!r}, only {', '.join(sorted(FIELDS))}")
        if len(column) != len(queries):
            raise InputError(f"{len(column)} values of {name} for {len(queries)} queries")
    rows = [
        {"query": queries[i], "correct": dict(zip(pool, labels[i], strict=True))}
        | {name: _by_candidate(column[i], pool) for name, column in columns.items()}
        for i in range(len(queries))
    ]
    return check_rows(enumerate(rows, 1), "arrays", pool, unit="row")


def rows_from_frame(frame: Any, pool: Sequence[str] | None = None) -> LabelledRows:
    """Make labelled rows of a data frame that has the columns of a CSV file of rows.

    Args:
        frame: A ``pandas.DataFrame``, or anything with ``columns`` and ``frame[column]``. The
            column ``query`` holds the texts. The other columns of :func:`read_rows` (``task``,
            ``reference``, ``group``, ...) are optional; every further column is a candidate, and
            holds booleans or 0 and 1.
        pool: The required pool; None takes the candidates' columns in their order.

    Returns:
        The rows, in the order of the frame.

    Raises:
        RowsError: A label or a text is wrong or missing; the frame's first row is line 2.
    """
    names = [str(name) for name in frame.columns]
    cells = zip(*([_cell(each) for each in frame[name]] for name in frame.columns), strict=True)
    file = io.StringIO()
    csv.writer(file).writerows([names, *cells])
    return parse_rows(file.getvalue().encode(), "data frame.csv", pool)


def _by_candidate(value: object, pool: Sequence[str]) -> object:
    if isinstance(value, list | tuple | np.ndarray):
        values = cast("Sequence[Any]", np.asarray(value, dtype=object).tolist())
        return dict(zip(pool, values, strict=True))
    return value


def _cell(value: Any) -> str:
    """A cell as CSV; a missing text is empty. A column with gaps has its labels as 1.0 and 0.0."""
    if value is None or value != value:
        return ""
    return f"{value:.0f}" if isinstance(value, float) and value in (0.0, 1.0) else str(value)
