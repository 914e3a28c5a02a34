"""Events of a stream that are alike but for one text.

Servers send an event for each token, which says the same as the one before but for the token.
One is read and checked; of those that equal it letter for letter before and after their text, the
text alone is read. What comes of it is what reading the whole event would have given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

_SCAN: Final = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """An event that was read, without its text.

    Attributes:
        before: What stands in front of the text.
        after: What follows it.
        saying: The piece that the event is, with another text.
    """

    before: str
    after: str
    saying: Callable[[str], dict[str, Any]]

    @classmethod
    def of(
        cls, data: str, key: str, text: str, saying: Callable[[str], dict[str, Any]]
    ) -> Self | None:
        """The mould of an event; None where it cannot be told which of its texts is meant.

        Args:
            data: The event, a JSON document that was read before.
            key: Under which it has the text, at one place or more.
            text: Which was read there.
            saying: The piece that was read, with another text.
        """
        before, name, rest = data.partition(f'"{key}"')
        colon = rest[: len(rest) - len(rest.lstrip(" :"))]
        value = rest[len(colon) :]
        # Without an escape no text can look like a key, and no key be written otherwise.
        if "\\" in before or name in value or not value.startswith('"'):
            return None
        said, end = _SCAN(value)
        before, after = before + name + colon, value[end:]
        if said != text or "\\" in after:
            return None
        return cls(before, after, saying)

    def piece(self, data: str) -> dict[str, Any] | None:
        """What an event says; None where it differs in more than its text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        try:
            text = orjson.loads(data[len(self.before) : len(data) - len(self.after)])
        except orjson.JSONDecodeError:  # half a surrogate pair, say
            return None
        return self.saying(text) if isinstance(text, str) else None
