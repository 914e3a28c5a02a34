"""Reader of labelled rows: our JSON lines, CSV and parquet, and other formats.

All or nothing: either every row is valid, or :class:`RowsError` names the lines, 20 at most.
"""

from __future__ import annotations

import ast
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from racer_core.errors import InputError, RowsError
from racer_core.records import formats, lm_eval
from racer_core.records.checks import CheckedRows, RowLimits, check_rows
from racer_core.records.conversation import RoutedText, TextOfGroup
from racer_core.records.formats import MAX_UNPACKED_BYTES, Numbered, TabularFile
from racer_core.records.request import with_request_cell
from racer_core.types import LabelledRows, RowsKind

__all__ = ["check_rows", "parse_rows", "read_rows", "stream_rows"]


def read_rows(
    path: str | Path,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int | None = None,
    kind: RowsKind | None = None,
    text: RoutedText | TextOfGroup | None = None,
    takes_unlabelled: bool = False,
) -> LabelledRows:
    """Read labelled rows; the format follows from the file's name, and of a table from its columns.

    Args:
        path: ``.jsonl`` or ``.ndjson``, ``.json``, ``.csv`` (all also with ``.gz``) or
            ``.parquet``; a table may be RouterBench's. A folder is the output of
            ``lm_eval --log_samples``.
        pool: The required pool; None takes the pool that the rows name.
        max_query_chars: A longer query is cut, as a gateway cuts it at ``limits.query_chars``;
            None: none is.
        kind: What the file is; None: not said, and traffic if it is a gateway's sample.
        text: The text to route on of several turns, also by the group of their row; None refuses
            them.
        takes_unlabelled: Whether rows may say that they have no label.

    Raises:
        RowsError: The file or a row in it is wrong.
    """
    path = Path(path)
    if path.is_dir():
        rows = lm_eval.read_lm_eval(path, pool, max_query_chars=max_query_chars).rows
        return replace(rows, kind=kind)
    return parse_rows(
        read_bytes(path),
        path.name,
        pool,
        max_query_chars=max_query_chars,
        kind=kind,
        text=text,
        takes_unlabelled=takes_unlabelled,
    )


def read_routerbench(
    path: str | Path,
    pool: Sequence[str] | None = None,
    *,
    threshold: float | None = None,
    tasks: Sequence[str] | None = None,
    max_query_chars: int | None = None,
) -> LabelledRows:
    """Read a RouterBench export (CSV or parquet, never the pickle) with options for its labels.

    Args:
        path: The file.
        pool: As for :func:`read_rows`.
        threshold: The score from which an answer counts as right; None refuses fractions.
        tasks: Only rows whose ``eval_name`` is one of these; None takes all.
        max_query_chars: A longer query is cut, as a gateway cuts it at ``limits.query_chars``;
            None: none is.

    Raises:
        RowsError: The file or a row in it is wrong.
    """
    path = Path(path)
    data = read_bytes(path)
    try:
        data, name = formats.unpacked(data, path.name, MAX_UNPACKED_BYTES)
        if not formats.is_table(name):
            raise InputError("a RouterBench export is a .csv or a .parquet file")
        table = formats.table(io.BytesIO(data), name)
        numbered = list(labelled(table, threshold=threshold, tasks=tasks))
    except InputError as exc:
        raise RowsError(path.name, [str(exc)]) from exc
    return check_rows(
        numbered, path.name, pool, max_query_chars=max_query_chars, unit=_unit(path.name)
    )


def parse_rows(
    data: bytes,
    source: str,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int | None = None,
    max_bytes: int = MAX_UNPACKED_BYTES,
    kind: RowsKind | None = None,
    text: RoutedText | TextOfGroup | None = None,
    takes_unlabelled: bool = False,
) -> LabelledRows:
    """Parse the bytes of a file named ``source``; ``max_bytes`` limits the unpacked size of gzip.

    The other arguments are those of :func:`read_rows`.

    Raises as :func:`read_rows`.
    """
    try:
        data, name = formats.unpacked(data, source, max_bytes)
        limits = RowLimits(
            query_chars=max_query_chars, text=text, takes_unlabelled=takes_unlabelled
        )
        checked = stream_rows(io.BytesIO(data), name, source, pool, limits)
        rows = tuple(checked)
    except RowsError:
        raise
    except InputError as exc:
        raise RowsError(source, [str(exc)]) from exc
    return LabelledRows(pool=checked.pool, rows=rows, kind=checked.survey.stated(kind))


