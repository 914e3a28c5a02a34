"""Modes of the status and the head: errors, redirects, floods of headers, heads that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .answers import JSON, completion, encoded, healthy
from .exchange import WORDS, Exchange, head

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_BODY: Final = encoded(completion("x"))
_LENGTH: Final = b"content-length: %d\r\n" % len(_BODY)
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

BAD_HEADS: Final[Mapping[str, bytes]] = {
    "text": b"220 mail.example ESMTP " + WORDS.encode() + b"\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46",  # the alert of a TLS server that reads plain text
    "http2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18,  # a frame of settings
    "garbage": bytes(range(128, 256)) * 8,
    "version": b"HTTP/9.9 200 OK\r\n" + _LENGTH + b"\r\n" + _BODY,
    "status": b"HTTP/1.1 2000 OK\r\n" + _LENGTH + b"\r\n" + _BODY,
    "status_text": b"HTTP/1.1 fine\r\n" + _LENGTH + b"\r\n" + _BODY,
    "no_colon": _OK + WORDS.encode() + b"\r\n" + _LENGTH + b"\r\n" + _BODY,
    "space": _OK + b"content-length : %d\r\n\r\n" % len(_BODY) + _BODY,
    "nul": _OK + b"x-note: a\x00b\r\n" + _LENGTH + b"\r\n" + _BODY,
    "two_lengths": _OK + b"content-length: 2\r\n" + _LENGTH + b"\r\n" + _BODY,
    "negative": _OK + b"content-length: -5\r\n\r\n" + _BODY,
    "long_length": _OK + b"content-length: " + b"9" * 40 + b"\r\n\r\n" + _BODY,
    "chunk_size": _CHUNKED + b"zz\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk_negative": _CHUNKED + b"-5\r\n" + _BODY + b"\r\n0\r\n\r\n",
    "chunk_overflow": _CHUNKED + b"f" * 40 + b"\r\n" + _BODY,
}


async def status(exchange: Exchange, argument: str) -> None:
    """An error status. ``429:7`` adds ``retry-after: 7``; ``500:echo`` repeats the request."""
    code, _, extra = argument.partition(":")
    told, headers = WORDS, dict[str, str]()
    if extra == "echo":
        told = f"{WORDS}: {exchange.request.headers} {exchange.request.body}"
    elif extra:
        headers["retry-after"] = extra
    body = {"error": {"message": told, "type": "server_error", "param": None, "code": code}}
    await exchange.answer(encoded(body), status=f"{code} {WORDS}", headers=headers)


async def redirect(exchange: Exchange, code: str) -> None:
    """A redirect to the trap."""
    await exchange.answer(b"", status=f"{code} Moved", headers={"location": exchange.trap_url})


async def many_headers(exchange: Exchange, _: str) -> None:
    """A right answer under 10,000 headers."""
    await _under(exchange, b"".join(b"x-number-%d: %d\r\n" % (n, n) for n in range(10_000)))


async def big_header(exchange: Exchange, _: str) -> None:
    """A right answer under a header of 1 MiB."""
    await _under(exchange, b"x-big: " + b"x" * 2**20 + b"\r\n")


async def endless_headers(exchange: Exchange, _: str) -> None:
    """Headers without end."""
    await exchange.send(_OK)
    while True:
        await exchange.send(b"x-more: and more\r\n" * 1000)


async def endless_status(exchange: Exchange, _: str) -> None:
    """A status line without end."""
    await exchange.send(b"HTTP/1.1 200 ")
    while True:
        await exchange.send(b"fine " * 4000)


async def interim(exchange: Exchange, count: str) -> None:
    """So many interim answers and then a right one; or interim ones without end."""
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
    if count == "endless":
        while True:
            await exchange.send(hint * 100)
    await exchange.send(hint * int(count))
    await healthy(exchange, "")


async def bad_head(exchange: Exchange, which: str) -> None:
    """Bytes that are no HTTP answer, then FIN."""
    await exchange.send(BAD_HEADS[which])
    exchange.fin()


async def _under(exchange: Exchange, headers: bytes) -> None:
    body = encoded(completion(exchange.request.model))
    usual = head({"content-type": JSON, "content-length": str(len(body))})
    await exchange.send(usual.removesuffix(b"\r\n") + headers + b"\r\n" + body)
