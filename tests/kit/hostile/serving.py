"""Connection loop of a fake server on raw sockets, in a process of its own or in a test."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final

from .exchange import Behaviour, Entry, Exchange, Request, now, read_request

_TLS: Final = b"\x16"  # the first byte of a TLS client
_LONGEST_S: Final = 60.0  # no behaviour runs longer, even if its test has left it


class Server(ABC):
    """Plays a behaviour for each request, and records how the request ended.

    Attributes:
        trap_url: Where no client may ever connect.
        connections: Number of accepted connections.
        open: Number of connections that are open now.
        tasks: The running tasks of the server.
    """

    def __init__(self) -> None:
        self.trap_url = ""
        self.connections = 0
        self.open = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def control(self, request: Request) -> bytes | None:
        """The response to a request that is no call of a model; None for a call."""

    @abstractmethod
    def plan(self, request: Request, connection: int) -> tuple[Entry, Behaviour]:
        """The log entry and the behaviour of one call."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until one side closes."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError):
                await self._converse(self.connections, reader, writer)
        finally:
            writer.close()
            self.open -= 1
            self.tasks.discard(task)

    async def _converse(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        begun = await reader.read(1) or None
        if begun == _TLS:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            return
        while begun is not None and (request := await read_request(reader, begun)):
            response = self.control(request)
            if response is None:
                entry, behaviour = self.plan(request, connection)
                exchange = Exchange(request, entry, writer, self.trap_url)
                begun = await self._play(exchange, behaviour, reader)
            else:
                writer.write(response)
                await writer.drain()
                begun = await reader.read(1) or None

    async def _play(
        self, exchange: Exchange, behaviour: Behaviour, reader: asyncio.StreamReader
    ) -> bytes | None:
        """Play a behaviour. Returns the first byte of the next request; None if there is none."""
        entry = exchange.entry
        playing = self._start(_limited(behaviour, exchange))
        watching = self._start(reader.read(1))
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done() and not _next(watching):
                playing.cancel()
            [failure] = await asyncio.gather(playing, return_exceptions=True)
            if failure is None:
                entry.finished = now()
            elif isinstance(failure, Exception) and not isinstance(failure, ConnectionError):
                raise failure
            if exchange.closed:
                return None
            await asyncio.wait({watching})
            begun = _next(watching)
            if begun is None:
                entry.peer_closed = now()
            elif exchange.doomed:
                await read_request(reader, begun)
                return None
            return begun
        finally:
            playing.cancel()
            watching.cancel()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


async def _limited(behaviour: Behaviour, exchange: Exchange) -> None:
    async with asyncio.timeout(_LONGEST_S):
        await behaviour(exchange)


def _next(watching: asyncio.Task[bytes]) -> bytes | None:
    """What the watched peer sent; None when it has closed."""
    if watching.exception() is not None:
        return None
    return watching.result() or None
