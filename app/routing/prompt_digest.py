"""Prompt digest: a hash of a request's system prompt and tools, which tells its application. Pure.

Rows of uploads are read by the same function, in a process that starts without the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, cast

from app.routing.conditions import ROW_PATH

_SYSTEM: Final = ("system", "developer")
# The fields of each endpoint that hold a system prompt.
_PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat/completions": ("messages",),
    "responses": ("instructions", "input"),
    "completions": (),
}


def prompt_digest(fields: Mapping[str, Any], path: str = ROW_PATH) -> str | None:
    """Digest of a request's system prompt and tools; None for a request without any.

    A prompt has one digest in both APIs that have one: as a turn, as `instructions`, as a text or
    as its only part.

    Args:
        fields: The fields of its body.
        path: Its endpoint: servers ignore the fields of another API.
    """
    system: list[object] = []
    if "instructions" in _PROMPTS[path] and isinstance(fields.get("instructions"), str):
        system += [fields["instructions"]] if fields["instructions"] else []
    for name in _PROMPTS[path]:
        turns = fields.get(name)
        if isinstance(turns, list):
            dictionaries = cast(
                "list[dict[str, object]]",
                [turn for turn in cast("list[object]", turns) if isinstance(turn, dict)],
            )
            system += [_text(turn) for turn in dictionaries if turn.get("role") in _SYSTEM]
    tools = ("tools", "functions") if _PROMPTS[path] else ()
    found = {name: fields[name] for name in tools if fields.get(name)}
    if not system and not found:
        return None
    text = json.dumps(found | {"system": system}, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _text(turn: Mapping[str, object]) -> object:
    """The content of a turn; the text of its only part."""
    content = turn.get("content")
    match content:
        case [{"type": "text" | "input_text", "text": str(text)}]:
            return text
        case _:
            return content
