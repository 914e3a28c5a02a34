"""Modes of an event stream: broken ones, and odd ones that the standard allows.

Asked for a whole answer, these modes are healthy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from .answers import DONE, chunks, encoded, event, finish, healthy, pieces, send_packets
from .exchange import WORDS, Exchange, Play

SPLIT_TEXT: Final = "4é😀2"
Packets = Callable[[str], Sequence[bytes]]  # by model


def streams(packets: Packets, text: str = "") -> Play:
    """A mode that sends these packets as an event stream."""

    async def play(exchange: Exchange, _: str) -> None:
        if exchange.request.streams:
            await send_packets(exchange, packets(exchange.request.model))
        else:
            await healthy(exchange, text)

    return play


def _begun(model: str, *rest: bytes) -> list[bytes]:
    """Some text, and then the rest."""
    return [*map(event, pieces(model)), *rest]


def _error() -> bytes:
    return event({"error": {"message": WORDS, "type": "server_error", "param": None, "code": 500}})


def _bad_utf8(model: str) -> bytes:
    return event(pieces(model, "@")[-1]).replace(b"@", b"\xff\xfe")


def _as_lines(value: Any) -> bytes:
    """An event whose document stands on several lines, each in a data field of its own."""
    lines = json.dumps(value, indent=1).split("\n")
    return b"".join(f"data: {line}\n".encode() for line in lines) + b"\n"


def _whole(model: str) -> bytes:
    return b"".join([*map(event, chunks(model)), DONE])


def _split(model: str) -> list[bytes]:
    """Packets of seven bytes, so that characters and line ends are cut."""
    values = chunks(model, SPLIT_TEXT)
    data = b"".join(
        f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode() for value in values
    )
    data += DONE
    return [data[start : start + 7] for start in range(0, len(data), 7)]


def _commented(model: str) -> list[bytes]:
    fields = b": a comment\nevent: message\nid: 1\nretry: 5\nunknown\n"
    return [b": first\n\n", *(fields + event(value) for value in chunks(model)), DONE]


def _twice(model: str) -> bytes:
    return b'data: {"choices": [], ' + encoded(pieces(model, WORDS)[-1])[1:] + b"\n\n"


# Broken: the answer cannot be taken for whole.
NOT_JSON = streams(lambda model: _begun(model, b"data: " + WORDS.encode() + b"\n\n", DONE))
NUMBER = streams(lambda model: _begun(model, b"data: 42\n\n", DONE))
NAN = streams(lambda model: _begun(model, event({"choices": [], "x": float("nan")}), DONE))
DUPLICATE_KEYS = streams(lambda model: _begun(model, _twice(model), DONE))
BAD_UTF8 = streams(lambda model: _begun(model, _bad_utf8(model), event(finish(model)), DONE))
NO_BLANK = streams(lambda model: [_whole(model).replace(b"\n\n", b"\n")])
NO_FINAL = streams(lambda model: _begun(model, DONE))
NO_END = streams(_begun)
NOTHING = streams(lambda _: [])
ONLY_DONE = streams(lambda _: [DONE])
ERROR = streams(lambda model: _begun(model, _error()))
ERROR_FIRST = streams(lambda _: [_error()])
ERROR_THEN_DONE = streams(lambda model: _begun(model, _error(), DONE))

# Odd, and whole all the same.
NO_DONE = streams(lambda model: [*map(event, chunks(model))])
AFTER_DONE = streams(lambda model: [_whole(model), event(pieces(model, WORDS)[-1]), _error()])
CRLF = streams(lambda model: [_whole(model).replace(b"\n", b"\r\n")])
CR = streams(lambda model: [_whole(model).replace(b"\n", b"\r")])
NO_SPACE = streams(lambda model: [_whole(model).replace(b"data: ", b"data:")])
COMMENTS = streams(_commented)
BOM = streams(lambda model: [b"\xef\xbb\xbf" + _whole(model)])
MULTI_LINE = streams(lambda model: [*map(_as_lines, chunks(model)), DONE])
SPLIT = streams(_split, SPLIT_TEXT)
BYTEWISE = streams(lambda model: [bytes([byte]) for byte in _whole(model)])
PACKED = streams(lambda model: [_whole(model)])
