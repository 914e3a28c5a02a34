"""Recording of a candidate's stream, so that it can be sent again from the answer cache.

Events that differ in their text alone become one with the whole text: a recording is about as long
as the answer, and the events of a repeat are fewer and say the same.
"""

from __future__ import annotations

from app.json_output import dump_json
from app.wire.event_template import EventTemplate, Piece, TextEvent


class StreamRecording:
    """The events of a stream as JSON.

    Args:
        max_bytes: A longer stream is not recorded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._events: list[bytes] = []
        self._template: EventTemplate | None = None  # of the texts that are not in an event yet
        self._texts: list[str] = []

    def add(self, piece: Piece) -> None:
        """Record an event."""
        if self._left < 0:
            return
        if isinstance(piece, TextEvent):
            if piece.template is not self._template:
                self._join()
                self._template = piece.template
            self._texts.append(piece.text)
            self._left -= len(piece.text)  # no text has fewer bytes
        else:
            self._join()
            self._write(piece)

    @property
    def content(self) -> bytes | None:
        """The array of all events; None of a stream that is too long."""
        self._join()
        return None if self._left < 0 else b"[%b]" % b",".join(self._events)

    def _join(self) -> None:
        if self._template is not None:
            self._left += sum(map(len, self._texts))
            self._write(self._template.with_text("".join(self._texts)))
            self._template, self._texts = None, []

    def _write(self, piece: dict[str, object]) -> None:
        event = dump_json(piece)
        self._left -= len(event) + 1
        if self._left < 0:
            self._events, self._texts = [], []
        else:
            self._events.append(event)
