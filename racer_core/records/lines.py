"""Line reader of text files, with a maximum line length."""

from __future__ import annotations

import codecs
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import count
from typing import BinaryIO

from racer_core.errors import InputError

_CHUNK = 1 << 18
_ENDED = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++")
Line = tuple[int, bytes | InputError]  # its number from 1, and it or why it cannot be read


def check_text(file: BinaryIO) -> None:
    """Check the encoding of a whole file, and return to its beginning.

    Raises:
        InputError: It is not UTF-8; names the line.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    try:
        while chunk := file.read(_CHUNK):
            decoder.decode(chunk)
            line += chunk.count(b"\n")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as exc:
        line += exc.object.count(b"\n", 0, exc.start)
        raise InputError(f"line {line}: not UTF-8; save the file as UTF-8") from exc
    file.seek(0)


def binary_lines(file: BinaryIO, max_bytes: int | None) -> Iterator[Line]:
    """Lines that end at LF only, without a byte order mark; a line that is too long is an error."""
    size = -1 if max_bytes is None else max_bytes + 1
    for number in count(1):
        line = file.readline(size)
        if not line:
            return
        if len(line) == size and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(size)
            yield number, InputError(f"longer than {max_bytes:,} bytes")
        else:
            yield number, line.removeprefix(BOM_UTF8) if number == 1 else line


def text_lines(file: BinaryIO, max_bytes: int | None) -> Iterator[str]:
    """Lines with their ends, which may be CR, for the CSV reader.

    Raises:
        InputError: A line is too long, or holds a NUL, which no text does.
    """
    number = 0
    for _, line in binary_lines(file, max_bytes):
        if isinstance(line, InputError):
            raise InputError(f"line {number + 1}: {line}")
        for text in _ENDED.findall(line.decode("utf-8")):
            number += 1
            if "\0" in text:
                raise InputError(f"line {number}: holds a NUL byte; save the file as UTF-8")
            yield text
