"""Canonical JSON: the normal form of JSON documents and of lists of tool calls. Pure text.

Text that the strict reader refuses (a duplicate key, NaN) has no normal form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from racer_core import strict_json
from racer_core.errors import InputError

_FENCED = re.compile(r"```json\s*+(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
# The possible beginnings of an object or list; excludes LaTeX braces and bracketed words.
_OPENING = re.compile(r"\{\s*+[\"}]|\[\s*+[\[{\"\]\-\dtfn]")
# Failed attempts to parse, after which a text counts as having no JSON.
_ATTEMPTS: Final = 64


def json_form(text: str) -> str | None:
    """The canonical form of the JSON in an answer; None if there is none.

    Reads the whole text, else the first ``json`` block, else the first object or list. Keys are
    sorted, white space is dropped, and numbers have one spelling: 1, 1.0 and 1e0 are equal.
    """
    text = text.strip()  # a trailing line end would change where parsing fails
    fenced = _FENCED.search(text)
    for whole in (text, fenced[1] if fenced else ""):
        if (form := json_document_form(whole)) is not None:
            return form
    return _first_form(text)


def json_document_form(text: str) -> str | None:
    """The canonical form of a text that is one JSON document; None if it is not."""
    try:
        return _canonical(strict_json.loads(text.strip()))
    except InputError:
        return None


def tool_call_form(calls: Sequence[object]) -> str | None:
    """The canonical form of the tool calls of one message; None if there are none.

    Parallel calls have no order, so they are compared as a multiset; ids are ignored. Arguments
    are compared as JSON, or as text if they are not JSON. Missing arguments equal an empty object,
    which servers write in their place.

    Args:
        calls: ``tool_calls`` of a message, or its legacy ``function_call`` alone.
    """
    forms = [_call_form(call) for call in calls]
    read = [form for form in forms if form is not None]
    if not read or len(read) < len(forms):  # one unreadable call makes the answer unreadable
        return None
    return f"[{','.join(sorted(read))}]"


def tool_calls_text(calls: Sequence[object]) -> str | None:
    """Tool calls as the text that rows record: a JSON list of names and arguments, canonical.

    None where a call cannot be read. The text has the form of the calls (:func:`tool_call_form`):
    arguments that are no object stay a string, as on the wire.
    """
    form = tool_call_form(calls)
    if form is None:
        return None
    pairs: list[tuple[str, Any]] = json.loads(form)
    return _canonical([{"name": name, "arguments": _as_sent(value)} for name, value in pairs])


def is_call_list(value: object) -> bool:
    """Whether a parsed document is a list of tool calls, each with a name."""
    return isinstance(value, list) and tool_call_form(cast("list[object]", value)) is not None


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
    if isinstance(arguments, dict):  # in rows; the API sends JSON as a string
        arguments = json.dumps(arguments)
    if not isinstance(arguments, str):
        return None
    return _canonical([name, _parsed(arguments if arguments.strip() else "{}")])


def _as_sent(arguments: object) -> object:
    """Parsed arguments for a row: an object, or a string that parses to them."""
    is_object = isinstance(arguments, dict)
    return cast("object", arguments) if is_object else _canonical(arguments)


def _parsed(arguments: str) -> Any:
    """A call's arguments; invalid JSON, which models do write, stays text."""
    try:
        return strict_json.loads(arguments)
    except InputError:
        return arguments


def _first_form(text: str) -> str | None:
    """The first object or list in a text; linear: each attempt begins where the last one failed."""
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
        except (ValueError, RecursionError):  # an integer too long, brackets too deep
            return None
        else:
            try:
                return _canonical(strict_json.loads(text[start:end]))
            except InputError:
                return None
    return None


def _canonical(value: object) -> str:
    """The canonical text of a parsed document; changes its whole floats to integers in place."""
    root = [value]
    waiting: list[Any] = [root]
    while waiting:  # no recursion and no copies: one pass over a large document
        node = waiting.pop()
        keys = cast("Iterable[Any]", node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            each = cast("object", node[key])
            if isinstance(each, dict | list):
                waiting.append(each)
            elif isinstance(each, float) and each.is_integer():
                node[key] = int(each)
    return json.dumps(root[0], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
