"""Reader of unlabelled questions, the input of ``racer label``."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from racer_core.errors import InputError, RowsError
from racer_core.records import formats
from racer_core.records.conversation import RoutedText
from racer_core.records.formats import Numbered, Place
from racer_core.records.reader import read_bytes
from racer_core.records.request import row_identity, with_request_cell
from racer_core.records.row import optional_text, reference_text, row_group, row_query
from racer_core.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query without answers, and its known fields."""

    place: Place  # its line or row in the file
    query: str
    reference: str | None = None
    task: str | None = None
    group: str | None = None
    cluster: str | None = None
    earlier: tuple[Turn, ...] = ()  # the turns before the query
    # The whole request of which `query` and `earlier` are parts; None: it is turns of plain text.
    request: Mapping[str, Any] | None = None
    copy: int = 0  # how many earlier questions of the file are the same

    @property
    def identity(self) -> str:
        """The text that identifies the question; copies of one have different ones."""
        return question_identity(
            self.query, self.earlier, self.cluster, self.copy, request=self.request
        )


class CopyCounter:
    """Numbers the copies of each question in a file, from 0."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(
        self,
        query: str,
        earlier: Iterable[Turn],
        cluster: str | None,
        *,
        request: Mapping[str, Any] | None = None,
    ) -> int:
        """The number of this copy."""
        name = question_identity(query, earlier, cluster, 0, request=request)
        self._counts[name] += 1
        return self._counts[name] - 1


def question_identity(
    query: str,
    earlier: Iterable[Turn],
    cluster: str | None,
    copy: int,
    *,
    request: Mapping[str, Any] | None = None,
) -> str:
    """A text that identifies a question: its query and the turns before it, or its whole request.

    Its cluster and its copy belong to it.
    """
    name = row_identity(query, earlier, request)
    return name if cluster is None and not copy else "\0" + json.dumps([name, cluster, copy])


def read_questions(path: Path, text: RoutedText = "last_user") -> tuple[Question, ...]:
    """Read a file of questions: the formats of labelled rows, without labels.

    A question that is repeated is asked again, since repeats belong to a sample of traffic and its
    answers may differ. Unknown fields are ignored.

    Args:
        path: The file.
        text: The text to route on of several turns.

    Raises:
        RowsError: A line is no question, or a query has two references; names each line.
    """
    data = read_bytes(path)
    try:
        numbered = list(_objects(data, path.name))
    except InputError as exc:
        raise RowsError(path.name, [str(exc)]) from exc
    found: list[Question] = []
    first_of: dict[str, Question] = {}
    copies = CopyCounter()
    problems: list[str] = []
    for place, value in numbered:
        try:
            question = _question(place, value, text)
            name = row_identity(question.query, question.earlier, question.request)
            first = first_of.setdefault(name, question)
            if first.reference != question.reference:
                raise InputError(f"same query as line {first.place}, with another reference")
            copy = copies.next(
                question.query, question.earlier, question.cluster, request=question.request
            )
            found.append(replace(question, copy=copy))
        except InputError as exc:
            problems.append(f"line {place}: {exc}")
    if problems or not found:
        raise RowsError(path.name, problems or ["no questions"])
    return tuple(found)


def _objects(data: bytes, source: str) -> Iterable[Numbered]:
    data, name = formats.unpacked(data, source, formats.MAX_UNPACKED_BYTES)
    if not formats.is_table(name):
        return formats.json_objects(io.BytesIO(data), name)
    return _cells(formats.table(io.BytesIO(data), name))


def _cells(table: formats.TabularFile) -> Iterator[Numbered]:
    """A table's rows without empty cells."""
    for place, cells in table.rows:
        if isinstance(cells, dict):
            row = cast("dict[str, object]", cells)
            given = {name: cell for name, cell in row.items() if cell not in ("", None)}
            yield place, with_request_cell(given)
        else:
            yield place, cells


def _question(place: Place, value: object, text: RoutedText) -> Question:
    if isinstance(value, InputError):
        raise value
    if not isinstance(value, dict):
        raise InputError("a question must be a JSON object")
    row = cast("dict[str, Any]", value)
    asked = row_query(row, text)
    return Question(
        place=place,
        query=asked.query,
        earlier=asked.earlier,
        request=asked.request,
        reference=reference_text(row),
        task=optional_text(row, "task"),
        group=row_group(row),
        cluster=optional_text(row, "cluster") or None,
    )
