"""What a request costs, in calls of functions: a guard against becoming slower unseen.

Counted and not timed, so that a busy machine changes nothing. The candidates answer inside the
process, and HTTP on both sides is counted apart, without sockets. A bound is the last count plus
4 %; a change that needs more raises the bound and states the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app import settings
from app.http.connection import Connection, ConnectionConfig
from app.http.connection_limits import UnauthenticatedConnections
from app.http.refused_connections import RefusedConnections
from app.lifespan import open_services
from app.main import create_gateway
from app.settings import Limits
from app.telemetry.metrics import Metrics
from app.upstream import connection as upstream
from app.upstream.http_client import UpstreamClient
from tests.kit.gateway import DATA_KEY, ENVIRONMENT, ONE, POOL, TWO, Gateway, Serve, configure

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the bounds were counted on Python 3.11"
)

REQUESTS = 40
SHORT, LONG = 10, 60  # letters of an answer
BOUNDS = {
    "a named candidate": 538,
    "a decision": 570,
    "a set of one": 995,
    "a set of two": 1333,
    "a letter of a named candidate": 52,
    "a letter of a set of one": 58,
}
LIVE = {"stream": True}
HTTP_BOUNDS = {"a request": 111, "a call": 59}
App = Callable[..., Awaitable[None]]


class Instant:
    """A candidate's answer that is there at once: whole, or a letter at a time."""

    def __init__(self, body: dict[str, Any]) -> None:
        letters = SHORT if "short" in body["messages"][0]["content"] else LONG
        self.is_stream = bool(body.get("stream"))
        self.is_complete = False
        self._letters = iter([*[LETTER] * letters, FINISH, b"data: [DONE]"])

    async def read_all(self) -> bytes:
        """A chat completion."""
        self.is_complete = True
        message = {"role": "assistant", "content": "7"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        return json.dumps({"id": "a", "model": "m", "choices": [choice], "usage": usage}).encode()

    async def read_part(self) -> bytes:
        """The next letter."""
        await asyncio.sleep(0)
        return next(self._letters, b"") + b"\n\n"

    async def finish(self) -> None:
        """Nothing follows."""
        self.is_complete = True

    def close(self) -> None:
        """There is no connection."""


def chunk(letter: str | None) -> bytes:
    """An event; without a letter it finishes the answer."""
    delta = {} if letter is None else {"content": letter}
    choice = {"index": 0, "delta": delta, "finish_reason": None if letter else "stop"}
    return b"data: " + json.dumps({"id": "a", "model": "m", "choices": [choice]}).encode()


LETTER, FINISH = chunk("7"), chunk(None)


async def posted(_: UpstreamClient, *args: Any, **__: Any) -> Instant:
    """In the place of a call over the network."""
    data: bytes = args[3]
    return Instant(json.loads(data))


async def ask(app: App, path: str, body: dict[str, Any]) -> None:
    """One request, as a server hands it over, to the end of its answer."""
    data = json.dumps(body).encode()
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(len(data)),
        "authorization": f"Bearer {DATA_KEY}",
    }
    arriving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    arriving.put_nowait({"type": "http.request", "body": data, "more_body": False})
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(
        {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        },
        arriving.get,
        send,
    )
    assert sent[0]["status"] == 200


@contextlib.asynccontextmanager
async def application(path: Path) -> AsyncGenerator[App]:
    """What a server would be given."""
    configured, secrets = settings.load(path, ENVIRONMENT)
    async with open_services(configured, secrets) as services:
        yield create_gateway(services)


async def calls_of(work: Callable[[], Awaitable[None]]) -> float:
    """Function calls of a piece of work, after a warm-up."""
    for _ in range(3):
        await work()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(REQUESTS):
        await work()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats()) / REQUESTS


def chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A question to the chat endpoint."""
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"model": "auto", "messages": messages, **fields}


@pytest.fixture
def calibrated(serve: Serve, tmp_path: Path, artifact: Path) -> Path:
    """The configuration of a gateway that was calibrated, and is gone."""
    gateway: Gateway = serve(folder=tmp_path / "cost")
    assert gateway.ready()["calibration"]
    return configure(tmp_path / "cost", artifact, "http://127.0.0.1:9/v1")


def test_requests_cost_no_more_calls_than_they_did(
    calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind; the bound of a letter is of those that a longer stream has more."""
    monkeypatch.setattr(UpstreamClient, "post", posted)

    async def count() -> dict[str, float]:
        async with application(calibrated) as app:
            letters = dict[str, float]()
            for model in (POOL[0], "auto"):
                short, long = [
                    await calls_of(
                        partial(ask, app, *chat(f"{ONE} {length}", model=model, stream=True))
                    )
                    for length in ("short", "long")
                ]
                letters[model] = (long - short) / (LONG - SHORT)
            return {
                "a named candidate": await calls_of(partial(ask, app, *chat(ONE, model=POOL[0]))),
                "a decision": await calls_of(partial(ask, app, "/route", {"query": ONE})),
                "a set of one": await calls_of(partial(ask, app, *chat(ONE))),
                "a set of two": await calls_of(partial(ask, app, *chat(TWO))),
                "a letter of a named candidate": letters[POOL[0]],
                "a letter of a set of one": letters["auto"],
            }

    counted = uvloop.run(count())
    assert {kind: calls for kind, calls in counted.items() if calls > BOUNDS[kind]} == {}
    # A bound that nothing comes near would guard nothing.
    assert {kind: calls for kind, calls in counted.items() if calls < 0.8 * BOUNDS[kind]} == {}


class Wire(asyncio.Transport):
    """A connection whose other end takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sent."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def abort(self) -> None:
        """Closed at once."""

    def close(self) -> None:
        """Closed."""


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    """A handler that reads a body and answers."""
    await receive()
    headers = [(b"content-length", b"2"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer b\r\n"
    b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def test_http_costs_no_more_calls_than_it_did() -> None:
    """The protocols of both sides, with all their callbacks, for a request and for a call."""

    async def count() -> dict[str, float]:
        config = ConnectionConfig(
            answering,
            limits=Limits(),
            unauthenticated=UnauthenticatedConnections(None),
            refused=RefusedConnections(Metrics().connection_refusals),
            upload_paths=(),
        )
        state = ServerState()
        server = Connection(config, state)
        server.connection_made(Wire())
        client = upstream.Connection()
        client.connection_made(Wire())

        async def serve() -> None:
            server.data_received(REQUEST)
            await asyncio.gather(*state.tasks)

        async def call() -> None:
            sent = asyncio.create_task(client.request(b"head", b"body", time.monotonic() + 60))
            await asyncio.sleep(0)
            client.data_received(ANSWER)
            await sent
            assert await client.read(0.0) == b"{}"

        return {"a request": await calls_of(serve), "a call": await calls_of(call)}

    found = uvloop.run(count())
    assert {kind: calls for kind, calls in found.items() if calls > HTTP_BOUNDS[kind]} == {}
    assert {kind: calls for kind, calls in found.items() if calls < 0.8 * HTTP_BOUNDS[kind]} == {}
