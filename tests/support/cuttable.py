"""A wire to a database that can be cut at a chosen message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

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
