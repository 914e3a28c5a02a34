"""The border of the HTTP parser: every split of an answer, damaged ones, and bytes behind them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from app.upstream.connection import (
    HEAD_BYTES,
    PART_BYTES,
    UNREAD_BYTES,
    Connection,
    Disconnected,
    InvalidAnswer,
)
from app.upstream.connection_pool import ConnectionPool
from tests.kit.fleets import CHAT, asking, opened, soon
from tests.kit.hostile.answers import completion, encoded
from tests.kit.hostile.exchange import Exchange, head
from tests.kit.hostile.replicas import replicas
from tests.kit.loops import on_loop
from tests.kit.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\n"


class Wire(asyncio.Transport):
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_paused = self.is_aborted = False
        self.takes = 10**9  # bytes until it asks the writer to pause
        self.connection = Connection()
        self.connection.connection_made(self)

    def write(self, data: Any) -> None:
        """Note what is written."""
        self.written.append(bytes(data))
        if sum(map(len, self.written)) >= self.takes:
            self.connection.pause_writing()

    def pause_reading(self) -> None:
        """As the connection asks."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """As the connection asks."""
        self.is_paused = False

    def is_closing(self) -> bool:
        """After it was aborted."""
        return self.is_aborted

    def abort(self) -> None:
        """Note that nothing more can arrive."""
        self.is_aborted = True


@dataclass(frozen=True)
class Outcome:
    """What a reader gets of an answer, and whether the connection may be used again."""

    status: int
    body: bytes
    error: type[Exception] | None
    kept: bool


async def read(connection: Connection, parts: list[bytes]) -> None:
    """Ask, and read to the end."""
    until = time.monotonic() + 5
    await connection.request(b"POST / HTTP/1.1\r\n\r\n", b"", until)
    while part := await connection.read(until):
        parts.append(part)


def outcome(pieces: list[bytes], *, ends: bool = True) -> Outcome:
    """Let these pieces arrive one after the other, and then the end of the connection."""

    async def arrive() -> Outcome:
        wire, parts = Wire(), list[bytes]()
        connection = wire.connection
        reading = asyncio.create_task(read(connection, parts))
        await asyncio.sleep(0)
        for piece in pieces:
            if connection.is_open:
                connection.data_received(piece)
            await asyncio.sleep(0)
        kept = connection.is_complete and connection.is_reusable and connection.is_open
        if ends and connection.is_open:
            connection.eof_received()
        await asyncio.wait([reading], timeout=5)
        assert reading.done()
        error = reading.exception()
        assert isinstance(error, InvalidAnswer | Disconnected | None)
        assert kept is not wire.is_aborted or ends
        return Outcome(connection.status, b"".join(parts), type(error) if error else None, kept)

    return LOOP.run_until_complete(arrive())


LOOP = uvloop.new_event_loop()

tokens = st.text("abcdefgh-", min_size=1, max_size=5).map(str.encode)
bodies = st.binary(max_size=60)


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    """A body in chunks, some with an extension, and with trailers."""
    cuts = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=4))})
    chunks = [body[start:end] for start, end in pairwise(cuts)]
    extension = draw(st.sampled_from([b"", b";a=b", b" "]))
    trailers = b"".join(b"%s: x\r\n" % each for each in draw(st.lists(tokens, max_size=2)))
    written = [b"%x%s\r\n%s\r\n" % (len(each), extension, each) for each in chunks]
    return b"".join(written) + b"0\r\n" + trailers + b"\r\n"


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """A valid answer, its body, and whether the connection's end is its end."""
    body = draw(bodies)
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * draw(st.integers(0, 3))
    named = b"".join(b"x-%s: 1\r\n" % each for each in draw(st.lists(tokens, max_size=3)))
    start = interim + OK + named
    match framing:
        case "length":
            return start + b"content-length: %d\r\n\r\n" % len(body) + body, body, False
        case "chunked":
            coded = draw(chunked(body))
            return start + b"Transfer-Encoding: chunked\r\n\r\n" + coded, body, False
        case _:
            return start + b"\r\n" + body, body, True


