"""Files of labelled rows: JSON lines (also gzip), CSV, parquet, or rows inside a JSON document.

All or nothing: either every row is valid, or :class:`RowsError` names the lines, 20 at most.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from racer_core import strict_json
from racer_core.errors import InputError, RowsError
from racer_core.records.row import MAX_QUERY_CHARS, parse_row, row_pool, shown
from racer_core.types import LabelledRow, LabelledRows, checked_pool

MAX_UNPACKED_BYTES = 2**30
Numbered = tuple[int, object]  # line number, and the row or the InputError that reading it raised


def read_rows(
    path: str | Path,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int = MAX_QUERY_CHARS,
) -> LabelledRows:
    """Read a file of labelled rows; the format follows from the name.

    Args:
        path: ``.jsonl`` or ``.ndjson`` (``.gz`` too), ``.json``, ``.csv`` or ``.parquet``.
        pool: The candidates that the rows must be about; None takes the pool that they name.
        max_query_chars: Longer queries are refused.

    Raises:
        RowsError: The file or a row in it is wrong.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InputError(f"{path}: cannot be read ({exc.strerror})") from exc
    return parse_rows(data, path.name, pool, max_query_chars=max_query_chars)


def parse_rows(
    data: bytes,
    source: str,
    pool: Sequence[str] | None = None,
    *,
    max_query_chars: int = MAX_QUERY_CHARS,
    max_bytes: int = MAX_UNPACKED_BYTES,
) -> LabelledRows:
    """Parse the bytes of a file called ``source``; ``max_bytes`` is how far gzip may unpack.

    Raises as :func:`read_rows`.
    """
    try:
        numbered = list(_objects(data, source, max_bytes))
    except InputError as exc:
        raise RowsError(source, [str(exc)]) from exc
    unit = "row" if source.lower().endswith((".json", ".parquet")) else "line"
    return check_rows(numbered, source, pool, max_query_chars=max_query_chars, unit=unit)


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
    seen: dict[str, tuple[int, frozenset[str]]] = {}
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


def _objects(data: bytes, source: str, max_bytes: int) -> Iterator[Numbered]:
    name = source.lower()
    if name.endswith(".gz"):
        data, name = _unpacked(data, max_bytes), name.removesuffix(".gz")
    if name.endswith(".parquet"):
        return _parquet(data)
    if name.endswith(".csv"):
        return _csv(data)
    if name.endswith(".json"):
        return _document(data)
    return _json_lines(data)


def _unpacked(data: bytes, max_bytes: int) -> bytes:
    """A few kilobytes of gzip can hold gigabytes: unpack no more than is allowed."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise InputError("not a gzip file") from exc
    if len(unpacked) > max_bytes:
        raise InputError(f"unpacks to more than {max_bytes:,} bytes")
    return unpacked


def _text(data: bytes) -> str:
    data = data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InputError(f"line {line}: not UTF-8; save the file as UTF-8") from exc


def _json_lines(data: bytes) -> Iterator[Numbered]:
    # Split at LF alone: str.splitlines() would cut inside strings that hold U+0085 or U+2028.
    for number, line in enumerate(_text(data).split("\n"), 1):
        if line.strip():
            yield number, _attempt(line)


def _attempt(line: str) -> object:
    try:
        return strict_json.loads(line)
    except InputError as exc:
        return exc


def _document(data: bytes) -> Iterator[Numbered]:
    return document_rows(parse_document(data))


def parse_document(data: bytes) -> dict[str, Any]:
    """Parse ``{"rows": [...], ...}``, or a bare list of rows.

    Raises:
        InputError: Not strict JSON; names the row where one is at fault.
    """
    text = _text(data)
    try:
        value = strict_json.loads(text)
    except InputError as exc:
        rows = _ROWS.search(text)
        row = strict_json.first_bad_item(text, rows.end()) if rows else None
        raise InputError(f"row {row}: {exc}" if row else str(exc), param="rows") from exc
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"rows": value}


_ROWS = re.compile(r'\A\s*\[|"rows"\s*:\s*\[')


def document_rows(document: Mapping[str, Any]) -> Iterator[Numbered]:
    """The numbered rows of ``{"rows": [...]}``; ``candidates`` beside them is their header.

    Raises:
        InputError: No list of rows.
    """
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise InputError('expected a list of rows, or an object with "rows"', param="rows")
    if "candidates" in document:
        yield 0, {"candidates": document["candidates"]}
    yield from enumerate(cast("list[object]", rows), 1)


_CSV_FIELDS = ("query", "task", "reference", "group")
_CSV_LABELS = {"1": True, "true": True, "0": False, "false": False}


def _csv(data: bytes) -> Iterator[Numbered]:
    """``query``, one column per candidate (1/0/true/false); ``task``, ``reference`` optional."""
    reader = csv.reader(io.StringIO(_text(data), newline=""), strict=True)
    try:
        header = next(reader, list[str]())
        if "query" not in header or len(set(header)) != len(header):
            raise InputError("line 1: the header needs a query column, and each column once")
        for cells in reader:
            if cells:
                yield reader.line_num, _csv_row(header, cells)
    except csv.Error as exc:
        raise InputError(f"line {reader.line_num}: not CSV ({exc})") from exc


def _csv_row(header: list[str], cells: list[str]) -> object:
    if len(cells) != len(header):
        return InputError(f"{len(cells)} cells under {len(header)} columns")
    row = dict(zip(header, cells, strict=True))
    labels = {name: row[name] for name in header if name not in _CSV_FIELDS}
    if bad := [name for name, cell in labels.items() if cell.strip().lower() not in _CSV_LABELS]:
        return InputError(f"column {bad[0]!r} must hold 1, 0, true or false")
    correct = {name: _CSV_LABELS[cell.strip().lower()] for name, cell in labels.items()}
    return {**{k: row[k] for k in _CSV_FIELDS if row.get(k)}, "correct": correct}


def _parquet(data: bytes) -> Iterator[Numbered]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as exc:
        raise InputError("parquet needs pyarrow: pip install 'racer-gateway[parquet]'") from exc
    try:
        rows: list[object] = parquet.read_table(arrow.BufferReader(data)).to_pylist()
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as exc:
        raise InputError("not a parquet file that can be read") from exc
    return iter(enumerate(rows, 1))
