"""Strict JSON parser for requests and labelled rows.

Stricter than the standard library: duplicate keys, NaN and Infinity, numbers that overflow to
infinity, lone surrogates, deep nesting and invalid UTF-8 are errors. Messages never repeat the
input, which may be a user's prompt.

orjson reads what it certainly reads alike, in less than half of the time; the strict decoder reads
the rest, and writes every error.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, Never, cast

import orjson

from racer_core.errors import InputError

MAX_DEPTH = 64
_MOST_INDENTED: Final = 2**15  # bytes: indenting multiplies the size of deep documents
_TOO_DEEP: Final = b"\n" + b"  " * (MAX_DEPTH + 1)
_ALL_DIGITS_0: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19  # shorter integers fit into 64 bits


def loads(data: bytes | str) -> Any:
    """Parse one JSON document.

    Raises:
        InputError: The message names the error and its position.
    """
    try:
        return read_alike(data if isinstance(data, bytes) else data.encode("utf-8"))
    except (ValueError, TypeError):
        return decode_strictly(data)


def decode_strictly(data: bytes | str) -> Any:
    """The same by the strict decoder alone, which defines it. Raises as :func:`loads`."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        text.encode("utf-8")
        value = _DECODER.decode(text)
    except UnicodeEncodeError as exc:
        raise InputError("the text holds a lone surrogate, which is not text") from exc
    except UnicodeDecodeError as exc:
        raise InputError(f"not UTF-8: bad byte at position {exc.start}") from exc
    except json.JSONDecodeError as exc:
        reason = exc.msg.removesuffix(" at")  # "Unterminated string starting at"
        raise InputError(f"not JSON: {reason} at {_place(exc.doc, exc.pos)}") from exc
    except RecursionError as exc:
        raise InputError(f"JSON is nested deeper than {MAX_DEPTH} levels") from exc
    except ValueError as exc:  # an integer of more than 4,300 digits
        raise InputError("a number in the JSON has too many digits") from exc
    # Both defects need these characters, so most documents skip the walk.
    if text.count("[") + text.count("{") > MAX_DEPTH or "\\ud" in text or "\\uD" in text:
        _check_tree(value)
    return value


def read_alike(data: bytes) -> Any:
    """Parse a document of which orjson and the strict decoder certainly read the same value.

    Of what the strict decoder refuses, orjson reads only repeated keys and deep nesting. Of what
    both read, it turns integers beyond 64 bits into floats.

    Raises:
        ValueError: orjson refuses it, or may have read it otherwise.
        TypeError: It is too deep to be written.
    """
    if b"\\u003" in data or _LONG_NUMBER in data.translate(_ALL_DIGITS_0):
        raise ValueError("it may hold an escaped colon or a number beyond 64 bits")
    may_be_deep = data.count(b"[") + data.count(b"{") > MAX_DEPTH
    if may_be_deep and len(data) > _MOST_INDENTED:
        raise ValueError("too long to look for deep nesting")
    value = orjson.loads(data)
    # No colon was an escape, so each is written again, unless a repeated key replaced its value.
    # Lines begin only between values, and their indentation is their depth.
    written = orjson.dumps(value, option=orjson.OPT_INDENT_2 if may_be_deep else None)
    if written.count(b":") != data.count(b":") or (may_be_deep and _TOO_DEEP in written):
        raise ValueError("a key is repeated, or the nesting is deep")
    return value


def load_object(data: bytes | str) -> dict[str, Any]:
    """Parse one JSON document that must be an object."""
    value = loads(data)
    if not isinstance(value, dict):
        raise InputError("expected a JSON object")
    return cast("dict[str, Any]", value)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InputError("a JSON object has the same key twice")
    return value


def _reject_constant(_: str) -> Never:
    raise InputError("NaN and Infinity are not JSON numbers")


def _finite_float(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise InputError("a number in the JSON is too large")
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates,
    parse_constant=_reject_constant,
    parse_float=_finite_float,
)


def _place(text: str, position: int) -> str:
    """The position in a document; in a single line, such as a row of a file, the column only."""
    lines = text.rstrip()
    position = min(position, len(lines))
    column = position - lines.rfind("\n", 0, position)
    line = lines.count("\n", 0, position) + 1
    return f"line {line}, column {column}" if "\n" in lines else f"column {column}"


def _check_tree(root: Any) -> None:
    """Walk without recursion: refuse deep nesting and lone surrogates, keys included."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                _check_text(node)
            elif isinstance(node, dict):
                mapping = cast("dict[str, Any]", node)
                below.extend(mapping)
                below.extend(mapping.values())
            elif isinstance(node, list):
                below.extend(cast("list[Any]", node))
        if not below:
            return
        level = below
    raise InputError(f"JSON is nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise InputError("a string in the JSON holds a lone surrogate, which is not text") from exc
