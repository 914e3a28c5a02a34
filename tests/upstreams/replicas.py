"""Replicas on raw sockets, and a fleet in front of them, all on the loop of the test."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.settings import Secrets, Settings
from app.telemetry.metrics import Metrics
from app.upstream.fleet import Fleet
from app.wire.chat import Chat

CHAT = Chat()
WORDS = "CANARY-7f3a91"  # of upstreams, in every error; no message of ours may hold them


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    body: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    number: int  # of its replica's requests, from 0

    async def send(
        self, data: bytes, *, status: str = "200 OK", kind: str = "application/json", **more: str
    ) -> None:
        """A whole response."""
        headers = {"content-type": kind, "content-length": str(len(data))} | more
        self.head(status, headers)
        self.writer.write(data)
        await self.writer.drain()

    def head(self, status: str, headers: dict[str, str]) -> None:
        """The status and the headers alone."""
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        self.writer.write(f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode())

    async def piece(self, value: Any) -> None:
        """One event of a stream that ends with its connection."""
        text = value if isinstance(value, str) else json.dumps(value)
        self.writer.write(f"data: {text}\n\n".encode())
        await self.writer.drain()

    def begin_stream(self) -> None:
        """The head of a stream that ends with its connection."""
        self.head("200 OK", {"content-type": "text/event-stream", "connection": "close"})


Play = Callable[[Exchange], Awaitable[None]]


@dataclass
class Replica:
    """One server of a candidate: what it was asked, and who left before the answer."""

    play: Play
    healthy: bool = True  # what its probe finds
    asked: list[Exchange] = field(default_factory=list[Exchange])
    probes: int = 0
    connections: int = 0  # ever accepted
    left: list[float] = field(default_factory=list[float])  # when callers were seen to leave
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _server: asyncio.Server | None = None
    tls: ssl.SSLContext | None = None
    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self.scheme}://{self.host}:{self.port}/v1"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away: connections are refused from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if head[0].startswith("GET"):
            self.probes += 1
            status = "404 Not Found" if self.healthy else "500 Internal Server Error"
            await Exchange({}, headers, writer, 0).send(b"", status=status)
            return True
        exchange = Exchange(json.loads(body), headers, writer, len(self.asked))
        self.asked.append(exchange)
        playing = asyncio.ensure_future(self.play(exchange))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                self.left.append(time.monotonic())
                return False
            playing.result()
            return not writer.is_closing() and not watching.done()
        finally:
            playing.cancel()
            watching.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)


def completion(text: str = "42", **fields: Any) -> bytes:
    """A chat completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return json.dumps({"id": "1", "choices": [choice], **fields}).encode()


def piece(text: str | None, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a stream."""
    delta = {} if text is None else {"content": text}
    return {"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def answers(exchange: Exchange) -> None:
    """42, streamed if that was asked for."""
    if not exchange.body.get("stream"):
        await exchange.send(completion())
        return
    exchange.begin_stream()
    await exchange.piece(piece("4"))
    await exchange.piece(piece("2"))
    await exchange.piece(piece(None, "stop"))
    await exchange.piece("[DONE]")
    exchange.writer.close()


async def hangs(_: Exchange) -> None:
    """Never answers."""
    await asyncio.Event().wait()


def fails(status: str, **headers: str) -> Play:
    """Answers with an error."""

    async def play(exchange: Exchange) -> None:
        body = json.dumps({"error": {"message": WORDS}}).encode()
        await exchange.send(body, status=f"{status} {WORDS}", **headers)

    return play


@asynccontextmanager
async def replicas(*plays: Play) -> AsyncGenerator[list[Replica]]:
    """Running replicas."""
    made = [Replica(play) for play in plays]
    try:
        for each in made:
            await each.start()
        yield made
    finally:
        for each in made:
            await each.stop()


def configured(
    candidates: dict[str, list[Replica]],
    *,
    limits: dict[str, Any] | None = None,
    candidate: dict[str, Any] | None = None,
    **fleet: Any,
) -> Settings:
    """A configuration with these replicas; ``candidate`` holds fields of every one of them."""
    usual = {"timeout_s": 10} | (candidate or {})
    return Settings.model_validate(
        {
            "schema_version": 1,
            "artifact": "unused",
            "candidates": [
                {"name": name, "base_urls": [each.url for each in its], **usual}
                for name, its in candidates.items()
            ],
            "fleet": fleet,
            "limits": limits or {},
        }
    )


def opened(
    candidates: dict[str, list[Replica]], metrics: Metrics | None = None, **changes: Any
) -> Fleet:
    """A fleet in front of these replicas."""
    return Fleet(configured(candidates, **changes), Secrets(), metrics=metrics or Metrics())


def asking(text: str = "?", **fields: Any) -> dict[str, Any]:
    """A payload; another text is another payload."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def soon(seconds: float = 10.0) -> float:
    """A deadline."""
    return time.monotonic() + seconds


async def streamed(fleet: Fleet, payload: Mapping[str, Any], deadline: float) -> list[str]:
    """The texts of a stream's pieces, read to its end."""
    texts: list[str] = []
    await stream_into(texts, fleet, payload, deadline)
    return texts


async def stream_into(
    texts: list[str], fleet: Fleet, payload: Mapping[str, Any], deadline: float
) -> None:
    """As above; what arrived before an error is there, too."""
    async with fleet.stream("m", CHAT, payload, deadline=deadline) as pieces:
        async for each in pieces:
            texts.append(each["choices"][0]["delta"].get("content", ""))