def stream_rows(
    file: BinaryIO, name: str, source: str, pool: Sequence[str] | None, limits: RowLimits
) -> CheckedRows:
    """Stream the rows of a file, which need not fit into memory.

    Args:
        file: At its beginning, uncompressed.
        name: In lower case; the format follows from its suffix.
        source: The file's name in messages.
        pool: As for :func:`read_rows`.
        limits: Limits on the file.

    Raises:
        RowsError: As :func:`read_rows`, here or during iteration.
        InputError: The file cannot be read, here or during iteration.
    """
    numbered = _objects(file, name, limits)
    return CheckedRows(numbered, source, pool, limits=limits, unit=_unit(name))


def read_bytes(path: Path) -> bytes:
    """A file's contents.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InputError(f"{path}: cannot be read ({exc.strerror})") from exc


def _unit(source: str) -> str:
    """The unit of a file's row numbers."""
    return "row" if source.lower().endswith((".json", ".parquet")) else "line"


def _objects(file: BinaryIO, name: str, limits: RowLimits) -> Iterator[Numbered]:
    if not formats.is_table(name):
        return formats.json_objects(file, name, limits.line_bytes)
    table = formats.table(file, name, limits.line_bytes, limits.rows)
    if is_export(table.columns):
        return labelled(table)
    return _csv_rows(table) if name.endswith(".csv") else _parquet_rows(table)


_CSV_FIELDS = ("query", "request", "task", "reference", "group", "application", "cluster")
_CSV_QUALITY = "quality:"  # prefix of a candidate's column of qualities
_CSV_LABELS = {"1": True, "true": True, "0": False, "false": False}


def _parquet_rows(table: TabularFile) -> Iterator[Numbered]:
    """Rows of columns named like the fields of JSON lines."""
    for number, cells in table.rows:
        is_row = isinstance(cells, dict)
        yield number, with_request_cell(cast("dict[str, Any]", cells)) if is_row else cells


def _csv_rows(table: TabularFile) -> Iterator[Numbered]:
    """``query`` or ``request``, one column per candidate (1/0/true/false), optional fields."""
    if not {"query", "request"} & set(table.columns) or len(set(table.columns)) != len(
        table.columns
    ):
        raise InputError(
            "line 1: the header needs a query column or a request column, and each column once"
        )
    for number, cells in table.rows:
        wrong = isinstance(cells, InputError)
        yield number, cells if wrong else _csv_row(cast("dict[str, str]", cells))


def _csv_row(row: Mapping[str, str]) -> object:
    fields: dict[str, object] = {name: row[name] for name in _CSV_FIELDS if row.get(name)}
    labels: dict[str, bool] = {}
    quality: dict[str, float] = {}
    for column, cell in row.items():
        text = cell.strip().lower()
        try:
            if column == "weight":
                fields["weight"] = float(text or 1.0)
            elif column.startswith(_CSV_QUALITY):
                quality[column.removeprefix(_CSV_QUALITY)] = float(text)
            elif column not in _CSV_FIELDS:
                labels[column] = _CSV_LABELS[text]
        except ValueError:
            return InputError(f"column {column!r} must hold a number")
        except KeyError:
            return InputError(f"column {column!r} must hold 1, 0, true or false")
    if quality:
        fields["quality"] = quality
    if labels or not quality:
        fields["correct"] = labels
    return with_request_cell(fields)


