"""Exchanges: what a handler sends becomes HTTP, and a disconnect reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from app.http.exchange import UNREAD_BYTES, Exchange, Header
from tests.kit.loops import on_loop

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Client:
    """A connection that notes what happens to it."""

    def __init__(self) -> None:
        self.default_headers: list[Header] = [(b"date", b"now")]
        self.is_writing_paused = False
        self.writes: list[bytes] = []
        self.events: list[str] = []

    def write(self, data: bytes) -> None:
        """Sent."""
        self.writes.append(data)

    async def drain(self) -> None:
        """The client reads again."""
        self.events.append("drain")
        self.is_writing_paused = False

    def pause_reading(self) -> None:
        """Enough of the body."""
        self.events.append("pause")

    def resume_reading(self) -> None:
        """More of the body."""
        self.events.append("resume")

    def response_complete(self) -> None:
        """The whole response."""
        self.events.append("complete")

    def close(self) -> None:
        """The connection ends."""
        self.events.append("close")


def exchange(client: Client, method: str = "POST", **options: Any) -> Exchange:
    """A request with its head."""
    scope: dict[str, Any] = {"type": "http", "method": method, "state": {}}
    return Exchange(client, scope, **{"keep_alive": True, "expects_continue": False} | options)


def answer(
    status: int, *parts: bytes, headers: tuple[Header, ...] = (), length: int | None = None
) -> Application:
    """An application that sends these parts; with a length, or in chunks."""
    announced = () if length is None else ((b"content-length", b"%d" % length),)

    async def application(_: Scope, __: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *announced]}
        await send(start)
        for number, part in enumerate(parts, 1):
            more = number < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    return application


def run(application: Application, method: str = "POST", **options: Any) -> Client:
    """The client after the application."""
    client = Client()
    asyncio.run(exchange(client, method, **options).run(application))
    return client


def test_a_whole_response_is_one_write() -> None:
    """Head and body together, with the server's headers first."""
    client = run(answer(200, b"body", headers=((b"x-a", b"1"),), length=4))
    assert client.writes == [
        b"HTTP/1.1 200 OK\r\ndate: now\r\nx-a: 1\r\ncontent-length: 4\r\n\r\nbody"
    ]
    assert client.events == ["complete"]
    assert (
        run(answer(200, b"", length=0), expects_continue=True).writes[0].startswith(b"HTTP/1.1 2")
    )


def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    """It says that the request was accepted, which may be long before."""
    client = run(answer(200, b"one", b"", b"two", b""))
    assert client.writes == [
        b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n",
        b"3\r\none\r\n",
        b"3\r\ntwo\r\n",
        b"0\r\n\r\n",
    ]


@pytest.mark.parametrize(
    ("status", "method", "parts", "length"),
    [(204, "POST", [b""], None), (304, "GET", [b""], None), (200, "HEAD", [b"body"], 4)],
)
def test_a_response_without_a_body_has_none(
    status: int, method: str, parts: list[bytes], length: int | None
) -> None:
    """Not even an empty chunk, which would be the next response's start."""
    client = run(answer(status, *parts, length=length), method)
    assert b"".join(client.writes).endswith(b"\r\n\r\n")
    assert b"chunked" not in client.writes[0]
    assert client.events == ["complete"]


@pytest.mark.parametrize(
    "application",
    [
        answer(200, b"long", length=3),
        answer(200, b"lo", length=3),
        answer(200, b"a", headers=((b"x-a", b"1\r\nx-b: 2"),), length=1),
        answer(200, b"a", headers=((b"x-a", b"\x00"),), length=1),
        answer(200, b"a", headers=((b"connection", b"close"),), length=1),
    ],
    ids=["too long", "too short", "line end", "control character", "connection"],
)
def test_a_wrong_response_ends_the_connection(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it was written, or its client cannot take it for a whole one."""
    client = run(application)
    assert client.events[-1] == "close"
    assert b"x-b" not in b"".join(client.writes)
    assert "the application failed" in caplog.text


def test_a_failed_application_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    """Without the exception's text, which may hold a prompt."""

    async def failing(*_: object) -> None:
        raise ValueError("a prompt")

    client = run(failing)
    assert client.writes[0].startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"connection: close\r\n" in client.writes[0]
    assert b"prompt" not in client.writes[0]
    assert client.events == ["complete", "close"]
    assert "the application failed" in caplog.text


@on_loop
async def test_a_client_that_waits_for_leave_to_send_gets_it_once() -> None:
    """When the handler reads, not when it answers first."""
    client = Client()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"body"
        await answer(200, b"", length=0)(scope, receive, send)

    asked = exchange(client, expects_continue=True)
    running = asyncio.create_task(asked.run(reading))
    await asyncio.sleep(0)
    assert client.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    asked.add_body(b"body")
    asked.end_body()
    await running
    assert len(client.writes) == 2


@on_loop
async def test_a_body_that_is_not_read_is_not_received() -> None:
    """Past the limit reading stops until the handler takes what is there."""
    client = Client()
    asked = exchange(client)
    asked.add_body(b"x" * UNREAD_BYTES)
    assert client.events == []
    asked.add_body(b"x")
    assert client.events == ["pause"]
    message = await asked.receive()
    assert (len(message["body"]), message["more_body"]) == (UNREAD_BYTES + 1, True)
    assert client.events == ["pause", "resume"]
    asked.end_body()
    assert await asked.receive() == {"type": "http.request", "body": b"", "more_body": False}


@on_loop
async def test_reading_goes_on_behind_a_large_last_part() -> None:
    """Otherwise the end of the connection would not be seen until the response is complete."""
    client = Client()
    asked = exchange(client)
    waiting = asyncio.create_task(asked.receive())
    await asyncio.sleep(0)
    asked.add_body(b"x" * (UNREAD_BYTES + 1))
    asked.end_body()
    assert not (await waiting)["more_body"]
    assert client.events == ["resume", "pause", "resume"]


def test_a_writer_waits_for_its_client() -> None:
    """While the connection's buffer is full."""
    client = Client()
    client.is_writing_paused = True
    asyncio.run(exchange(client).run(answer(200, b"a", length=1)))
    assert client.events == ["drain", "complete"]


@on_loop
async def test_a_disconnect_is_told_once_and_ends_all_sending() -> None:
    """By the callback, and in `receive`; not after the response."""
    told: list[str] = []
    client = Client()
    asked = exchange(client)
    asked.end_body()
    await asked.receive()
    waiting = asyncio.create_task(asked.receive())
    await asyncio.sleep(0)
    asked.notify(lambda: told.append("first"))
    asked.disconnect()
    assert await waiting == {"type": "http.disconnect"}
    await asked.send({"type": "http.response.start", "status": 200, "headers": []})
    asked.notify(lambda: told.append("late"))
    answered = exchange(client)
    await answered.run(answer(200, b"", length=0))
    answered.notify(lambda: told.append("answered"))
    answered.disconnect()
    taken_back = exchange(client)
    taken_back.notify(lambda: told.append("taken back"))
    taken_back.notify(None)
    taken_back.disconnect()
    assert told == ["first", "late"]
    assert len(client.writes) == 1
