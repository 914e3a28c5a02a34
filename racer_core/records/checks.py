"""Rows that were already parsed, checked against one pool: all valid, or every line at fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from racer_core.errors import InputError, RowsError
from racer_core.records.formats import Numbered, Place
from racer_core.records.row import MAX_QUERY_CHARS, parse_row, row_pool, shown
from racer_core.types import LabelledRow, LabelledRows, checked_pool


def check_rows(
    numbered: Iterable[Numbered],
    source: str,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int = MAX_QUERY_CHARS,
    unit: str = "line",
) -> LabelledRows:
    """Check rows that were already parsed; ``unit`` is what the numbers count.

    Raises:
        RowsError: Any row is wrong, two rows of one query disagree, or there is no row.
    """
    lines = list(numbered)
    header = lines.pop(0) if lines and _is_header(lines[0][1]) else None
    if not lines:
        raise RowsError(source, ["no rows"])
    try:
        named = row_pool(cast("dict[str, Any]", header[1])) if header else None
        if pool and named and set(named) != set(pool):
            raise InputError(f"the header's candidates are not the pool {shown(pool)}")
        names = checked_pool(pool) if pool else named or _first_pool(lines)
    except InputError as exc:
        unreadable = [f"{unit} {line}: {row}" for line, row in lines if isinstance(row, InputError)]
        place = (header or lines[0])[0]
        raise RowsError(source, unreadable or [f"{unit} {place}: {exc}"]) from exc
    rows, problems = _parse_all(lines, names, max_query_chars, unit, header=header is not None)
    if problems:
        raise RowsError(source, problems)
    return LabelledRows(pool=names, rows=tuple(rows), duplicates=len(lines) - len(rows))


def _parse_all(
    lines: Sequence[Numbered],
    pool: tuple[str, ...],
    max_query_chars: int,
    unit: str,
    *,
    header: bool,
) -> tuple[list[LabelledRow], list[str]]:
    rows: list[LabelledRow] = []
    problems: list[str] = []
    seen: dict[str, tuple[Place, frozenset[str]]] = {}
    for number, value in lines:
        try:
            if isinstance(value, InputError):
                raise value
            row = parse_row(value, pool, max_query_chars, header=header)
            first = seen.setdefault(row.query, (number, row.correct)) if row.query else None
            if first and first[1] != row.correct:
                raise InputError(f"same query as {unit} {first[0]}, with different labels")
        except InputError as exc:
            problems.append(f"{unit} {number}: {exc}")
        else:
            if first is None or first[0] == number:
                rows.append(row)
    return rows, problems


def _first_pool(lines: Sequence[Numbered]) -> tuple[str, ...]:
    for _, value in lines:
        if isinstance(value, dict) and (pool := row_pool(cast("dict[str, Any]", value))):
            return pool
    raise InputError(
        'the rows do not name their pool: give "correct" as a map of every candidate, '
        'or "candidates" beside the list'
    )


def _is_header(value: object) -> bool:
    return isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"candidates"}
