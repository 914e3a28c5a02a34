"""A load generator: closed and open loop, every answer checked, latency from the intended instant.

In the open loop a stalled gateway is charged for the requests that it delayed, since a latency
begins when the request should have been sent. How late the generator itself was is kept apart: if
that is not small, the figures are the generator's and not the gateway's.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum, auto

import queries

TIMEOUT_S = 30.0
_IDLE_S = 30.0  # a connection idle for longer may be closed by the gateway at any moment


class Kind(StrEnum):
    """What came of a request."""

    RIGHT = auto()
    REFUSED = auto()  # 429 or 503 that says when to come back
    INJECTED = auto()  # a candidate's error, by the gateway's word and the query's
    ERROR = auto()
    WRONG = auto()  # a whole answer that is another's, which no fault of a candidate excuses
    LEFT = auto()  # the client closed the connection


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent.

    Attributes:
        stay_s: The client closes the connection after so long; None: it waits for the answer.
    """

    query: str
    stream: bool = False
    stay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request."""

    kind: Kind
    due: float  # the instant at which it should have been sent
    late_s: float  # how much later it was
    latency_s: float  # from the intended instant to the last byte
    ask: Ask
    said: str = ""  # of an error
    decision: str = ""  # its id, of an answer


class Client:
    """Keeps connections to one gateway and reuses them."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._idle: list[tuple[float, _Connection]] = []

    async def send(self, ask: Ask, due: float) -> Outcome:
        """One request; never raises but for cancellation."""
        sent = time.perf_counter()
        kind, said, decision = Kind.ERROR, "", ""
        try:
            async with asyncio.timeout(ask.stay_s or TIMEOUT_S):
                status, headers, body = await self._exchange(ask)
            decision = headers.get(b"x-racer-decision-id", b"").decode()
            kind, said = _judged(ask, status, headers, body)
        except TimeoutError:
            kind, said = (Kind.ERROR if ask.stay_s is None else Kind.LEFT), "no answer in time"
        except (OSError, EOFError, ValueError, LookupError) as exc:
            said = f"{type(exc).__name__} while reading"
        if kind is Kind.ERROR and said in _CANDIDATES and queries.may_fail(ask.query):
            kind = Kind.INJECTED
        return Outcome(kind, due, sent - due, time.perf_counter() - due, ask, said, decision)

    async def _exchange(self, ask: Ask) -> tuple[int, dict[bytes, bytes], bytes]:
        async with self._connection() as connection:
            connection.writer.write(self._request(ask))
            return await connection.read()

    def _request(self, ask: Ask) -> bytes:
        message = {"role": "user", "content": ask.query}
        body = json.dumps({"model": "auto", "messages": [message], "stream": ask.stream}).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (self._key.encode(), len(body), body)
        )

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator["_Connection"]:
        """One that is idle, or a new one; closed unless its answer was read to the end."""
        connection = None
        while self._idle and connection is None:
            since, idle = self._idle.pop()
            if idle.usable and time.monotonic() - since < _IDLE_S:
                connection = idle
            else:
                idle.writer.close()
        if connection is None:
            connection = _Connection(*await asyncio.open_connection("127.0.0.1", self._port))
        whole = False
        try:
            yield connection
            whole = True
        finally:
            if whole and connection.usable:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.writer.close()

    def close(self) -> None:
        """Close what is idle."""
        for _, connection in self._idle:
            connection.writer.close()
        self._idle.clear()


_REFUSALS = ("rate_limited", "overloaded")  # the gateway's own; candidates' have other codes
# What the gateway may say where a candidate answers 500, cuts, hangs or sends garbage.
_CANDIDATES = (
    "no_answer",
    "upstream_disconnected",
    "upstream_error",
    "upstream_invalid_response",
    "upstream_timeout",
)


def _judged(ask: Ask, status: int, headers: dict[bytes, bytes], body: bytes) -> tuple[Kind, str]:
    if status != 200:
        code = json.loads(body)["error"]["code"]
        refused = code in _REFUSALS and b"retry-after" in headers
        return (Kind.REFUSED if refused else Kind.ERROR), code
    text, broke = _streamed(body) if ask.stream else _whole(body)
    if broke is not None:
        return Kind.ERROR, broke
    return (Kind.RIGHT, "") if text == queries.answer(ask.query) else (Kind.WRONG, text)


class _Connection:
    """As much of HTTP as one gateway's answers need."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._kept = True

    @property
    def usable(self) -> bool:
        return self._kept and not self._reader.at_eof() and not self.writer.is_closing()

    async def read(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        self._kept = headers.get(b"connection") != b"close"
        if b"content-length" in headers:
            body = await self._reader.readexactly(int(headers[b"content-length"]))
        else:
            body = b"".join([piece async for piece in self._chunks()])
        return int(first.split(b" ", 2)[1]), headers, body

    async def _chunks(self) -> AsyncGenerator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)


def _whole(body: bytes) -> tuple[str, str | None]:
    return json.loads(body)["choices"][0]["message"]["content"], None


def _streamed(body: bytes) -> tuple[str, str | None]:
    """The text, and the code of the error that ended the stream or what it lacks."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    choices = [choice for event in events for choice in event.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    if events and "error" in events[-1]:
        return text, events[-1]["error"]["code"]
    return text, None if lines[-1:] == ["[DONE]"] else "a stream without its end"


async def closed(
    client: Client, asks: Iterator[Ask], clients: int, seconds: float
) -> list[Outcome]:
    """So many clients, each with its next request as soon as it has its answer."""
    end = time.perf_counter() + seconds
    outcomes: list[Outcome] = []

    async def one() -> None:
        while (now := time.perf_counter()) < end:
            outcomes.append(await client.send(next(asks), now))

    await asyncio.gather(*(one() for _ in range(clients)))
    return outcomes


async def open_loop(
    client: Client,
    asks: Iterator[Ask],
    rate: float,
    seconds: float,
    note: Callable[[Outcome], None],
    seed: int = 0,
) -> None:
    """Requests at Poisson instants that depend on no answer; returns with the last answer."""
    rng = random.Random(seed)
    end = (due := time.perf_counter()) + seconds
    async with asyncio.TaskGroup() as group:
        while (due := due + rng.expovariate(rate)) < end:
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(_noted(client, next(asks), due, note))


async def _noted(client: Client, ask: Ask, due: float, note: Callable[[Outcome], None]) -> None:
    note(await client.send(ask, due))