# Reader of RouterBench tables (arXiv 2403.12031) as labelled rows.
#
# One row per prompt: ``sample_id``, ``prompt``, ``eval_name``, and for every model its score in a
# column of its name beside ``<model>|model_response`` and ``<model>|total_cost``. RouterBench is
# published as a pickle, which is never read: export it to CSV or parquet first. A column
# ``cluster`` may be added.

_COLUMNS = frozenset({"sample_id", "prompt", "eval_name"})
_RESPONSE, _COST = "|model_response", "|total_cost"
_MAX_LITERAL = 1_000_000  # characters; longer texts are not parsed as printed lists


def is_export(columns: Sequence[str]) -> bool:
    """Whether a table is RouterBench's; a ``query`` column marks our own format."""
    return set(columns) >= _COLUMNS and "query" not in columns


def labelled(
    table: TabularFile, *, threshold: float | None = None, tasks: Sequence[str] | None = None
) -> Iterator[Numbered]:
    """The table's rows in our format.

    Args:
        table: A RouterBench export.
        threshold: The score from which an answer counts as right; None refuses fractions.
        tasks: Only rows whose ``eval_name`` is one of these; None takes all.

    Raises:
        InputError: Another kind of table, or one without models.
    """
    models = _models(table.columns)
    for place, cells in table.rows:
        if isinstance(cells, InputError):
            yield place, cells
            continue
        row = cast("dict[str, object]", cells)
        if tasks is None or row["eval_name"] in tasks:
            yield place, _row(row, models, threshold)


def _models(columns: Sequence[str]) -> list[str]:
    if not is_export(columns) or len(set(columns)) != len(columns):
        raise InputError(
            "not a RouterBench export: it needs the columns sample_id, prompt and eval_name, and "
            "each column once"
        )
    named = set(columns)
    models = [name for name in columns if {name + _RESPONSE, name + _COST} & named]
    if not models:
        raise InputError(f"no model: a score column needs {_RESPONSE} or {_COST} columns beside it")
    return models


def _row(row: Mapping[str, object], models: Sequence[str], threshold: float | None) -> object:
    turns = texts(row["prompt"])
    try:
        correct = {name: _is_right(name, row[name], threshold) for name in models}
    except InputError as exc:
        return exc
    answers = {name: texts(row[name + _RESPONSE]) for name in models if name + _RESPONSE in row}
    return {
        # Validation refuses several turns, as in our own files.
        "messages": [{"role": "user", "content": turn} for turn in turns],
        "correct": correct,
        "answers": {name: answer[0] if answer else None for name, answer in answers.items()},
        "task": row["eval_name"],
        "cluster": row.get("cluster"),
    }


def _is_right(model: str, cell: object, threshold: float | None) -> bool:
    """Whether a score counts as right.

    Raises:
        InputError: No score, or a fraction and no threshold for it.
    """
    score = _number(cell)
    if score is None:
        raise InputError(f"{model!r} has no score")
    if threshold is not None:
        return score >= threshold
    if score not in (0.0, 1.0):
        raise InputError(
            f"the score {score:g} of {model!r} is neither 0 nor 1: say from which score on an "
            "answer counts as right (threshold), or read only tasks that are right or wrong (tasks)"
        )
    return score == 1.0


def _number(cell: object) -> float | None:
    if isinstance(cell, str):
        cell = {"true": 1.0, "false": 0.0}.get(cell.strip().lower(), cell)
    try:
        score = float(cast("Any", cell))
    except (TypeError, ValueError):
        return None
    return score if math.isfinite(score) else None


def texts(cell: object) -> list[str]:
    """The texts in a cell: a list such as ``['one']``, its printed form, or plain text."""
    if isinstance(cell, list):
        return [str(item) for item in cast("list[object]", cell)]
    if cell is None or cell != cell:  # NaN is pandas' missing value
        return []
    text = str(cell)
    if not (text.startswith(("['", '["')) and text.endswith("]") and len(text) < _MAX_LITERAL):
        return [text]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return [text]
    items = cast("list[object]", value)
    if isinstance(value, list) and all(isinstance(item, str) for item in items):
        return cast("list[str]", items)
    return [text]
