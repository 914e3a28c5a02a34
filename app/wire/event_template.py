"""Template of server-sent events: parses events of one stream that differ in their text alone.

Servers send one event for each token, and consecutive events differ in the token alone. The first
event is parsed and checked in full. For an event that equals it letter for letter before and after
the text, only the text is parsed; the result is that of a full parse.

Measured with chunks of vLLM, both arms in one process, in turn: reading and rewriting an event of
chat takes 9 us instead of 17, of text completions 8 instead of 16. In function calls, a token of a
stream costs the gateway 116 instead of 167 (``tests/app/test_cost.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

_PARSE_STRING: Final = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """An event that was parsed, without its text.

    Attributes:
        before: The characters in front of the text.
        after: The characters behind the text.
        with_text: Builds the parsed event with another text.
    """

    before: str
    after: str
    with_text: Callable[[str], dict[str, Any]]

    @classmethod
    def of(
        cls, data: str, key: str, text: str, with_text: Callable[[str], dict[str, Any]]
    ) -> Self | None:
        """The template of an event; None where it is not certain which string is the text.

        Args:
            data: The event, a JSON document that was parsed before.
            key: Name of the member that holds the text, in one place or several.
            text: The text that was parsed there.
            with_text: Builds the parsed event with another text.
        """
        before, name, rest = data.partition(f'"{key}"')
        colon = rest[: len(rest) - len(rest.lstrip(" :"))]
        value = rest[len(colon) :]
        # Without an escape no string can look like the key, and the key has one spelling.
        if "\\" in before or name in value or not value.startswith('"'):
            return None
        parsed, end = _PARSE_STRING(value)
        before, after = before + name + colon, value[end:]
        if parsed != text or "\\" in after:
            return None
        return cls(before, after, with_text)

    def piece(self, data: str) -> dict[str, Any] | None:
        """The parsed event; None where it differs in more than its text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        try:
            text = orjson.loads(data[len(self.before) : len(data) - len(self.after)])
        except orjson.JSONDecodeError:  # half a surrogate pair, for example
            return None
        return self.with_text(text) if isinstance(text, str) else None
