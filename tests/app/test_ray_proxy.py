"""Middleware of Serve's proxies: what becomes of a request whose replica dies."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.api.routes import ROUTES
from tests.kit.lazy import LazyModule

proxy = LazyModule("app.ray_serve.proxy")

CHAT = "/v1/chat/completions"
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
TEXT = [(b"content-type", b"text/plain")]
DISCONNECT = {"type": "http.disconnect"}

Send = Callable[[dict[str, Any]], Awaitable[None]]
Replica = Callable[[Send], Awaitable[None]]


def start(status: int = 200, headers: list[tuple[bytes, bytes]] = JSON) -> dict[str, Any]:
    """The begin of an answer."""
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    """A piece of its body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


def says(*messages: dict[str, Any]) -> Replica:
    """A replica that sends these messages; it dies after them if the last one is not the end."""

    async def replica(send: Send) -> None:
        for each in messages:
            await send(each)

    return replica


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    """A piece of a request's body."""
    return {"type": "http.request", "body": body, "more_body": more}


DIES = says()
ANSWERS = says(start(), part(b'{"ok": true}'))


@dataclass
class Serve:
    """Serve's proxy in front of replicas, each of which gets one request."""

    replicas: list[Replica]
    sent: list[dict[str, Any]] = field(default_factory=list)  # to the client
    bodies: list[bytes] = field(default_factory=list)  # that replicas read
    scopes: list[dict[str, Any]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Read the request, and let the next replica answer it."""
        self.scopes.append(scope)
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
            del message
        self.bodies.append(body)
        scope["root_path"] = "changed by Serve"
        await self.replicas.pop(0)(send)

    def ask(
        self, path: str, left: list[dict[str, Any]] | None = None, method: str = "POST"
    ) -> None:
        """One request with these messages of its client, who then leaves."""
        scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
        left = [piece(b"{}")] if left is None else left

        async def receive() -> dict[str, Any]:
            return left.pop(0) if left else DISCONNECT

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        asyncio.run(proxy.ReplicaFailover(self, self.counted.append)(scope, receive, send))

    @property
    def status(self) -> int:
        """That of the answer."""
        return self.sent[0]["status"]

    @property
    def body(self) -> bytes:
        """That of the answer, as far as it came."""
        return b"".join(each["body"] for each in self.sent[1:])

    def header(self, name: bytes) -> bytes | None:
        """One of the answer's."""
        return dict(self.sent[0]["headers"]).get(name)


@pytest.mark.parametrize(
    "first",
    [DIES, says(start(429)), says(start(), part(b"", more=True))],
    ids=["", "start", "empty"],
)
def test_a_request_whose_replica_dies_before_a_byte_is_answered_by_another(first: Replica) -> None:
    """With the same body, the same id and Serve's scope as it was. The client sees one answer."""
    serve = Serve([first, ANSWERS])
    serve.ask(CHAT, [piece(b'{"a"', more=True), piece(b": 1}")])
    assert (serve.status, serve.body) == (200, b'{"ok": true}')
    assert serve.bodies == [b'{"a": 1}'] * 2
    one, other = (dict(scope["headers"])[b"x-request-id"] for scope in serve.scopes)
    assert one == other
    assert serve.counted == ["repeated"]


def test_a_request_that_kills_every_replica_is_refused_in_the_end() -> None:
    """The envelope of OpenAI's clients, with the id; a bare 500 of Serve is red."""
    serve = Serve([DIES] * 10)
    serve.ask(CHAT)
    assert serve.status == 503
    assert json.loads(serve.body)["error"]["code"] == "replica_lost"
    assert serve.header(b"retry-after") == b"1"
    assert serve.header(b"x-request-id") == dict(serve.scopes[0]["headers"])[b"x-request-id"]
    assert serve.counted == ["repeated", "repeated", "refused"]
    assert len(serve.scopes) == proxy.ATTEMPTS


def test_all_kept_bodies_have_one_budget() -> None:
    """A body beyond it is passed on and not kept; what was kept is released in the end."""
    serve = Serve([])
    failover = proxy.ReplicaFailover(serve, serve.counted.append, kept_bytes=10)

    async def status_of(body: bytes) -> int:
        left, sent = [piece(body)], list[dict[str, Any]]()

        async def receive() -> dict[str, Any]:
            return left.pop(0) if left else DISCONNECT

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "root_path": ""}
        await failover(scope, receive, send)
        return sent[0]["status"]

    async def statuses_beside(*sizes: int) -> list[int]:
        found: list[int] = []

        async def replica(send: Send) -> None:
            serve.replicas = [DIES, ANSWERS]
            found.append(await status_of(b"x" * 5))
            await ANSWERS(send)

        for size in sizes:  # of the body that is kept meanwhile
            serve.replicas = [replica]
            assert await status_of(b"x" * size) == 200
        return found

    assert asyncio.run(statuses_beside(5, 6, 11, 5)) == [200, 503, 200, 200]


