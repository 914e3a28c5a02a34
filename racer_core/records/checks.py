"""Validation of parsed rows against one pool: all rows are valid, or every wrong line is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from racer_core.errors import InputError, RowsError
from racer_core.records.conversation import RoutedText, TextOfGroup
from racer_core.records.formats import Numbered, Place
from racer_core.records.row import parse_row, row_pool
from racer_core.records.row_numbers import shown
from racer_core.records.units import RowSurvey
from racer_core.types import LabelledRow, LabelledRows, RowsKind, checked_pool

MAX_CANDIDATES = 64
_MAX_PROBLEMS = 10_000  # problems after which validation stops


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Limits on a file of rows."""

    query_chars: int | None = None  # a longer query is cut; None: none is
    line_bytes: int | None = None  # of one encoded row
    rows: int | None = None
    # Text to route on of several turns, by the group of their row; None refuses them.
    text: RoutedText | TextOfGroup | None = None
    complete: Callable[[LabelledRow], LabelledRow] | None = None  # may refuse the row
    takes_unlabelled: bool = False  # rows may say that they have no label


class CheckedRows:
    """Iterator over the valid rows of one file; ``survey`` counts those that were returned.

    Rows that repeat a query are rows like any other, whatever their labels: stripped of its repeats
    a sample of traffic would not be exchangeable with the next request.

    After the first wrong row no further row is returned; the final error names all wrong rows.

    Args:
        numbered: The parsed rows with their numbers.
        source: The file's name, for messages.
        pool: The required pool; None takes the pool that the rows name.
        limits: Limits on the file.
        unit: The unit of the numbers, such as "line".

    Raises:
        RowsError: There is no row, or the header names another pool.
    """

    def __init__(
        self,
        numbered: Iterable[Numbered],
        source: str,
        pool: Sequence[str] | None,
        *,
        limits: RowLimits,
        unit: str,
    ) -> None:
        self._source = source
        self._limits = limits
        self._unit = unit
        self._lines = iter(numbered)
        header = next(self._lines, None)
        if header is not None and not _is_header(header[1]):
            self._lines, header = chain([header], self._lines), None
        first = next(self._lines, None)
        if first is None:
            raise RowsError(source, ["no rows"])
        self._lines = chain([first], self._lines)
        self._header = header is not None
        self.survey = RowSurvey()
        self.pool = self._pool(pool, header, first[0])

    def _pool(
        self, pool: Sequence[str] | None, header: Numbered | None, first: Place
    ) -> tuple[str, ...]:
        try:
            named = row_pool(cast("dict[str, Any]", header[1])) if header else None
            if pool and named and set(named) != set(pool):
                raise InputError(f"the header's candidates are not the pool {shown(pool)}")
            names = checked_pool(pool) if pool else named or self._first_pool()
            if len(names) > MAX_CANDIDATES:
                raise InputError(f"{len(names)} candidates, over the limit of {MAX_CANDIDATES}")
        except RowsError:
            raise
        except InputError as exc:
            place = header[0] if header else first
            raise RowsError(self._source, [f"{self._unit} {place}: {exc}"]) from exc
        return names

    def _first_pool(self) -> tuple[str, ...]:
        """The pool of the first row that names one."""
        read: list[Numbered] = []
        for number, value in self._lines:
            read.append((number, value))
            if isinstance(value, dict) and (pool := row_pool(cast("dict[str, Any]", value))):
                self._lines = chain(read, self._lines)
                return pool
        if unreadable := [
            self._located(at, row) for at, row in read if isinstance(row, InputError)
        ]:
            raise RowsError(self._source, unreadable)
        raise InputError(
            'the rows do not name their pool: give "correct" as a map of every candidate, '
            'or "candidates" beside the list'
        )

    def __iter__(self) -> Iterator[LabelledRow]:
        """The rows. Can be taken once.

        Raises:
            RowsError: Any row is wrong, or there are too many.
        """
        problems: list[str] = []
        decisions: dict[str, Place] = {}
        for count, (number, value) in enumerate(self._lines, 1):
            if self._limits.rows is not None and count > self._limits.rows:
                raise RowsError(self._source, [f"more than {self._limits.rows:,} rows"])
            try:
                row = self._row(value)
                place = (
                    number
                    if row.decision_id is None
                    else decisions.setdefault(row.decision_id, number)
                )
                if place != number:
                    raise InputError(
                        f"the decision {(row.decision_id or '')[:64]} is {self._unit} {place} "
                        "already: one decision is one row"
                    )
            except InputError as exc:
                problems.append(self._located(number, exc))
                if len(problems) == _MAX_PROBLEMS:
                    break
            else:
                if not problems:
                    self.survey.add(row)
                    yield row
        if problems:
            raise RowsError(self._source, problems)

    def _row(self, value: object) -> LabelledRow:
        if isinstance(value, InputError):
            raise value
        limits = self._limits
        row = parse_row(
            value,
            self.pool,
            max_query_chars=limits.query_chars,
            header=self._header,
            text=limits.text,
            takes_unlabelled=limits.takes_unlabelled,
        )
        return row if limits.complete is None else limits.complete(row)

    def _located(self, place: Place, problem: object) -> str:
        return f"{self._unit} {place}: {problem}"


def check_rows(
    numbered: Iterable[Numbered],
    source: str,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int | None = None,
    text: RoutedText | TextOfGroup | None = None,
    unit: str = "line",
    kind: RowsKind | None = None,
) -> LabelledRows:
    """Validate parsed rows; ``unit`` is the unit of their numbers.

    Raises:
        RowsError: Any row is wrong, or there is no row.
    """
    limits = RowLimits(query_chars=max_query_chars, text=text)
    checked = CheckedRows(numbered, source, pool, limits=limits, unit=unit)
    rows = tuple(checked)
    return LabelledRows(rows=rows, pool=checked.pool, kind=checked.survey.stated(kind))


def _is_header(value: object) -> bool:
    return isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"candidates"}
