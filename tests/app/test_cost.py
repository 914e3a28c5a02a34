"""What a request costs, in calls of functions: a guard against becoming slower unseen.

Counted and not timed, so that a busy machine changes nothing. The candidates answer inside the
process, and HTTP on both sides is counted apart, without sockets. A bound is the last count plus
4 %; a change that needs more raises the bound and states the reason.
"""

from __future__ import annotations

import asyncio
import cProfile
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.http.connection import Connection, ConnectionConfig
from app.http.connection_limits import UnauthenticatedConnections
from app.http.refusals import RefusedConnections
from app.settings import Limits
from app.telemetry.metrics import Metrics
from app.upstream import connection as upstream
from app.upstream.http_client import UpstreamClient
from tests.kit.gateway import ONE, POOL, TWO
from tests.kit.services import LONG, SHORT, application, ask, chat, posted
from tests.kit.services import calibrated as calibrated

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the bounds were counted on Python 3.11"
)

REQUESTS = 40
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
