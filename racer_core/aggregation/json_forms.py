"""Canonical JSON: when two documents, or two lists of tool calls, are the same answer.

Pure text, read by the strict reader: what it refuses (a key twice, NaN) is nobody's answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from racer_core import strict_json
from racer_core.errors import InputError

_FENCED = re.compile(r"```json\s*+(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
# What an object or a list can begin with: a brace of LaTeX or a bracketed word is none.
_OPENING = re.compile(r"\{\s*+[\"}]|\[\s*+[\[{\"\]\-\dtfn]")
# A failed attempt costs a walk back over the text. Whoever opens so many and ends none writes none.
_ATTEMPTS: Final = 64


def json_form(text: str) -> str | None:
    """The canonical form of the JSON in an answer; None where there is none.

    The whole text, else the first ``json`` block, else the first object or list within it. Keys
    are sorted, white space is dropped, and numbers are written alike: 1, 1.0 and 1e0 are equal.
    """
    text = text.strip()  # what ends at a line end breaks elsewhere than what just ends
    fenced = _FENCED.search(text)
    for whole in (text, fenced[1] if fenced else ""):
        if whole.strip():
            try:
                return _canonical(strict_json.loads(whole.strip()))
            except InputError:
                pass
    return _first_form(text)


def tool_call_form(calls: Sequence[object]) -> str | None:
    """The canonical form of the tool calls of one message; None where there are none.

    Calls made at once have no order, so they are compared as a multiset; ids are ignored.
    Arguments are compared as JSON, or letter by letter where they are none; no arguments at all
    are an empty object, which is how servers write them when they write them.

    Args:
        calls: ``tool_calls`` of a message, or its legacy ``function_call`` alone.
    """
    forms = [_call_form(call) for call in calls]
    read = [form for form in forms if form is not None]
    if not read or len(read) < len(forms):  # a call that cannot be read makes another answer
        return None
    return f"[{','.join(sorted(read))}]"


def _call_form(call: object) -> str | None:
    if not isinstance(call, Mapping):
        return None
    wire = cast("Mapping[str, object]", call)
    function = wire.get("function", wire)
    if not isinstance(function, Mapping):
        return None
    body = cast("Mapping[str, object]", function)
    name, arguments = body.get("name"), body.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):  # the wire has JSON in a text
        return None
    return _canonical([name, _parsed(arguments if arguments.strip() else "{}")])


def _parsed(arguments: str) -> Any:
    """A call's arguments; models write broken ones too, and those are compared as they stand."""
    try:
        return strict_json.loads(arguments)
    except InputError:
        return arguments


def _first_form(text: str) -> str | None:
    """The first object or list in a text; linear, for each attempt begins where the last ended."""
    decoder = json.JSONDecoder()
    position = 0
    for _ in range(_ATTEMPTS):
        opening = _OPENING.search(text, position)
        if opening is None:
            return None
        start = opening.start()
        try:
            end = decoder.raw_decode(text, start)[1]
        except json.JSONDecodeError as exc:
            position = max(exc.pos, start + 1)
        except (ValueError, RecursionError):  # an integer without end, brackets without end
            return None
        else:
            try:
                return _canonical(strict_json.loads(text[start:end]))
            except InputError:
                return None
    return None


def _canonical(value: object) -> str:
    """The one text of a freshly read document, whose whole numbers become integers in place."""
    root = [value]
    waiting: list[Any] = [root]
    while waiting:  # without recursion or copies: a long document is walked once
        node = waiting.pop()
        keys = cast("Iterable[Any]", node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            each = cast("object", node[key])
            if isinstance(each, dict | list):
                waiting.append(each)
            elif isinstance(each, float) and each.is_integer():
                node[key] = int(each)
    return json.dumps(root[0], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
