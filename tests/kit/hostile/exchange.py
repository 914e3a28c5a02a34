"""One request on a raw connection, and what an upstream may do to it: bytes, FIN or RST."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

WORDS: Final = "an upstream's own words"  # no client may ever read them
FOREVER_S: Final = 3600.0
_MAX_HEAD: Final = 2**20
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # closing then sends RST instead of FIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What arrived."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: dict[str, Any]

    @property
    def model(self) -> str:
        """Which candidate is meant."""
        return str(self.body.get("model", ""))

    @property
    def streams(self) -> bool:
        """Whether a stream was asked for."""
        return bool(self.body.get("stream"))


async def read_request(reader: asyncio.StreamReader, begun: bytes) -> Request | None:
    """Read one request, of which ``begun`` was read before; None when the peer is gone."""
    try:
        head = begun + await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        data = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = first.split(" ", 2)
    body = cast("dict[str, Any]", json.loads(data)) if data else {}
    return Request(method=method, target=target, headers=headers, body=body)


@dataclass(slots=True, kw_only=True)
class Entry:
    """What the log tells of one request. Times are of the monotonic clock, in seconds."""

    cell: str
    model: str
    mode: str
    stream: bool
    connection: int
    accepted: float
    finished: float | None = None  # the mode had no more to do
    peer_closed: float | None = None  # FIN or RST of the peer was seen
    sent: int = 0  # bytes handed to the kernel or waiting for it


class Exchange:
    """What a mode can do with a request.

    Attributes:
        request: What was asked.
        entry: The log entry.
        trap_url: An address that must never receive a connection.
        number: The number of earlier requests to the replica.
        closed: This side has closed the connection.
        doomed: The next request on the connection is to be closed without an answer.
    """

    def __init__(
        self, request: Request, entry: Entry, writer: asyncio.StreamWriter, trap_url: str
    ) -> None:
        self.request = request
        self.entry = entry
        self.trap_url = trap_url
        self.number = 0
        self.closed = False
        self.doomed = False
        self._writer = writer

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the request."""
        return self.request.body

    async def send(self, data: bytes) -> None:
        """Send bytes as they are, as fast as the peer takes them."""
        self.entry.sent += len(data)
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # a fast peer never makes `drain` wait: others want their turn

    async def begin(self, kind: str, headers: Mapping[str, str] | None = None) -> None:
        """Send the head of a chunked answer."""
        fields = {"content-type": kind, "transfer-encoding": "chunked", **(headers or {})}
        await self.send(head(fields))

    async def chunk(self, data: bytes) -> None:
        """Send one chunk."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """Send the last chunk."""
        await self.send(b"0\r\n\r\n")

    async def answer(
        self,
        data: bytes,
        *,
        status: str = "200 OK",
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer; the connection stays open."""
        fields = {"content-type": kind, "content-length": str(len(data)), **(headers or {})}
        await self.send(head(fields, status) + data)

    def fin(self) -> None:
        """Close as a process does that ends."""
        self.closed = True
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        self.closed = True
        raw = cast("socket.socket", self._writer.get_extra_info("socket"))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]
Play = Callable[[Exchange, str], Awaitable[None]]  # the text is the mode's argument, or empty


def head(headers: Mapping[str, str], status: str = "200 OK") -> bytes:
    """A response's head."""
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def now() -> float:
    """The clock of the log; the same for every process of this machine."""
    return time.monotonic()


async def listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    port: int = 0,
    ssl: ssl.SSLContext | None = None,
) -> tuple[asyncio.Server, int]:
    """Listen on a port of the loopback interface; 0 is a free one."""
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_MAX_HEAD, ssl=ssl)
    return server, int(server.sockets[0].getsockname()[1])
