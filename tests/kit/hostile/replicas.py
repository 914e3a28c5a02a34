"""Replicas of a candidate on the event loop of a test, which counts their calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .exchange import Behaviour, Entry, Exchange, Request, head, listen, now
from .server import behaviour
from .serving import Server

answers = behaviour("healthy")
hangs = behaviour("hang")


def fails(status: str) -> Behaviour:
    """An error status; ``429:7`` adds ``retry-after: 7``."""
    return behaviour(f"status:{status}")


class Replica(Server):
    """One server of a candidate.

    Args:
        play: What it does with each call; a test may replace it.
        tls: Makes it speak TLS.
        scheme: Of its URL, which need not be what it speaks.
        host: Of its URL.
        port: Of its URL; 0 for a free one, which it keeps when it is started again.

    Attributes:
        asked: Every call, in order.
        healthy: Whether health checks succeed.
        probes: Number of health checks.
    """

    def __init__(
        self,
        play: Behaviour,
        *,
        tls: ssl.SSLContext | None = None,
        scheme: str = "http",
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__()
        self.trap_url = "/"
        self.play = play
        self.host = host
        self.asked: list[Exchange] = []
        self.healthy = True
        self.probes = 0
        self._tls = tls
        self._scheme = scheme
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self._scheme}://{self.host}:{self._port}/v1"

    @property
    def left(self) -> list[float]:
        """When clients were seen to close before their answer was complete."""
        entries = [each.entry for each in self.asked if each.entry.finished is None]
        return [each.peer_closed for each in entries if each.peer_closed is not None]

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server, self._port = await listen(self.serve, port=self._port, ssl=self._tls)

    async def stop(self) -> None:
        """Close all connections; new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        while self.tasks:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.sleep(0)

    def control(self, request: Request) -> bytes | None:
        """The response to a health check."""
        if request.method != "GET":
            return None
        self.probes += 1
        status = "404 Not Found" if self.healthy else "500 Internal Server Error"
        return head({"content-length": "0"}, status)

    def plan(self, request: Request, connection: int) -> tuple[Entry, Behaviour]:
        """The behaviour is ``play``, as it is when the call arrives."""
        entry = Entry(
            cell="",
            model=request.model,
            mode="",
            stream=request.streams,
            connection=connection,
            accepted=now(),
        )
        return entry, self._record_and_play

    async def _record_and_play(self, exchange: Exchange) -> None:
        exchange.number = len(self.asked)
        self.asked.append(exchange)
        await self.play(exchange)


@asynccontextmanager
async def replicas(*plays: Behaviour) -> AsyncGenerator[list[Replica]]:
    """Running replicas."""
    made = [Replica(play) for play in plays]
    try:
        for each in made:
            await each.start()
        yield made
    finally:
        for each in made:
            await each.stop()
