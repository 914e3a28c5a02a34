"""File formats: JSON lines, a JSON document, CSV and parquet, as numbered objects.

Does not interpret rows. Streaming: in memory are one line, one value of a document, or one batch of
parquet rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any, BinaryIO, Final

from racer_core.errors import InputError, install_hint
from racer_core.records.document import read_document, strict_value
from racer_core.records.lines import binary_lines, check_text, text_lines

MAX_UNPACKED_BYTES = 2**30
_MAX_COLUMNS: Final = 1_000
Place = int | str  # a line's number, or a name such as a task and a document in it
Numbered = tuple[Place, object]  # where a row stands, and it or the InputError that reading raised


@dataclass(frozen=True, slots=True)
class TabularFile:
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
    """Unpack gzip with a size limit: a few kilobytes can hold gigabytes."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            contents = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise InputError("not a gzip file") from exc
    if len(contents) > max_bytes:
        raise InputError(f"unpacks to more than {max_bytes:,} bytes")
    return contents


def json_objects(file: BinaryIO, name: str, max_line: int | None = None) -> Iterator[Numbered]:
    """The rows of a JSON document (``.json``) or of JSON lines, with a maximum length of a row."""
    if name.endswith(".json"):
        return read_document(file, max_line).rows
    return read_lines(file, max_line)


def json_lines(data: bytes) -> Iterator[Numbered]:
    """As :func:`read_lines`, from memory and without a maximum length."""
    return read_lines(io.BytesIO(data))


def read_lines(file: BinaryIO, max_bytes: int | None = None) -> Iterator[Numbered]:
    """One JSON value a line, without blank lines.

    Lines end at LF only: a string may hold U+0085 or U+2028.

    Raises:
        InputError: The file is not UTF-8.
    """
    check_text(file)
    for number, line in binary_lines(file, max_bytes):
        if isinstance(line, InputError):
            yield number, line
        elif line.strip():
            yield number, strict_value(line.decode("utf-8"))


def is_table(name: str) -> bool:
    """Whether a file is tabular, by its name."""
    return name.endswith((".csv", ".parquet"))


def table(
    file: BinaryIO, name: str, max_line: int | None = None, max_rows: int | None = None
) -> TabularFile:
    """The columns and rows of CSV or parquet.

    Args:
        file: The file.
        name: Its name in lower case.
        max_line: Maximum length of a line of CSV.
        max_rows: Maximum number of rows that parquet, which states it first, may have.

    Raises:
        InputError: Not such a file; also raised later, at the row where the file is damaged.
    """
    if name.endswith(".parquet"):
        return TabularFile(*read_parquet(file, max_rows))
    return _csv(file, max_line)


def _csv(file: BinaryIO, max_line: int | None) -> TabularFile:
    check_text(file)
    lines = text_lines(file, max_line)
    first = next(lines, "")
    reader = csv.reader(chain((first,), lines), strict=True, delimiter=_delimiter(first))
    with _csv_errors(reader):
        header = tuple(next(reader, list[str]()))
    if len(header) > _MAX_COLUMNS:
        raise InputError(f"line 1: {len(header):,} columns, over the limit of {_MAX_COLUMNS:,}")
    return TabularFile(columns=header, rows=_csv_rows(reader, header))


def _delimiter(header: str) -> str:
    """What separates the columns: spreadsheets write semicolons where a comma is in numbers."""
    return max(",;\t", key=header.count)


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


# Streaming parquet reader with a limit on unpacked size: a few kilobytes can hold gigabytes.

MAX_EXPANSION: Final = 20  # bytes in memory for one in the file
_ALWAYS_BYTES: Final = 64 * 2**20  # whatever the file's size: small ones repeat themselves more
_ROW_BYTES: Final = 256  # that a row takes at least once it is read

_BATCH: Final = 512


def read_parquet(
    file: BinaryIO, max_rows: int | None = None
) -> tuple[tuple[str, ...], Iterator[tuple[int, object]]]:
    """The names of the columns, and a lazy iterator of the rows with their numbers.

    Args:
        file: The file.
        max_rows: Maximum number of rows; None: any.

    Raises:
        InputError: Not such a file, it has too many rows, or it unpacks to more than 20 times its
            size; also raised while rows are read.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as exc:
        raise InputError(f"parquet needs pyarrow: {install_hint('parquet')}") from exc
    broken = (arrow.ArrowException, OSError, ValueError, OverflowError)
    room = max(MAX_EXPANSION * file.seek(0, os.SEEK_END), _ALWAYS_BYTES)
    file.seek(0)
    try:
        opened = parquet.ParquetFile(file)
        names = tuple(str(name) for name in opened.schema_arrow.names)
        _check_footer(opened.metadata, room, max_rows)
    except broken as exc:
        raise InputError("not a parquet file that can be read") from exc
    if len(set(names)) != len(names):
        raise InputError("a column name is duplicated")
    return names, _rows(opened, room, broken)


def _check_footer(metadata: Any, room: int, max_rows: int | None) -> None:
    """Check the footer before anything is unpacked; sizes it omits are counted while reading.

    A column of one repeated value takes a few bytes for any number of rows, also unpacked, and
    each row takes memory and time once it is read: hence the number of rows.
    """
    if max_rows is not None and metadata.num_rows > max_rows:
        raise InputError(f"more than {max_rows:,} rows")
    if metadata.num_columns > _MAX_COLUMNS:
        raise InputError(f"{metadata.num_columns:,} columns, over the limit of {_MAX_COLUMNS:,}")
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    declared = max(sum(sizes), metadata.num_rows * _ROW_BYTES)
    if min(sizes, default=0) < 0 or declared > room:
        raise _too_large(room)


def _rows(
    opened: Any, room: int, broken: tuple[type[Exception], ...]
) -> Iterator[tuple[int, object]]:
    number = unpacked = 0
    try:
        for batch in opened.iter_batches(batch_size=_BATCH, use_threads=False):
            unpacked += batch.nbytes
            if unpacked > room:
                raise _too_large(room)
            rows: list[object] = batch.to_pylist()
            for row in rows:
                number += 1
                yield number, row
    except broken as exc:
        raise InputError("not a parquet file that can be read") from exc


def _too_large(room: int) -> InputError:
    return InputError(f"unpacks to more than {room:,} bytes, {MAX_EXPANSION} times the file's size")
