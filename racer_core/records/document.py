"""Streaming parser for a JSON document of rows: ``{"rows": [...], ...}``, or a list of rows.

Two passes over the file, since other fields may follow the rows. A lenient scan finds the end of
each value; the strict parser then reads the value, so that errors name their row.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.records.lines import check_text

_CHUNK: Final = 1 << 18
_MAX_FIELDS: Final = 64
_LOOK_AHEAD: Final = 3  # "1e+" at the end of the buffer may be the beginning of a number
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers stay text here: the strict parser validates them.
_BOUNDS: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


@dataclass(frozen=True, slots=True)
class Document:
    """The fields beside the rows, and the rows: number, and value or InputError."""

    fields: dict[str, Any]
    rows: Iterator[tuple[int, object]]


def read_document(file: BinaryIO, max_chars: int | None = None) -> Document:
    """Read a document; ``candidates`` beside its rows is their header and is returned as row 0.

    Args:
        file: At its beginning; rows are read from it lazily.
        max_chars: Maximum length of a value.

    Raises:
        InputError: Not JSON, or no list of rows; names the row if one is wrong.
    """
    check_text(file)
    fields: dict[str, Any] = {}
    rows = False
    for name, text in _parts(_Window(file, max_chars)):
        if name is None:
            rows = True
        else:
            fields[name] = strict_json.loads(text)
    if not rows:
        raise InputError('expected a list of rows, or an object with "rows"', param="rows")
    return Document(fields, _rows(file, fields, max_chars))


def _rows(
    file: BinaryIO, fields: dict[str, Any], max_chars: int | None
) -> Iterator[tuple[int, object]]:
    if "candidates" in fields:
        yield 0, {"candidates": fields["candidates"]}
    file.seek(0)
    texts = (text for name, text in _parts(_Window(file, max_chars)) if name is None and text)
    for number, text in enumerate(texts, 1):
        yield number, strict_value(text)


def strict_value(text: str) -> object:
    """A value, or the error that reading it raised."""
    try:
        return strict_json.loads(text)
    except InputError as exc:
        return exc


def _parts(window: _Window) -> Iterator[tuple[str | None, str]]:
    """Fields with their names, rows with None; an empty text marks the start of the rows."""
    first = window.peek()
    if first == "[":
        yield from _items(window)
    elif first == "{":
        yield from _members(window)
    else:
        strict_json.loads(window.value())
        raise InputError('expected a list of rows, or an object with "rows"', param="rows")
    if window.peek():
        raise InputError("not JSON: something stands behind the document")


def _members(window: _Window) -> Iterator[tuple[str | None, str]]:
    names: set[str] = set()
    window.skip("{")
    while window.peek() != "}":
        if names:
            window.skip(",")
        name = strict_json.loads(window.value())
        window.skip(":")
        if not isinstance(name, str):
            raise InputError("not JSON: the name of a field must be a string")
        if name in names:
            raise InputError("a JSON object has the same key twice")
        names.add(name)
        if len(names) > _MAX_FIELDS:
            raise InputError(f"more than {_MAX_FIELDS} fields beside the rows")
        if name == "rows" and window.peek() == "[":
            yield from _items(window)
        else:
            yield name, window.value()
    window.skip("}")


def _items(window: _Window) -> Iterator[tuple[None, str]]:
    yield None, ""  # there is a list, however empty
    number = 0
    window.skip("[")
    while window.peek() != "]":
        number += 1
        try:
            if number > 1:
                window.skip(",")
            text = window.value()
        except InputError as exc:
            raise InputError(f"row {number}: {exc}", param="rows") from exc
        yield None, text
    window.skip("]")


class _Window:
    """The buffer of characters that were read from a file and not consumed yet."""

    def __init__(self, file: BinaryIO, max_chars: int | None) -> None:
        self._file = file
        self._max_chars = max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None
            self._at = space.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def skip(self, char: str) -> None:
        """Consume one expected character."""
        if self.peek() != char:
            raise InputError(f"not JSON: expected {char!r}")
        self._at += 1

    def value(self) -> str:
        """Consume the text of the value that begins here."""
        self.peek()
        while True:
            try:
                _, end = _BOUNDS.raw_decode(self._text, self._at)
            except json.JSONDecodeError as exc:
                self._check(len(self._text), "not JSON, or longer than")
                if not self._grow():
                    raise InputError(f"not JSON: {exc.msg}") from exc
            except RecursionError as exc:
                deepest = strict_json.MAX_DEPTH
                raise InputError(f"JSON is nested deeper than {deepest} levels") from exc
            else:
                self._check(end, "longer than")
                if end + _LOOK_AHEAD <= len(self._text) or not self._grow():
                    text = self._text[self._at : end]
                    self._at = end
                    return text

    def _check(self, end: int, complaint: str) -> None:
        if self._max_chars is not None and end - self._at > self._max_chars:
            raise InputError(f"{complaint} {self._max_chars:,} characters")

    def _grow(self) -> bool:
        """Double the buffer at least; False, without a change, at the end of the file."""
        data = self._file.read(max(_CHUNK, len(self._text) - self._at))
        if data:
            self._text = self._text[self._at :] + self._decoder.decode(data)
            self._at = 0
        return bool(data)