@st.composite
def splits(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in pieces."""
    if draw(st.booleans()):
        return [data]
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=12))})
    return [data[start:end] for start, end in pairwise(cuts)]


@given(data=st.data(), answer=answers())
def test_an_answer_is_the_same_however_it_is_split(
    data: st.DataObject, answer: tuple[bytes, bytes, bool]
) -> None:
    """Its own body; one that is cut anywhere is none, unless nothing told where it ends."""
    written, body, needs_end = answer
    pieces = data.draw(splits(written))
    assert outcome(pieces) == Outcome(200, body, None, not needs_end)
    assert outcome([bytes([each]) for each in written]) == outcome([written])
    cut = data.draw(st.integers(0, len(written) - 1))
    got = outcome([written[:cut]] if cut else [])
    if needs_end and cut >= len(written) - len(body):
        assert got.error is None
        assert body.startswith(got.body)
    else:
        assert got.error is Disconnected


@given(
    data=st.data(),
    answer=answers().filter(lambda each: not each[2]),
    more=st.binary(min_size=1, max_size=40).filter(lambda more: more.strip(b"\r\n")),
)
@example(data=None, answer=(OK + b"content-length: 0\r\n\r\n", b"", False), more=OK)
def test_bytes_behind_an_answer_close_its_connection(
    data: st.DataObject | None, answer: tuple[bytes, bytes, bool], more: bytes
) -> None:
    """They would be read as the answer to the next request. With the end or later, split or not."""
    written, body, _ = answer
    whole = written + more
    pieces = data.draw(splits(whole)) if data is not None else [whole]
    assert outcome(pieces, ends=False) == Outcome(200, body, None, kept=False)
    assert outcome([written, more], ends=False) == Outcome(200, body, None, kept=False)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An answer in which bytes were replaced, removed or inserted."""
    written = bytearray(draw(answers())[0])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(written)))
        end = min(len(written), place + draw(st.integers(0, 3)))
        written[place:end] = draw(
            st.sampled_from([b"", b"\r", b"\n", b":", b"0", b"-", b"\x00", b"\xff", b"f", b" ", OK])
        )
    return bytes(written)


@given(data=st.data(), written=damaged())
def test_a_damaged_answer_is_read_or_refused(data: st.DataObject, written: bytes) -> None:
    """Nothing else comes of it, at once, and no connection is kept on which bytes are left over."""
    got = outcome(data.draw(splits(written)) if written else [])
    if got.kept:
        assert got.error is None
        # Its last byte belongs to it, or is an end of line, which counts for nothing behind it.
        if not written.endswith((b"\r", b"\n")):
            assert outcome([written[:-1]]).error is Disconnected


@pytest.mark.parametrize(
    "written",
    [
        OK + b"x: " + b"y" * 9_000 + b"\r\ncontent-length: 0\r\n\r\n",
        OK + b"x: " + b"y" * (HEAD_BYTES + 1),
        OK + b"x: y\r\n" * 101 + b"content-length: 0\r\n\r\n",
        OK + (b"x: " + b"y" * 8_000 + b"\r\n") * 9 + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 " + b"O" * (HEAD_BYTES + 1),
        b"HTTP/1.1 103 H\r\n\r\n" * 101 + OK + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 103 H\r\ncontent-length: 2\r\n\r\n{}" + OK + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"transfer-encoding: identity\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2;" + b"x" * (HEAD_BYTES + 1),
        OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * (HEAD_BYTES + 1),
        OK + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 101,
    ],
)
def test_no_limit_is_exceeded(written: bytes) -> None:
    """At once, or in parts as they come from a socket."""
    assert outcome([written], ends=False).error is InvalidAnswer
    parts = [written[start : start + 1000] for start in range(0, len(written), 1000)]
    assert outcome(parts, ends=False).error is InvalidAnswer


def test_a_trailer_is_no_header() -> None:
    """It could say afterwards what the body had been."""

    async def test() -> None:
        wire = Wire()
        reading = asyncio.create_task(read(wire.connection, []))
        await asyncio.sleep(0)
        wire.connection.data_received(
            OK + b"Content-Type: a\r\nx: 1\r\nX: 2\r\ntransfer-encoding: chunked\r\n\r\n"
            b"0\r\ncontent-type: b\r\n\r\n"
        )
        await reading
        headers = wire.connection.headers
        assert headers == {"content-type": "a", "x": "1, 2", "transfer-encoding": "chunked"}

    LOOP.run_until_complete(test())


def test_no_more_is_received_than_is_read() -> None:
    """The server waits, and not the gateway's memory."""

    async def test() -> None:
        wire = Wire()
        connection = wire.connection
        asking = asyncio.create_task(connection.request(b"\r\n", b"", time.monotonic() + 5))
        await asyncio.sleep(0)
        connection.data_received(OK + b"content-length: 9999999\r\n\r\n")
        await asking
        connection.data_received(b"x" * UNREAD_BYTES)
        assert not wire.is_paused
        connection.data_received(b"x")
        assert wire.is_paused
        assert len(await connection.read(time.monotonic() + 5)) == UNREAD_BYTES + 1
        assert not wire.is_paused

    LOOP.run_until_complete(test())


