"""Tools and answer schemas that real servers are asked to keep."""

from __future__ import annotations

from typing import Any, Final

TOPIC: Final = {
    "type": "object",
    "properties": {"topic": {"type": "string", "enum": ["sums"]}},
    "required": ["topic"],
    "additionalProperties": False,
}

LOOK_UP: Final = {"name": "look_up", "strict": True, "parameters": TOPIC}
ROOM: Final = 160  # tokens, for what a schema adds to an answer


def tool(function: dict[str, Any]) -> list[Any]:
    """One tool of a request."""
    return [{"type": "function", "function": function}]
