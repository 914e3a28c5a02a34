"""Load generator: closed and open loop, every answer checked, no coordinated omission.

In the open loop a latency begins when the request should have been sent, so a stalled gateway is
charged for the requests that it delayed. The generator's own lateness is reported separately: if it
is not small, the figures describe the generator and not the gateway.
"""

import asyncio
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, cast

import orjson
import queries
from httptools import HttpParserError, HttpResponseParser

TIMEOUT_S = 30.0
_IDLE_S = 4.0  # uvicorn closes a connection that is idle for five


class Kind(StrEnum):
    """What came of a request."""

    RIGHT = auto()
    REFUSED = auto()  # 429 or 503 that says when to come back
    INJECTED = auto()  # a candidate's error, by the gateway's word and the query's
    ERROR = auto()
    WRONG = auto()  # a whole answer that is another's, which no fault of a candidate excuses
    LEFT = auto()  # the client closed the connection


@dataclass(slots=True)  # a frozen one takes the generator microseconds more
class Ask:
    """One request to be sent.

    Attributes:
        stay_s: The client closes the connection after so long; None: it waits for the answer.
    """

    query: str
    stream: bool = False
    stay_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """One request."""

    kind: Kind
    due: float  # the instant at which it should have been sent
    late_s: float  # how much later it was
    latency_s: float  # from the intended instant to the last byte
    ask: Ask
    message: str = ""  # of an error
    decision: str = ""  # its id, of an answer
    served_by: str = ""  # the candidate whose answer it is, where the head says so
    first_s: float = math.nan  # from the intended instant to the first piece of text
    retry_after_s: float = math.nan  # of a refusal


class Client:
    """Keeps connections to one gateway and reuses them.

    Args:
        path: Where the requests go.
        model: What they name; None asks for a decision, and names none.
        judge: What came of an answer, and what to say of it if it was not right.
    """

    def __init__(
        self,
        port: int,
        key: str,
        *,
        path: str = "/v1/chat/completions",
        model: str | None = "auto",
        judge: "Judge | None" = None,
    ) -> None:
        self._port = port
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: "
        ).encode()
        self._model = model
        self._judge = judge or judged
        self._idle: list[tuple[float, _Connection]] = []

    async def send(self, ask: Ask, due: float) -> Outcome:
        """One request; never raises but for cancellation."""
        sent = time.perf_counter()
        kind, error, first_s, wait_s = Kind.ERROR, "", math.nan, math.nan
        decision = served_by = ""
        try:
            answer = await self._exchange(ask)
            decision = answer.headers.get(b"x-racer-decision-id", b"").decode()
            served_by = answer.headers.get(b"x-racer-served-by", b"").decode()
            first_s = answer.first - due
            wait_s = float(answer.headers.get(b"retry-after", "nan"))
            kind, error = self._judge(ask, answer)
        except TimeoutError:
            kind, error = (Kind.ERROR if ask.stay_s is None else Kind.LEFT), "no answer in time"
        except (OSError, EOFError, ValueError, LookupError, HttpParserError) as exc:
            error = f"{type(exc).__name__} while reading"
        if kind is Kind.ERROR and error in _CANDIDATES and queries.may_fail(ask.query):
            kind = Kind.INJECTED
        took_s = time.perf_counter() - due
        late_s = sent - due
        return Outcome(kind, due, late_s, took_s, ask, error, decision, served_by, first_s, wait_s)

    async def _exchange(self, ask: Ask) -> "Answer":
        connection = await self._connection()
        try:
            answer = await connection.ask(self._request(ask), ask.stay_s or TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()
        return answer

    def _request(self, ask: Ask) -> bytes:
        message = {"role": "user", "content": ask.query}
        request: dict[str, Any] = {"messages": [message]}
        if self._model is not None:
            request |= {"model": self._model, "stream": ask.stream}
        body = orjson.dumps(request)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    async def _connection(self) -> "_Connection":
        """One that is idle, or a new one."""
        while self._idle:
            since, idle = self._idle.pop()
            if idle.usable and time.monotonic() - since < _IDLE_S:
                return idle
            idle.close()
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, "127.0.0.1", self._port)
        return made

    def close(self) -> None:
        """Close what is idle."""
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()


@dataclass(slots=True)
class Answer:
    """What came back.

    Attributes:
        first: The instant of the first piece that has text of an answer in it.
    """

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    body: bytes = b""
    first: float = math.nan


Judge = Callable[[Ask, Answer], tuple[Kind, str]]

_REFUSALS = ("rate_limited", "overloaded")  # the gateway's own; candidates' have other codes
# What the gateway may say where a candidate answers 500, cuts, hangs or sends garbage.
_CANDIDATES = (
    "no_answer",
    "upstream_disconnected",
    "upstream_error",
    "upstream_invalid_response",
    "upstream_timeout",
)


def judged(ask: Ask, answer: Answer) -> tuple[Kind, str]:
    """Of a completion: whether its text is the right one."""
    if answer.status != 200:
        return refused(answer)
    text, broke = _streamed(answer.body) if ask.stream else _whole(answer.body)
    if broke is not None:
        return Kind.ERROR, broke
    return (Kind.RIGHT, "") if text == queries.answer(ask.query) else (Kind.WRONG, text)


def refused(answer: Answer) -> tuple[Kind, str]:
    """Of an error: a refusal says when to come back."""
    code = orjson.loads(answer.body)["error"]["code"]
    polite = code in _REFUSALS and b"retry-after" in answer.headers
    return (Kind.REFUSED if polite else Kind.ERROR), code


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. No streams: half of a request's cost was theirs."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._kept = True
        self._answer = Answer()
        self._pieces: list[bytes] = []
        self._waits: asyncio.Future[Answer] | None = None
        self._early: Answer | None = None  # came before the request: the connection is refused

    @property
    def usable(self) -> bool:
        return self._kept and not self._transport.is_closing()

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and return its answer. Raises TimeoutError."""
        if self._early is not None:
            return self._early
        self._answer, self._pieces = Answer(), []
        loop = asyncio.get_running_loop()
        self._waits = loop.create_future()
        late = loop.call_later(timeout_s, self._fail, TimeoutError())
        self._transport.write(request)
        try:
            return await self._waits
        finally:
            late.cancel()

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one by name

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept = False
        self._fail(exc or EOFError())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as exc:
            self._kept = False
            self._fail(exc)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        if math.isnan(self._answer.first) and _TEXT.search(body):
            self._answer.first = time.perf_counter()

    def on_message_complete(self) -> None:
        answer = self._answer
        answer.status, answer.body = self._parser.get_status_code(), b"".join(self._pieces)
        self._kept = self._parser.should_keep_alive()
        if self._waits is None:
            self._early = answer
        elif not self._waits.done():
            self._waits.set_result(answer)

    def _fail(self, exc: Exception) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_exception(exc)


_TEXT = re.compile(rb'"content": ?"[^"]')


def _whole(body: bytes) -> tuple[str, str | None]:
    return orjson.loads(body)["choices"][0]["message"]["content"], None


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
    client: Client, asks: Iterator[Ask], clients: int, seconds: float = math.inf
) -> list[Outcome]:
    """So many clients, each with its next request as soon as it has its answer; until the last."""
    end = time.perf_counter() + seconds
    outcomes: list[Outcome] = []

    async def one() -> None:
        while (now := time.perf_counter()) < end and (ask := next(asks, None)) is not None:
            outcomes.append(await client.send(ask, now))

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
