"""Server-sent events, both directions. Pure: bytes in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.json_output import dump_json
from racer_core.errors import InputError

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 2**20
_DATA, _END = b"data: ", b"\n\n"


def event(value: Mapping[str, Any]) -> bytes:
    """One data event. JSON escapes line ends, so no text can forge another event."""
    return b"data: %b\n\n" % dump_json(value)


def named_event(value: Mapping[str, Any]) -> bytes:
    """A data event under the name of its ``type``."""
    name = json.dumps(value["type"])[1:-1]  # escaped: one line, whatever a candidate sent
    return b"event: " + name.encode() + b"\n" + event(value)


def comment(text: str) -> bytes:
    """A line that clients ignore; it keeps the connection alive."""
    return f": {text}\n\n".encode()


class EventReader:
    """Cuts a byte stream into the ``data`` of its events.

    Understands LF, CRLF and CR, comments, several data lines, a byte order mark, and events cut
    anywhere, inside a character or a line end too.
    """

    def __init__(self) -> None:
        self._begun = bytearray()  # an incomplete line
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the events that this chunk completes, up to an invalid one.

        Raises:
            InputError: An event is over 1 MiB as it is written, or not UTF-8.
        """
        if not chunk:
            return
        if self._is_one_event(chunk):
            self._after_cr = self._first = False
            yield _decoded(chunk[len(_DATA) : -len(_END)])
            return
        if self._after_cr:  # an LF here is the second half of a CRLF
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._begun += first
        lines: list[bytes] = []
        if others:
            lines = [bytes(self._begun), *others[:-1]]
            self._begun = bytearray(others[-1])
        for line in lines:
            if (data := self._line(line)) is not None:
                yield data
        self._check(len(self._begun))

    def _line(self, line: bytes) -> str | None:
        self._check(len(line))
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(line)
            return None
        if not self._data:
            return None
        data, self._data, self._size = b"\n".join(self._data), [], 0
        return _decoded(data)

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether a chunk is the usual one: an event that is whole, in one line."""
        return (
            chunk.startswith(_DATA)
            and chunk.endswith(_END)
            and chunk.find(b"\n") == len(chunk) - len(_END)
            and b"\r" not in chunk
            and not (self._begun or self._data)
            and len(chunk) <= MAX_EVENT_BYTES
        )

    def _check(self, more: int) -> None:
        """Check the size: the same for a line and its beginning, however the stream is cut."""
        if self._size + more > MAX_EVENT_BYTES:
            raise InputError("an event is over 1 MiB")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InputError("an event is not UTF-8") from exc
