"""Runs the gateway: binds, opens services, serves, drains, closes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from app.errors import SettingsError
from app.lifespan import open_services
from app.main import create_app
from app.settings import Secrets, Settings

DRAIN_S = 30
BACKLOG = 2048


def bind(settings: Settings) -> socket.socket:
    """Take the port before anything slow is loaded.

    Raises:
        SettingsError: The port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)  # only now does a second gateway find the port taken
    except OSError as exc:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        if exc.errno == errno.EADDRINUSE:
            raise SettingsError(f"{place} is in use: choose another port with --port") from exc
        raise SettingsError(f"cannot listen on {place}: {exc.strerror}") from exc
    return listener


class Server:
    """One gateway on one socket."""

    def __init__(self, settings: Settings, secrets: Secrets, listener: socket.socket) -> None:
        self._settings = settings
        self._secrets = secrets
        self._listener = listener
        self._uvicorn: _Uvicorn | None = None
        self._stopping = False

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until :meth:`stop`; then finish what is in flight, close everything and return.

        Args:
            ready: Called once requests are accepted.
        """
        async with open_services(self._settings, self._secrets) as services:
            self._uvicorn = _Uvicorn(
                uvicorn.Config(
                    create_app(services),
                    lifespan="off",
                    http="httptools",
                    ws="none",
                    access_log=False,
                    server_header=False,
                    timeout_graceful_shutdown=DRAIN_S,
                ),
                ready,
            )
            if not self._stopping:  # asked to stop while the encoder was loading
                await self._uvicorn.serve(sockets=[self._listener])

    async def serve_until_signalled(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.serve()

    def stop(self) -> None:
        """Begin to drain; asked a second time, give up on what is in flight."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.force_exit = self._uvicorn.should_exit
            self._uvicorn.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process before services are closed."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._ready()
