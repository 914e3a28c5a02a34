"""Append-only files of JSON lines: whole lines, one writer, and repair of a torn last line.

Every line is a single write: a killed process leaves whole lines; a full disk leaves at most one
torn line, which is cut when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from racer_core import strict_json
from racer_core.errors import InputError


def append(file: FileIO, data: bytes, path: Path) -> None:
    """Write whole lines at the end of a file.

    Raises:
        InputError: The file cannot be written, or not in full.
    """
    try:
        whole = file.write(data) == len(data)
    except OSError as exc:
        raise InputError(f"{path}: cannot be written ({exc.strerror})") from exc
    if not whole:
        raise InputError(f"{path}: cannot be written (no space left)")


def lock(rows: FileIO, path: Path) -> None:
    """Lock a file for this process. Raises InputError where another process holds it."""
    try:
        fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise InputError(f"{path}: another `racer label` is writing to it") from exc


def whole_lines(file: FileIO, path: Path, beginnings: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Split a file into whole lines and a tail; a complete object at the end is a line.

    Args:
        file: The file.
        path: Its path, for messages.
        beginnings: The first bytes of every line that is written into it.

    Raises:
        InputError: The tail is no beginning of such a line.
    """
    file.seek(0)
    data = file.readall()
    lines, end, tail = data.rpartition(b"\n")
    try:
        strict_json.load_object(tail)
    except InputError as exc:
        if not any(begin.startswith(tail[: len(begin)]) for begin in beginnings):
            raise InputError(f"{path}: not of `racer label`; write to a new file") from exc
        return lines + end, tail
    return data, b"\n"


def repair_tail(file: FileIO, tail: bytes) -> None:
    """Cut a torn last line; end a whole one with a line break."""
    if tail == b"\n":
        file.write(tail)
    elif tail:
        file.truncate(file.seek(0, os.SEEK_END) - len(tail))


def json_line(value: Mapping[str, Any]) -> str:
    """One object as a line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
