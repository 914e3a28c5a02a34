"""Turn shapes: what the turns of a request say beside the texts, images and calls in them.

A row states its own turns, so their content is no condition of the request. Their form is: whether
there are images, several parts, calls of tools or their results, and what else a turn holds. Turns
of plain text have no shape. System prompts, and a beginning of the answer at the end, are digested
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

Digest = Callable[[object], str]

_TEXT_PARTS: Final = {"messages": ("text",), "input": ("input_text", "output_text")}
_OF_PLAIN_TEXT: Final = frozenset({"role", "content", "type"})  # fields of a turn
_USER: Final = "user"
_ASSISTANT: Final = "assistant"
# What has a shape: roles of turns, and types of the responses API's items without a role.
_SHAPED: Final = frozenset(
    [_USER, _ASSISTANT, "tool", "function", "function_call", "function_call_output", "reasoning"]
)
# The fields that hold what a row states. An object below one is searched for others, such as an
# image's `detail`.
_CONTENT: Final = frozenset(
    [
        *("arguments", "audio", "call_id", "content", "data", "encrypted_content", "file"),
        *("file_data", "file_id", "file_url", "filename", "function", "function_call", "id"),
        *("image_url", "input_audio", "name", "output", "reasoning", "reasoning_content"),
        *("refusal", "status", "summary", "text", "tool_call_id", "tool_calls", "url", "video_url"),
    ]
)


def turn_shapes(field: str, value: object, digest: Digest) -> dict[str, str]:
    """The turns that are not of plain text, under ``field.role``; none for plain text alone.

    Args:
        field: The field of the body that holds the turns.
        value: The turns.
        digest: Makes the text that equal values share.
    """
    match value:
        case str():
            return {}
        case [str()] if field == "prompt":  # one prompt, as its text alone is
            return {}
        case list():
            pass
        case _:
            return {field: digest(value)}
    wholes: dict[str, list[object]] = {}  # turns with their places
    shapes: dict[str, set[str]] = {}
    ends = ""  # the name of the last turn, where it has a shape
    turns = cast("list[object]", value)
    for place, turn in enumerate(turns):
        fields = cast("dict[str, object]", turn) if isinstance(turn, dict) else {}
        role, text = fields.get("role"), _plain_text(fields, _TEXT_PARTS.get(field, ()))
        is_end = place == len(turns) - 1
        # A row of plain text ends with a text of the user.
        if text is not None and not (is_end and (role != _USER or not text.strip())):
            continue
        name = f"{field}.{role or 'other'}"
        kind = fields.get("type") if role is None else role
        if not _has_shape(kind) or (is_end and kind == _ASSISTANT):
            wholes.setdefault(name, []).append((place, cast("object", turn)))
            continue
        shapes.setdefault(name, set()).add(digest([kind, _shape(fields)]))
        if is_end:
            ends = name
    return {
        name: digest([wholes.get(name, []), sorted(shapes.get(name, ())), name == ends])
        for name in dict.fromkeys((*wholes, *shapes))
    }


def _has_shape(kind: object) -> bool:
    return isinstance(kind, str) and kind in _SHAPED  # a client's `type` may be a list


def _shape(fields: Mapping[str, object]) -> dict[str, Any]:
    """An object without what a row states; for each such field, how it is given."""
    shape: dict[str, Any] = {}
    for name in sorted(fields):
        value = fields[name]
        if not _is_absent(fields, name):
            shape[name] = _form(value) if name in _CONTENT else value
    return shape


def _form(value: object) -> object:
    """How a content is given: as a text, or as parts or an object of these shapes."""
    match value:
        case dict():
            return _shape(cast("dict[str, object]", value))
        case []:
            return []
        case list():
            parts = {repr(part): part for part in map(_form, cast("list[object]", value))}
            return [parts[each] for each in sorted(parts)]
        case _:
            return "text" if isinstance(value, str) else type(value).__name__


def _plain_text(fields: Mapping[str, object], parts: Sequence[str]) -> str | None:
    """The text of a turn of plain text, of user or assistant; else None.

    One part of text, of these types, is sent as the text itself is: servers render both alike.
    """
    if fields.get("role") not in (_USER, _ASSISTANT) or fields.get("type", "message") != "message":
        return None
    if any([not _is_absent(fields, name) for name in fields.keys() - _OF_PLAIN_TEXT]):
        return None
    match fields.get("content"):
        case str(text):
            return text
        case [{"type": str(kind), "text": str(text)}] if kind in parts:
            beside = cast("list[dict[str, object]]", fields["content"])[0]
            absent = (_is_absent(beside, name) for name in beside.keys() - {"type", "text"})
            return text if all(absent) else None
        case _:
            return None


def _is_absent(fields: Mapping[str, object], name: str) -> bool:
    """Whether a field of a turn says nothing: clients send empty fields of answers back."""
    return fields[name] is None or (name == "annotations" and fields[name] == [])
