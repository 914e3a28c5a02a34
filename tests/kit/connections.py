"""Raw connections: to a gateway, and to its HTTP protocol alone."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from app.api.routes import ROUTES
from app.http.connection import LINGER_S, ConnectionConfig
from app.http.connection_limits import ConnectionLimits
from app.http.refusals import RefusedConnections
from app.settings import Limits
from app.telemetry.metrics import Metrics
from tests.kit.gateway import DATA_KEY, Gateway
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

LONG = "a long answer " * 20


def opened(
    gateway: Gateway, path: str, body: dict[str, Any], key: str = DATA_KEY, *, pause_s: float = 0
) -> socket.socket:
    """A connection with one request on it; with a pause the body comes after the head."""
    host, port = gateway.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=30)
    if pause_s:
        connection.sendall(head.encode())
        time.sleep(pause_s)
        connection.sendall(data)
    else:
        connection.sendall(head.encode() + data)
    return connection


def left(pool: FakePool, connection: socket.socket, names: list[str]) -> bool:
    """Leave while these candidates work; whether all of them see it in time."""
    wait_until(lambda: sorted(pool.running) == names)
    assert pool.cancelled == []
    connection.close()
    return until(lambda: sorted(pool.cancelled) == names and not pool.running)


CHAT = "/v1/chat/completions"


HEADER_S, BODY_S, STALLED_S, SUMMARY_S = 1.0, 0.8, 1.5, 0.5
WINDOW_S, NO_SLOT_S, RATE_CHECK_S = 1.0, 0.5, 0.1
BIG = 64 * 2**20


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells what it was sent; ``/early`` answers before the body, ``/late`` a second later.

    ``/unread`` answers a second later and without the body. A request for ``/known`` counts
    as one with a right key.
    """
    if scope["path"] == "/known":
        scope["state"]["caller"] = "team"
    size, more = 0, scope["path"] not in ("/early", "/unread")
    if scope["path"] in ("/late", "/unread"):
        await asyncio.sleep(1)
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    if scope["path"] == "/big":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(BIG // 2**16):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    document = {
        "path": scope["path"],
        "client": scope["client"][0],
        "headers": [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]],
        "size": size,
    }
    body = json.dumps(document).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Bare:
    """The protocol around a plain application, without the rest of the gateway."""

    def __init__(
        self,
        *,
        body_window_s: float = WINDOW_S,
        linger_s: float = LINGER_S,
        no_slot_header_s: float = NO_SLOT_S,
        summary_s: float = SUMMARY_S,
        **limits: Any,
    ) -> None:
        short = {"header_s": HEADER_S, "body_s": BODY_S, "stalled_s": STALLED_S}
        wanted = short | {"connections_per_address": None} | limits
        self.metrics = Metrics()
        configured = Limits(**wanted)
        config = ConnectionConfig(
            application,
            limits=configured,
            connections=ConnectionLimits(
                configured.connections, configured.connections_per_address
            ),
            refused=RefusedConnections(self.metrics.connection_refusals, every_s=summary_s),
            upload_paths=ROUTES.upload_paths,
            probe_paths=ROUTES.probe_paths,
            body_window_s=body_window_s,
            no_slot_header_s=no_slot_header_s,
            rate_check_s=RATE_CHECK_S,
            linger_s=linger_s,
        )
        self.server = uvicorn.Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: uvloop.run(self.server.serve(sockets=[self._listener])), daemon=True
        )

    def __enter__(self) -> Bare:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.force_exit = self.server.should_exit = True
        self._thread.join(30)

    def connect(self, receive_buffer: int | None = None, of: str = "127.0.0.1") -> socket.socket:
        """A connection; a small buffer makes a client that reads nothing felt soon."""
        connection = socket.socket()
        connection.bind((of, 0))
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def refusals_by_status(self) -> dict[int, int]:
        """How many refusals the metric counts, by status."""
        [family] = self.metrics.connection_refusals.collect()
        return {
            int(sample.labels["status"]): int(sample.value)
            for sample in family.samples
            if sample.name.endswith("_total") and sample.value
        }

    def say(self, data: bytes) -> bytes:
        """Everything that comes back until the server closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return rest(connection)


def rest(connection: socket.socket) -> bytes:
    """What is read until the end; a reset is an end too."""
    read = b""
    try:
        while part := connection.recv(2**16):
            read += part
    except ConnectionResetError:
        pass
    return read


def one(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """One answer with a content length: its status and its JSON."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(2**16)
        assert part, read
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        body += connection.recv(2**16)
    assert len(body) == int(fields[b"content-length"]), body
    return int(head.split()[1]), json.loads(body)


def status_and_code(answer: bytes) -> tuple[int, str]:
    """Status and code of a refusal that is the only answer, in the envelope, and the last."""
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


def request(
    *headers: str, path: str = "/", method: str = "POST", body: bytes = b"", host: str = "host: x"
) -> bytes:
    """A request as it stands on the wire."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", host, *headers, "", "")).encode() + body


@pytest.fixture
def start() -> Iterator[Callable[..., Bare]]:
    """Servers of one's own, with other limits."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(Bare(**limits))


def open_connections(server: Bare) -> int:
    """As the server counts them."""
    return len(server.server.server_state.connections)


def dialled(gateway: Gateway) -> socket.socket:
    """A new connection to a gateway."""
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def told(gateway: Gateway, data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the one answer to these bytes, after which the connection closes."""
    with dialled(gateway) as connection:
        connection.sendall(data.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)
