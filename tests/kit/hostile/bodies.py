"""Modes of the body: not JSON, not OpenAI's, of another type, without end, compressed."""

from __future__ import annotations

import zlib
from functools import cache

from .answers import DONE, EVENTS, JSON, chunks, completion, encoded, event, piece
from .exchange import WORDS, Exchange, Play

_BLOCK = b"x" * 2**16


def sends(data: bytes, kind: str = JSON) -> Play:
    """A mode that answers these bytes with status 200."""

    async def play(exchange: Exchange, _: str) -> None:
        await exchange.answer(data, kind=kind)

    return play


BAD_JSON = sends(b"{'choices': oops, " + WORDS.encode())
NAN = sends(encoded(completion("x", WORDS)).replace(b'"created": 1', b'"created": NaN'))
DUPLICATE_KEYS = sends(b'{"choices": [], ' + encoded(completion("x", WORDS))[1:])
DEEP = sends(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
LATIN = sends(encoded(completion("x", "caf@")).replace(b"@", b"\xe9"))
NOT_OPENAI = sends(encoded({"result": WORDS}))
ERROR = sends(encoded({"error": {"message": WORDS, "type": "server_error", "code": 500}}))
HTML = sends(f"<html><body><h1>{WORDS}</h1></body></html>".encode(), "text/html")
EMPTY = sends(b"")


async def truncated_json(exchange: Exchange, _: str) -> None:
    """A whole HTTP answer that holds half a document."""
    data = encoded(completion(exchange.request.model, WORDS))
    await exchange.answer(data[: len(data) // 2])


async def wrong_type(exchange: Exchange, kind: str) -> None:
    """A right body under another content type; ``none`` sends no type."""
    model = exchange.request.model
    data = (
        b"".join([*map(event, chunks(model)), DONE])
        if exchange.request.streams
        else encoded(completion(model))
    )
    if kind == "none":
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
    else:
        await exchange.answer(data, kind=kind)


async def swap(exchange: Exchange, _: str) -> None:
    """A right document where a stream was asked for, and the reverse; each under its own type."""
    model = exchange.request.model
    if exchange.request.streams:
        await exchange.answer(encoded(completion(model)))
    else:
        await exchange.answer(b"".join([*map(event, chunks(model)), DONE]), kind=EVENTS)


async def huge(exchange: Exchange, mebibytes: str) -> None:
    """A complete and well-formed answer of ``mebibytes`` MiB."""
    blocks = int(mebibytes) * 16
    if exchange.request.streams:
        await exchange.begin(EVENTS)
        for _ in range(blocks):
            await exchange.chunk(event(piece(exchange.request.model, _BLOCK.decode())))
        await exchange.chunk(DONE)
    else:
        before, after = encoded(completion(exchange.request.model, "@")).split(b"@")
        await exchange.begin(JSON)
        await exchange.chunk(before)
        for _ in range(blocks):
            await exchange.chunk(_BLOCK)
        await exchange.chunk(after)
    await exchange.end()


async def infinite(exchange: Exchange, _: str) -> None:
    """A text without end."""
    if exchange.request.streams:
        await exchange.begin(EVENTS)
        part = event(piece(exchange.request.model, "and " * 4000))
    else:
        await exchange.begin(JSON)
        await exchange.chunk(encoded(completion(exchange.request.model, "@")).split(b"@")[0])
        part = _BLOCK
    while True:
        await exchange.chunk(part)


async def endless_line(exchange: Exchange, _: str) -> None:
    """One line that never ends: an event's data, or white space before a document."""
    if exchange.request.streams:
        await exchange.begin(EVENTS)
        await exchange.chunk(b"data: ")
        part = _BLOCK
    else:
        await exchange.begin(JSON)
        part = b" " * 2**16
    while True:
        await exchange.chunk(part)


async def endless_comments(exchange: Exchange, _: str) -> None:
    """Comments without end where a stream was asked for, line ends otherwise."""
    await exchange.begin(EVENTS if exchange.request.streams else JSON)
    while True:
        await exchange.chunk(
            b": still here\n\n" * 1000 if exchange.request.streams else b"\n" * 9999
        )


async def bomb(exchange: Exchange, encoding: str) -> None:
    """One MiB on the wire that is a GiB in memory."""
    kind = EVENTS if exchange.request.streams else JSON
    await exchange.answer(packed(encoding), kind=kind, headers={"content-encoding": encoding})


@cache
def packed(encoding: str) -> bytes:
    """1 GiB of one letter, in the format of gzip or zlib, without its checksum."""
    window = {"gzip": 31, "deflate": 15}[encoding]
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    # After a full flush a block stands for itself, so that it can be repeated.
    start = packer.compress(b"x" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"x" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * 1023
