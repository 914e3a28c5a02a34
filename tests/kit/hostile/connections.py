"""Modes of the connection: late, slow, stuck, cut, closed."""

from __future__ import annotations

import asyncio

from .answers import DONE, EVENTS, JSON, chunks, completion, encoded, event, healthy
from .exchange import FOREVER_S, Exchange, head

_ARRIVES_S = 0.05  # what was sent has arrived by then, so that RST does not overtake it
_PIECES = 20


async def hang(exchange: Exchange, _: str) -> None:
    """Never answer."""
    await asyncio.sleep(FOREVER_S)


async def latency(exchange: Exchange, seconds: str) -> None:
    """Answer late."""
    await asyncio.sleep(float(seconds))
    await healthy(exchange, "")


async def rst(exchange: Exchange, when: str) -> None:
    """RST at once, or after the head."""
    if when == "after_head":
        kind, _ = _parts(exchange)
        await exchange.send(head({"content-type": kind, "content-length": "500"}))
        await asyncio.sleep(_ARRIVES_S)
    exchange.reset()


async def close(exchange: Exchange, _: str) -> None:
    """FIN without an answer."""
    exchange.fin()


async def close_after(exchange: Exchange, _: str) -> None:
    """Answer, keep the connection, and close it without an answer when it is used again."""
    await healthy(exchange, "")
    exchange.doomed = True


async def trickle_headers(exchange: Exchange, _: str) -> None:
    """A head of which a byte comes every 0.2 s."""
    for byte in head({"content-type": JSON, "content-length": "2"}) * 10:
        await exchange.send(bytes([byte]))
        await asyncio.sleep(0.2)


async def slow_body(exchange: Exchange, _: str) -> None:
    """A right answer in 20 pieces, one every 0.3 s."""
    kind, parts = _parts(exchange)
    await exchange.begin(kind)
    for part in parts:
        await exchange.chunk(part)
        await asyncio.sleep(0.3)
    await exchange.end()


async def stall(exchange: Exchange, _: str) -> None:
    """Half an answer, then silence."""
    await _half(exchange)
    await asyncio.sleep(FOREVER_S)


async def cut(exchange: Exchange, how: str) -> None:
    """Half a chunked answer, then FIN or RST."""
    await _half(exchange)
    await asyncio.sleep(_ARRIVES_S)
    if how == "rst":
        exchange.reset()
    else:
        exchange.fin()


async def unterminated(exchange: Exchange, _: str) -> None:
    """The whole answer in chunks, then FIN where the last chunk belongs."""
    kind, parts = _parts(exchange)
    await exchange.begin(kind)
    for part in parts:
        await exchange.chunk(part)
    exchange.fin()


async def truncate(exchange: Exchange, _: str) -> None:
    """Half of the ``content-length`` that was announced, then FIN."""
    kind, parts = _parts(exchange)
    data = b"".join(parts)
    await exchange.send(head({"content-type": kind, "content-length": str(len(data))}))
    await exchange.send(data[: len(data) // 2])
    exchange.fin()


async def _half(exchange: Exchange) -> None:
    kind, parts = _parts(exchange)
    await exchange.begin(kind)
    for part in parts[: len(parts) // 2]:
        await exchange.chunk(part)


def _parts(exchange: Exchange) -> tuple[str, list[bytes]]:
    """A healthy answer of some length, in pieces, and its content type."""
    model, text = exchange.request.model, "4" * (_PIECES - 4)
    if exchange.request.streams:
        return EVENTS, [*map(event, chunks(model, text)), DONE]
    data = encoded(completion(model, text))
    step = -(-len(data) // _PIECES)
    return JSON, [data[start : start + step] for start in range(0, len(data), step)]