def test_the_paths_that_are_repeated_are_those_that_answer_queries() -> None:
    """All of the data role but judgements: red when a new route is forgotten, or one changes."""
    posted = {
        each.path
        for each in ROUTES
        if each.method == "POST" and each.role == "data"
        if not each.path.startswith(proxy.DEPLOYMENTS)
    }
    assert posted - {"/feedback"} == proxy.REPEATED


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
def test_a_cut_stream_ends_with_an_error_event(path: str) -> None:
    """In the form of its API. Another answer cannot follow what was sent."""
    serve = Serve([says(start(headers=EVENTS), part(b"data: 1\n\n", more=True)), ANSWERS])
    serve.ask(path)
    *_, last = serve.body.decode().strip().split("\n\n")
    event = json.loads(last[last.index("{") :])
    error = event["error"]
    assert error.get("code", error.get("details", {}).get("error_code")) == "replica_lost"
    assert (event.get("type") == "error") == (path != CHAT)
    assert not serve.sent[-1].get("more_body")
    assert serve.counted == ["cut"]


class Message(dict[str, Any]):
    """A message that weak references can be made to."""


def test_a_body_is_kept_until_the_answer_begins() -> None:
    """Streams last for minutes: red when each of them holds its request's body."""
    message = Message(piece(b"{}"))
    kept = weakref.ref(message)
    seen: list[bool] = []

    async def replica(send: Send) -> None:
        seen.append(kept() is not None)
        await send(start(headers=EVENTS))
        await send(part(b"data: 1\n\n", more=True))
        seen.append(kept() is not None)
        await send(part(b""))

    serve = Serve([replica])
    left: list[dict[str, Any]] = [message]
    del message
    serve.ask(CHAT, left)
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("path", "key", "given", "passes"),
    [
        ("/candidates/v1/chat/completions", "k", [b"Bearer k"], True),
        ("/candidates/v1/chat/completions", "k", [b"Bearer other"], False),
        ("/candidates/v1/chat/completions", "k", [b"Bearer k", b"Bearer k"], False),
        ("/candidates/v1/chat/completions", "k", [], False),
        ("/candidates/v1/chat/completions", None, [b"Bearer None"], False),
        ("/candidates", None, [], False),
        ("/candidates2", None, [], True),
        (CHAT, "k", [], True),
    ],
)
def test_candidates_are_for_the_gateway_alone(
    path: str, key: str | None, given: list[bytes], passes: bool
) -> None:
    """They ask for no key, and the proxies serve them to the same clients."""
    serve = Serve([ANSWERS])
    headers = [(b"authorization", value) for value in given]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        serve.sent.append(message)

    asyncio.run(proxy.CandidatesKey(serve, key)(scope, receive, send))
    assert serve.status == (200 if passes else 401)


@pytest.mark.parametrize(
    ("method", "path", "is_kept", "counted"),
    [
        ("GET", "/calibrations", True, "repeated"),
        ("POST", "/feedback", True, "refused"),  # a judgement could count twice
        ("POST", CHAT, False, "refused"),  # half a body would be sent
    ],
)
def test_only_what_changes_nothing_and_is_whole_is_repeated(
    method: str, path: str, is_kept: bool, counted: str
) -> None:
    """The rest is refused, and its client may send it again."""
    serve = Serve([DIES, ANSWERS])
    serve.ask(path, [piece(b"x" * (2 if is_kept else proxy.KEPT_BYTES + 1))], method)
    assert serve.status == (200 if counted == "repeated" else 503)
    assert serve.counted == [counted]


def test_what_began_or_has_no_client_is_not_answered_again() -> None:
    """Half an answer gets no end, or its client would take it for whole; other scopes pass."""
    serve = Serve([says(start(), part(b'{"ok"', more=True))])
    serve.ask(CHAT)
    assert serve.body == b'{"ok"'
    assert serve.sent[-1]["more_body"]
    serve = Serve([ANSWERS])
    serve.ask(CHAT, [piece(b"{", more=True)])  # and leaves
    assert (serve.sent, serve.counted, len(serve.scopes)) == ([], [], 1)
    serve = Serve([DIES])
    failover = proxy.ReplicaFailover(serve, serve.counted.append)
    asyncio.run(failover({"type": "lifespan"}, None, None))
    assert serve.counted == []


@pytest.mark.parametrize(
    ("begin", "code"),
    [
        (start(404, TEXT), "not_found"),
        (start(408, TEXT), "proxy_timeout"),
        (start(503, TEXT), "no_replica"),
        (start(503), None),
        (start(200, TEXT), None),
    ],
)
def test_serves_own_errors_alone_get_the_envelope(begin: dict[str, Any], code: str | None) -> None:
    """Serve writes plain text, which no client of OpenAI's reads; the gateway's answers pass."""
    serve = Serve([says(begin, part(b"its own"))])
    serve.ask("/metrics", method="GET")
    assert serve.status == begin["status"]
    if code is None:
        assert serve.sent == [begin, part(b"its own")]
    else:
        assert json.loads(serve.body)["error"]["code"] == code