def test_every_wait_ends_at_its_own_deadline() -> None:
    """Later or earlier than that of the wait before; one timer does for a stream."""

    async def test() -> None:
        connection = Wire().connection
        with pytest.raises(TimeoutError):
            await connection.request(b"", b"", time.monotonic() + 0.01)
        connection = Wire().connection
        asking = asyncio.create_task(connection.request(b"", b"", time.monotonic() + 600))
        await asyncio.sleep(0)
        connection.data_received(OK + b"content-length: 9\r\n\r\n")
        await asking
        for letter, left_s, after_s in (b"a", 1.0, 0.0), (b"b", 600.0, 1.1):
            reading = asyncio.create_task(connection.read(time.monotonic() + left_s))
            await asyncio.sleep(after_s)  # the second wait outlives the deadline of the first
            connection.data_received(letter)
            assert await reading == letter
        for wait_s in (0.02, 0.05, 0.01):
            until = time.monotonic() + wait_s
            with pytest.raises(TimeoutError):
                await connection.read(until)
            assert time.monotonic() >= until
        connection.connection_lost(None)

    LOOP.run_until_complete(test())


def test_a_large_payload_is_written_as_the_server_reads_it() -> None:
    """An early answer counts, and its connection is not kept."""

    async def test() -> None:
        wire = Wire()
        wire.takes = 2 * PART_BYTES
        connection, data = wire.connection, bytes(range(256)) * 2048
        asking = asyncio.create_task(connection.request(b"head", data, time.monotonic() + 5))
        await asyncio.sleep(0)
        assert b"".join(wire.written) == b"head" + data[: 2 * PART_BYTES]
        wire.takes = 4 * PART_BYTES
        connection.resume_writing()
        assert b"".join(wire.written) == b"head" + data[: 4 * PART_BYTES]
        connection.data_received(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await asking
        assert (connection.status, connection.is_complete) == (413, True)
        assert not connection.is_reusable

    LOOP.run_until_complete(test())


@pytest.mark.parametrize("at_once", [True, False])
@on_loop
async def test_the_next_request_gets_no_answer_that_was_sent_before_it(at_once: bool) -> None:
    """A server, or somebody between, sends two answers to one request."""

    async def twice(exchange: Exchange) -> None:
        data = [encoded(completion("m", text)) for text in ("4", "666")]
        first, second = [head({"content-length": str(len(each))}) + each for each in data]
        if at_once:
            await exchange.send(first + second)
        else:
            await exchange.send(first)
            await asyncio.sleep(0.03)
            await exchange.send(second)

    async with replicas(twice) as [one], opened({"m": [one]}) as fleet:
        for number in range(3):
            reply = await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())
            assert reply.body["choices"][0]["message"]["content"] == "4"
            await eventually(lambda: one.open == 0)
        assert one.connections == 3


@on_loop
async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as long as it is used."""
    idle_s = 1.0
    monkeypatch.setattr("app.upstream.connection_pool.IDLE_S", idle_s)

    async def behaves(exchange: Exchange) -> None:
        await exchange.answer(encoded(completion("m", "4")))

    async with replicas(behaves) as [one], opened({"m": [one]}) as fleet:
        until = time.monotonic() + 1.5 * idle_s
        while time.monotonic() < until:
            await fleet.ask("m", CHAT, asking(), deadline=soon())
            await asyncio.sleep(0.1 * idle_s)
        assert one.connections == 1
        await eventually(lambda: one.open == 0)


def test_the_head_of_a_request() -> None:
    """The host as the URL writes it, an IPv6 address in brackets; a user only without a key."""

    def written(url: str, **headers: str) -> list[bytes]:
        pool = ConnectionPool(url, headers, tls=None, dns=None)  # type: ignore[arg-type]
        return pool.head("POST", "x").split(b"\r\n")

    assert written("http://gpu-1:8000/v1")[:2] == [b"POST /v1/x HTTP/1.1", b"host: gpu-1:8000"]
    assert written("https://[::1]/a/b c")[:2] == [b"POST /a/b%20c/x HTTP/1.1", b"host: [::1]"]
    assert written("http://gr\u00fcn.example")[:2] == [
        b"POST /x HTTP/1.1",
        b"host: " + "gr\u00fcn.example".encode("idna"),
    ]
    assert b"authorization: Bearer k" in written("http://gpu-1", authorization="Bearer k")
