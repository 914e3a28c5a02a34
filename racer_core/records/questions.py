"""Reader of unlabelled questions, the input of ``racer label``."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from racer_core.errors import InputError, RowsError
from racer_core.records import formats
from racer_core.records.conversation import RoutedText, TextOfGroup
from racer_core.records.formats import Numbered, Place
from racer_core.records.reader import read_bytes
from racer_core.records.request import row_identity, with_request_cell
from racer_core.records.row import (
    RowQuery,
    optional_text,
    reference_text,
    row_group,
    row_query,
)
from racer_core.records.row_numbers import row_weight
from racer_core.records.sampled import parse_turn
from racer_core.types import CallRecord, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """A candidate's answer that a row carries.

    Attributes:
        text: The answer; None: it could not be read.
        condition: Digest of what the candidate was sent for it, but for the query.
        call: The call that gave it; empty: not recorded.
        is_correct: The row's label of it; None: unknown.
    """

    text: str | None
    condition: str
    call: CallRecord
    is_correct: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query without answers, and its known fields."""

    place: Place  # its line or row in the file
    query: str
    reference: str | None = None
    task: str | None = None
    group: str | None = None
    cluster: str | None = None
    conversation: str | None = None  # of which the file has all turns
    earlier: tuple[Turn, ...] = ()  # the turns before the query
    # The whole request of which `query` and `earlier` are parts; None: it is turns of plain text.
    request: Mapping[str, Any] | None = None
    copy: int = 0  # how many earlier questions of the file are the same
    weight: float = 1.0
    decision_id: str | None = None  # the decision of a gateway whose sample it belongs to
    turn: int | None = None  # its place in the conversation whose draw it was
    # Candidate -> an answer to it that was recorded earlier.
    recorded: Mapping[str, RecordedAnswer] = field(default_factory=dict[str, RecordedAnswer])

    @property
    def identity(self) -> str:
        """The text that identifies the question; copies of one have different ones."""
        return question_identity(
            self.query,
            self.earlier,
            self.cluster,
            self.copy,
            request=self.request,
            decision_id=self.decision_id,
        )

    @property
    def is_lost(self) -> bool:
        """Whether its request was never stored: a row of a sample that stays without a label."""
        return not self.query and self.request is None


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
    decision_id: str | None = None,
) -> str:
    """A text that identifies a question: its query and the turns before it, or its whole request.

    Its cluster and its copy belong to it. A sampled decision is one question, whatever it asks.
    """
    if decision_id is not None:
        return f"\0decision {decision_id}"
    name = row_identity(query, earlier, request)
    return name if cluster is None and not copy else "\0" + json.dumps([name, cluster, copy])


def read_questions(
    path: Path, text: RoutedText | TextOfGroup = "last_user"
) -> tuple[Question, ...]:
    """Read a file of questions: the formats of labelled rows, without labels.

    A question that is repeated is asked again, since repeats belong to a sample of traffic and its
    answers may differ. Unknown fields are ignored.

    Args:
        path: The file.
        text: The text to route on of several turns, also by the group of their question.

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
            if first.reference != question.reference and not question.is_lost:
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


def with_references(
    questions: Iterable[Question], references: Iterable[Question], source: str
) -> tuple[Question, ...]:
    """The questions with the references of another file, found by their queries.

    Args:
        questions: The questions.
        references: The same queries with their references, in any order.
        source: Name of the file of references, for messages.

    Raises:
        RowsError: A question has no reference there, or another than its own.
    """
    given = {
        row_identity(each.query, each.earlier, each.request): each.reference for each in references
    }
    found: list[Question] = []
    problems: list[str] = []
    for each in questions:
        reference = given.get(row_identity(each.query, each.earlier, each.request))
        if reference is None:
            problems.append(f"no reference for the question of line {each.place}")
        elif each.reference not in (None, reference):
            problems.append(f"another reference than the question of line {each.place} has")
        found.append(replace(each, reference=reference))
    if problems:
        raise RowsError(source, problems)
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


def _question(place: Place, value: object, text: RoutedText | TextOfGroup) -> Question:
    if isinstance(value, InputError):
        raise value
    if not isinstance(value, dict):
        raise InputError("a question must be a JSON object")
    row = cast("dict[str, Any]", value)
    decision_id = optional_text(row, "decision_id") or None
    is_lost = decision_id is not None and row.get("unlabelled") is True and "scores" in row
    content = RowQuery("") if is_lost else row_query(row, text)
    cluster = optional_text(row, "cluster") or None
    return Question(
        place=place,
        query=content.query,
        earlier=content.earlier,
        request=content.request,
        reference=reference_text(row),
        task=optional_text(row, "task"),
        group=row_group(row),
        cluster=cluster,
        conversation=optional_text(row, "conversation") or None,
        weight=row_weight(row),
        decision_id=decision_id,
        turn=parse_turn(row, decision_id, cluster),
        recorded=_recorded(row),
    )


def _recorded(row: Mapping[str, Any]) -> dict[str, RecordedAnswer]:
    """The answers of a labelled row that say what their candidate was sent."""
    fields = {
        name: cast("dict[str, Any]", row[name]) if isinstance(row.get(name), dict) else {}
        for name in ("answers", "conditions", "calls", "correct")
    }
    labels = fields["correct"]
    if isinstance(row.get("correct"), list):
        right = cast("list[object]", row["correct"])
        labels = {name: name in right for name in fields["answers"]}
    found: dict[str, RecordedAnswer] = {}
    for name, text in fields["answers"].items():
        condition, call, label = (
            fields["conditions"].get(name), fields["calls"].get(name), labels.get(name)
        )  # fmt: skip
        is_read = isinstance(text, str) or (text is None and isinstance(call, dict))
        if is_read and isinstance(condition, str):
            found[name] = RecordedAnswer(
                text=text,
                condition=condition,
                call=cast("CallRecord", call) if isinstance(call, dict) else {},
                is_correct=label if isinstance(label, bool) else None,
            )
    return found
