"""Streaming parquet reader with a limit on unpacked size: a few kilobytes can hold gigabytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, Final

from racer_core.errors import InputError, install_hint

MAX_EXPANSION: Final = 20  # bytes in memory for one in the file
_ALWAYS_BYTES: Final = 64 * 2**20  # whatever the file's size: small ones repeat themselves more
_MAX_COLUMNS: Final = 1_000
_BATCH: Final = 512


def read_parquet(file: BinaryIO) -> tuple[tuple[str, ...], Iterator[tuple[int, object]]]:
    """The names of the columns, and a lazy iterator of the rows with their numbers.

    Raises:
        InputError: Not such a file, or it unpacks to more than 20 times its size; also raised while
            rows are read.
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
        _check_footer(opened.metadata, room)
    except broken as exc:
        raise InputError("not a parquet file that can be read") from exc
    if len(set(names)) != len(names):
        raise InputError("a column name is duplicated")
    return names, _rows(opened, room, broken)


def _check_footer(metadata: Any, room: int) -> None:
    """Check the footer before anything is unpacked; sizes it omits are counted while reading."""
    if metadata.num_columns > _MAX_COLUMNS:
        raise InputError(f"{metadata.num_columns:,} columns, over the limit of {_MAX_COLUMNS:,}")
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    if min(sizes, default=0) < 0 or sum(sizes) > room:
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
