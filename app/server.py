"""Runs the gateway: binds, opens services, serves, drains, closes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from app.api.routes import ROUTES
from app.errors import SettingsError
from app.http.connection import Connection, ConnectionConfig
from app.http.connection_limits import UnauthenticatedConnections
from app.http.refused_connections import RefusedConnections
from app.lifespan import open_services
from app.main import create_gateway
from app.services import Drain, Services
from app.settings import Secrets, Settings

BACKLOG = 2048
ACCEPTS_A_PASS = 16  # connections taken in one pass of the event loop
YOUNG_OBJECTS = 10_000  # looked at together
GOODBYE_S = 1.0  # for the last words to what is cut


def bind(settings: Settings) -> socket.socket:
    """Take the port before anything slow is loaded.

    Raises:
        SettingsError: The port is in use, or the address is not this machine's.
    """
    return _listen(settings.host, settings.port, "choose another port with --port")


class Server:
    """One gateway on one socket, and on a second one if admin has its own."""

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

        Raises:
            SettingsError: The admin listener cannot be opened.
            ArtifactError: Raised, like the rest, by :func:`app.lifespan.open_services`.
        """
        settings = self._settings
        with contextlib.ExitStack() as stack:
            listeners = [self._listener]
            if settings.access.admin is not None:
                listeners.append(stack.enter_context(self._listen_for_admin()))
            async with open_services(settings, self._secrets) as services:
                config = _config(services)
                delay_s = settings.limits.drain_delay_s
                self._uvicorn = _Uvicorn(config, services.drain, delay_s, ready)
                if not self._stopping:  # asked to stop while the encoder was loading
                    await self._uvicorn.serve(sockets=listeners)
                    await self._uvicorn.say_goodbye()

    async def serve_until_signalled(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        gc.disable()  # what is loaded stays: until all is there, there is nothing to look for
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.serve(ready=_collect_seldom)

    def stop(self) -> None:
        """Begin to drain; asked a second time, give up on what is in flight."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.drain()

    def _listen_for_admin(self) -> socket.socket:
        admin = self._settings.access.admin
        assert admin is not None
        if admin.port == self._listener.getsockname()[1]:
            raise SettingsError("access.admin.port must differ from the gateway's own port")
        return _listen(admin.host, admin.port, "choose another access.admin.port")


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process before services are closed."""

    def __init__(
        self, config: uvicorn.Config, drain: Drain, delay_s: float, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        for each in sockets or []:
            await self._accept_more(each)
        self._ready()

    async def _accept_more(self, listener: socket.socket) -> None:
        """Take more than libuv's one in a pass: on a busy loop the rest would wait for seconds."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_A_PASS - 1):
            server = await loop.create_server(self._protocol, sock=listener.dup(), backlog=BACKLOG)
            self.servers.append(server)

    def _protocol(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    def drain(self) -> None:
        """Not ready from now on; the listeners close when balancers had time to notice."""
        self._drain.begin()
        self.force_exit = self._drain.given_up

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether it is time to go."""
        self.should_exit = self._drain.is_over(self._delay_s)
        return await super().on_tick(counter)

    async def say_goodbye(self) -> None:
        """Cut what is still in flight, and let it say so to its client."""
        if tasks := set(self.server_state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=GOODBYE_S)


def _config(services: Services) -> ConnectionConfig:
    limits = services.settings.limits
    # Without a data key nobody could show one, and only this machine is served.
    most = limits.connections_per_address if services.keys.has("data") else None
    refused = RefusedConnections(services.metrics.connection_refusals)
    return ConnectionConfig(
        create_gateway(services),
        limits=limits,
        unauthenticated=UnauthenticatedConnections(most),
        refused=refused,
        upload_paths=ROUTES.upload_paths,
    )


def _collect_seldom() -> None:
    """What is here now stays: to look through it again and again stops everybody for 0.1 s.

    And look for garbage every few requests instead of in each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


def _listen(host: str, port: int, cure: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # only now does a second gateway find the port taken
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise SettingsError(f"{host}:{port} is in use: {cure}") from exc
        raise SettingsError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener
