"""Reads the rows of an upload into columns, in whatever process it is called."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from app.calibrations.columns import ColumnWriter
from racer_core.aggregation.answers import Equality
from racer_core.errors import InputError, RowsError
from racer_core.records.checks import CheckedRows, RowLimits
from racer_core.records.conversation import RoutedText
from racer_core.records.document import read_document
from racer_core.records.reader import stream_rows

MAX_ROWS: Final = 2_000_000
MAX_LINE_BYTES: Final = 2**20
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk
_TOLD_EVERY_S: Final = 0.2
_CLOCK_EVERY: Final = 64  # rows between two looks at it

Fields = Callable[[dict[str, Any]], None]
Read = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInstructions:
    """What is to be read.

    Attributes:
        name: The file's, in lower case; the format follows from its end.
        source: What messages call the file.
        document: A JSON body: options stand beside its rows.
        pool: The candidates that the rows must be about.
        query_chars: Longer queries are refused.
        equality: When two recorded answers are the same; None leaves answers out.
        salt: Of the fingerprints by which queries are known.
        text: What the router reads of a conversation.
    """

    name: str
    source: str
    document: bool
    pool: tuple[str, ...]
    query_chars: int
    equality: Equality | None
    salt: str
    text: RoutedText


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the columns do not say."""

    pool: tuple[str, ...]
    duplicates: int
    near_duplicates: int


def parse(
    order: ReadInstructions,
    file: BinaryIO,
    texts: BinaryIO,
    arrays: BinaryIO,
    *,
    fields: Fields,
    progress: Read,
) -> Parsed:
    """Read all rows, or none.

    Args:
        order: What is to be read.
        file: The upload, at its beginning.
        texts: Takes the queries.
        arrays: Takes everything else, as :func:`app.calibrations.columns.load` reads it.
        fields: Hears what stands beside the rows of a document, before they are read.
        progress: Hears how many bytes were read, and how many there are.

    Raises:
        RowsError: A row is wrong, or there are too many; names each line.
        InputError: A document that is not JSON.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    limits = RowLimits(
        query_chars=order.query_chars, line_bytes=MAX_LINE_BYTES, rows=MAX_ROWS, text=order.text
    )
    try:
        rows = (
            _document(order, file, limits, fields) if order.document else _file(order, file, limits)
        )
        writer = ColumnWriter(rows.pool, texts, order.equality, order.salt, order.text)
        told = 0.0
        for number, row in enumerate(rows):
            writer.add(row)
            if number % _CLOCK_EVERY == 0 and time.monotonic() - told > _TOLD_EVERY_S:
                told = time.monotonic()
                progress(file.tell(), size)
    except RowsError:
        raise
    except InputError as exc:
        if order.document:
            raise
        raise RowsError(order.source, [str(exc)]) from exc
    texts.flush()
    writer.save(arrays)
    arrays.flush()
    return Parsed(rows.pool, rows.duplicates, writer.near_duplicates)


def _file(order: ReadInstructions, file: BinaryIO, limits: RowLimits) -> CheckedRows:
    return stream_rows(file, order.name, order.source, order.pool, limits)


def _document(
    order: ReadInstructions, file: BinaryIO, limits: RowLimits, fields: Fields
) -> CheckedRows:
    document = read_document(file, MAX_LINE_BYTES)
    beside = {name: value for name, value in document.fields.items() if name != "candidates"}
    fields(beside)
    return CheckedRows(document.rows, order.source, order.pool, limits=limits, unit="row")
