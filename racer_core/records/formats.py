"""Bytes to numbered objects: JSON lines, a JSON document, CSV and parquet, each also as gzip.

Knows file formats and nothing of what a row means.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from racer_core import strict_json
from racer_core.errors import InputError

MAX_UNPACKED_BYTES = 2**30
Place = int | str  # a line's number, or a name such as a task and a document in it
Numbered = tuple[Place, object]  # where a row stands, and it or the InputError that reading raised


@dataclass(frozen=True, slots=True)
class Table:
    """A file with named columns; every row is a dict of them, or the InputError of its line."""

    columns: tuple[str, ...]
    rows: Iterator[Numbered]


def unpacked(data: bytes, source: str, max_bytes: int) -> tuple[bytes, str]:
    """The contents and the name in lower case, both without gzip.

    Raises:
        InputError: Not gzip, or more than ``max_bytes`` inside; or a pickle, which can run code.
    """
    name = source.lower()
    if name.endswith(".gz"):
        data, name = _gunzip(data, max_bytes), name.removesuffix(".gz")
    if name.endswith((".pkl", ".pickle")):
        raise InputError(
            "a pickle can run code when it is opened, so it is never read; where you trust it, "
            "export it with pandas: read_pickle(...).to_parquet(...)"
        )
    return data, name


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    """A few kilobytes of gzip can hold gigabytes: unpack no more than is allowed."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            contents = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise InputError("not a gzip file") from exc
    if len(contents) > max_bytes:
        raise InputError(f"unpacks to more than {max_bytes:,} bytes")
    return contents


def _text(data: bytes) -> str:
    data = data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InputError(f"line {line}: not UTF-8; save the file as UTF-8") from exc


def json_objects(data: bytes, name: str) -> Iterator[Numbered]:
    """The rows of a JSON document (``.json``), or of JSON lines."""
    return document_rows(parse_document(data)) if name.endswith(".json") else json_lines(data)


def json_lines(data: bytes) -> Iterator[Numbered]:
    """One JSON value a line, blank lines left out."""
    # Split at LF alone: str.splitlines() would cut inside strings that hold U+0085 or U+2028.
    for number, line in enumerate(_text(data).split("\n"), 1):
        if line.strip():
            yield number, _attempt(line)


def _attempt(line: str) -> object:
    try:
        return strict_json.loads(line)
    except InputError as exc:
        return exc


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


def is_table(name: str) -> bool:
    """Whether a file's name says that it has columns."""
    return name.endswith((".csv", ".parquet"))


def table(data: bytes, name: str) -> Table:
    """The columns and rows of CSV or parquet.

    Raises:
        InputError: Not such a file. CSV may raise it later too, at the line where it breaks.
    """
    return _parquet(data) if name.endswith(".parquet") else _csv(data)


def _csv(data: bytes) -> Table:
    reader = csv.reader(io.StringIO(_text(data), newline=""), strict=True)
    with _csv_errors(reader):
        header = tuple(next(reader, list[str]()))
    return Table(columns=header, rows=_csv_rows(reader, header))


def _csv_rows(reader: Any, header: tuple[str, ...]) -> Iterator[Numbered]:
    with _csv_errors(reader):
        for cells in reader:
            if len(cells) == len(header):
                yield reader.line_num, dict(zip(header, cells, strict=True))
            elif cells:
                wrong = f"{len(cells)} cells under {len(header)} columns"
                yield reader.line_num, InputError(wrong)


@contextmanager
def _csv_errors(reader: Any) -> Generator[None]:
    try:
        yield
    except csv.Error as exc:
        raise InputError(f"line {reader.line_num}: not CSV ({exc})") from exc


def _parquet(data: bytes) -> Table:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as exc:
        raise InputError("parquet needs pyarrow: pip install 'racer-gateway[parquet]'") from exc
    try:
        read = parquet.read_table(arrow.BufferReader(data))
        rows: list[object] = read.to_pylist()
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as exc:
        raise InputError("not a parquet file that can be read") from exc
    return Table(columns=tuple(read.column_names), rows=iter(enumerate(rows, 1)))
