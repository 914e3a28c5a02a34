"""Sockets: free ports, open connections, a balancer, and a wire that can be cut."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import httpx2

# Below the ports that Linux gives to connections and to sockets bound to port 0: no other process
# gets one of them by chance before its server listens. Each process begins at a place of its own.
_FIRST, _COUNT = 20_000, 12_000
_OFFSETS = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """A port of the loopback interface without a listener; none is returned twice."""
    for offset in itertools.islice(_OFFSETS, _COUNT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", _FIRST + offset % _COUNT))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port between 20,000 and 32,000 is free: end the servers that hold them")


def connections_to(port: int) -> int:
    """Sockets of this process that are, or wait to be, connected to a port."""
    return sum(_peer(int(each)) == port for each in os.listdir("/proc/self/fd"))


def _peer(descriptor: int) -> int | None:
    """The port at the other end; none for what is no socket, or is not connected."""
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as one:
            name = one.getpeername()
    except OSError:  # it was closed meanwhile, or has no peer
        return None
    return name[1] if isinstance(name, tuple) else None


_OWN = ("host", "connection", "transfer-encoding", "content-length", "content-encoding")


@contextmanager
def balancer(urls: Sequence[str], seen: list[tuple[str, str, int]]) -> Generator[str]:
    """The URL of a balancer.

    Args:
        urls: The gateways; the list may change meanwhile.
        seen: Takes method, path and status of each response.
    """
    turns = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = [(k, v) for k, v in self.headers.items() if k.lower() not in _OWN]
            url = urls[next(turns) % len(urls)] + self.path
            answer = client.request(self.command, url, content=body, headers=headers)
            seen.append((self.command, self.path, answer.status_code))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = _forward

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    with httpx2.Client(timeout=60, verify=False, trust_env=False) as client:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


End = Literal["asked", "answered"]


@dataclass
class _Link:
    """One connection."""

    began: bool = False  # what comes before the message was sent
    silent: bool = False  # the next answer is not told


class Cuttable:
    """Forwards TCP connections to a port of this machine.

    ``cut(b"COMMIT", "asked", after=b"UPDATE x")`` cuts the connection that next sends one and then
    the other, before the server has seen the last; ``"answered"`` after the server did what it
    says, before its answer is told.
    """

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._wanted: tuple[bytes, bytes, End] | None = None
        self._closed = False
        self.was_cut = threading.Event()

    def cut(self, message: bytes, when: End, *, after: bytes) -> None:
        """Arm it, once."""
        self.was_cut.clear()
        self._wanted = (after, message, when)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                link = _Link()
                with self._lock:
                    self._open |= {client, server}
                for source, sink, look in (
                    (client, server, lambda data, link=link: self._asks(data, link)),
                    (server, client, lambda _, link=link: not link.silent),
                ):
                    threading.Thread(
                        target=self._pump, args=(source, sink, look), daemon=True
                    ).start()

    def _asks(self, data: bytes, link: _Link) -> bool:
        if self._wanted is None:
            return True
        after, message, when = self._wanted
        link.began = link.began or after in data
        if not link.began or message not in data:
            return True
        self._wanted = None
        link.silent = when == "answered"
        return link.silent

    def _pump(
        self, source: socket.socket, sink: socket.socket, look: Callable[[bytes], bool]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if not look(data):
                    self.was_cut.set()
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._lock:
            self._open -= {source, sink}


def closed_port() -> str:
    """A base URL that no server listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
