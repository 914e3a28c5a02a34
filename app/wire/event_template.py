"""Template of server-sent events: reads and writes events of one stream that differ in their text.

Servers send one event for each token, and consecutive events differ in the token alone. The first
event is parsed and checked in full. Of an event that equals it letter for letter before and after
the text, only the text is parsed, and for the client it is spliced into an event that was written
before. The result is that of parsing and writing every event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

_PARSE_STRING: Final = json.JSONDecoder().raw_decode
_MARK: Final = "\0text"  # stands for the text in an event that is written for the first time
_WRITTEN_MARK: Final = orjson.dumps(_MARK).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTemplate:
    """An event that was parsed, without its text.

    Attributes:
        before: The characters in front of the text.
        after: The characters behind the text.
        with_text: Builds the parsed event with another text.
        choice: The index of its only choice.
        other_chars: Number of characters of text beside the text.
    """

    before: str
    after: str
    with_text: Callable[[str], dict[str, Any]]
    choice: Hashable
    other_chars: int

    @classmethod
    def of(
        cls,
        data: str,
        key: str,
        text: str,
        with_text: Callable[[str], dict[str, Any]],
        *,
        choice: Hashable = 0,
        other_chars: int = 0,
    ) -> Self | None:
        """The template of an event; None where it is not certain which string is the text.

        Args:
            data: The event, a JSON document that was parsed before.
            key: Name of the member that holds the text, in one place or several.
            text: The text that was parsed there.
            with_text: Builds the parsed event with another text.
            choice: See the attribute, as the next one.
            other_chars: See the attribute.
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
        return cls(
            before=before,
            after=after,
            with_text=with_text,
            choice=choice,
            other_chars=other_chars,
        )

    def event(self, data: str) -> TextEvent | None:
        """The event; None where it differs in more than its text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return None
        written = data[len(self.before) : len(data) - len(self.after)]
        if not written.startswith('"'):
            return None
        try:
            return TextEvent(self, orjson.loads(written), written)
        except orjson.JSONDecodeError:  # half a surrogate pair, for example
            return None


@dataclass(frozen=TYPE_CHECKING, slots=True)  # there is one for each token
class TextEvent:
    """An event that fits a template.

    Attributes:
        template: The template.
        text: The text.
        written: The text as the candidate wrote it, a JSON string.
    """

    template: EventTemplate
    text: str
    written: str

    def parsed(self) -> dict[str, Any]:
        """What parsing it in full would give."""
        return self.template.with_text(self.text)


Piece = dict[str, Any] | TextEvent  # an event of a candidate's stream


def parsed(piece: Piece) -> dict[str, Any]:
    """The piece as a JSON object."""
    return piece.parsed() if isinstance(piece, TextEvent) else piece


class SplicedEvents:
    """Writes events of templates: what stands around the text is written once for each template.

    Args:
        write: Writes a parsed event for the client.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], bytes]) -> None:
        self._write = write
        self._template: EventTemplate | None = None
        self._before = self._after = ""
        self._is_clear = False  # where the text stands in what is written

    def event(self, event: TextEvent) -> bytes:
        """The event for the client."""
        if event.template is not self._template:
            self._learn(event.template)
        if not self._is_clear:
            return self._write(event.parsed())
        return f"{self._before}{event.written}{self._after}".encode()

    def _learn(self, template: EventTemplate) -> None:
        written = self._write(template.with_text(_MARK)).decode()
        self._template = template
        self._is_clear = written.count(_WRITTEN_MARK) == 1
        self._before, _, self._after = written.partition(_WRITTEN_MARK)
