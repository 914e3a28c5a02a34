"""Server process: binds the sockets, opens services, serves, drains (graceful shutdown), closes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator

import uvicorn

from app.access.api_keys import KeyRing
from app.api.routes import ROUTES
from app.errors import ReloadRefused, SettingsError
from app.http.connection import Connection, ConnectionConfig
from app.http.connection_limits import ConnectionLimits
from app.http.refusals import RefusedConnections
from app.lifespan import open_services
from app.main import create_gateway
from app.reload import Load, Reload
from app.services import Drain, Services
from app.settings import Secrets, Settings

log = logging.getLogger(__name__)

BACKLOG = 2048
ACCEPTS_PER_ITERATION = 16  # connections accepted in one iteration of the event loop
GC_THRESHOLD = 10_000  # new objects before a collection of the youngest generation
# Seconds that a busy thread keeps the interpreter while the event loop waits for it. Python's own
# value is 0.005: a timer was then late by 12 ms at the median, with this one by 3.
SWITCH_INTERVAL_S = 0.0005
GOODBYE_S = 1.0  # for the error responses to requests that are cancelled


def bind(settings: Settings) -> socket.socket:
    """Bind the port before anything slow is loaded.

    Raises:
        SettingsError: The port is in use, or the address does not belong to this machine.
    """
    return _listen(settings.host, settings.port, "choose another port with --port")


class Server:
    """One gateway on one socket, or on two if admin routes have their own.

    Args:
        settings: The configuration.
        secrets: Keys and URLs from the environment.
        listener: The socket of the gateway.
        load: Reads the configuration again; None: it cannot be reloaded.
        announce: Called with the opened services once requests are accepted.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        listener: socket.socket,
        load: Load | None = None,
        *,
        announce: Callable[[Services], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._listener = listener
        self._load = load
        self._announce = announce
        self._reload: Reload | None = None
        self._reloads = set[asyncio.Task[None]]()  # those under way
        self._terminal: int | None = None
        self._uvicorn: _Uvicorn | None = None
        self._stopping = False

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until :meth:`stop`; then finish running requests, close all services and return.

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
            async with open_services(settings, self._secrets, load=self._load) as services:

                def accepting() -> None:
                    ready()
                    self._announce(services)

                config = _config(services, self._secrets)
                self._reload = services.reload
                delay_s = settings.limits.drain_delay_s
                self._uvicorn = _Uvicorn(
                    config, drain=services.drain, delay_s=delay_s, ready=accepting
                )
                if not self._stopping:  # stopped while the encoder was loading
                    await self._uvicorn.serve(sockets=listeners)
                    await self._uvicorn.cancel_requests()

    async def serve_until_signalled(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reloads, or stops where the terminal has gone.

        Settings of the interpreter are set here.
        """
        gc.disable()  # loading creates no garbage worth a collection
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._terminal = next((file for file in range(3) if os.isatty(file)), None)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        await self.serve(ready=_collect_garbage_rarely)

    def stop(self) -> None:
        """Begin to drain; if called again, give up running requests."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.drain()

    def _hang_up(self) -> None:
        """Reload the configuration; drain where the terminal was closed, whose shell signals too.

        A terminal that was closed is none any more.
        """
        if self._stopping:
            return
        if self._terminal is not None and not os.isatty(self._terminal):
            self.stop()
            return
        task = asyncio.get_running_loop().create_task(self._reload_and_log(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_and_log(self) -> None:
        if self._reload is None:
            log.error(
                "the configuration is not reloaded: the gateway is starting; send SIGHUP later"
            )
            return
        try:
            await self._reload()
        except ReloadRefused as exc:
            log.error("the configuration is not reloaded: %s", exc)
        except Exception:
            log.exception("the configuration is not reloaded")

    def _listen_for_admin(self) -> socket.socket:
        admin = self._settings.access.admin
        assert admin is not None
        if admin.port == self._listener.getsockname()[1]:
            raise SettingsError("access.admin.port must differ from the gateway's own port")
        return _listen(admin.host, admin.port, "choose another access.admin.port")


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handling, which would end the process before closing."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain: Drain,
        delay_s: float,
        ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to :meth:`Server.serve_until_signalled`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call ``ready``."""
        await super().startup(sockets)
        for each in sockets or []:
            await self._accept_more(each)
        self._ready()

    async def _accept_more(self, listener: socket.socket) -> None:
        """Accept several connections per iteration.

        libuv accepts one per listener; on a busy loop the others would wait for seconds.
        """
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_PER_ITERATION - 1):
            server = await loop.create_server(self._protocol, sock=listener.dup(), backlog=BACKLOG)
            self.servers.append(server)

    def _protocol(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    def drain(self) -> None:
        """Become not ready. Listeners close after the delay that load balancers need."""
        self._drain.begin()
        self.force_exit = self._drain.given_up

    async def on_tick(self, counter: int) -> bool:
        """Check ten times a second whether draining is over."""
        self.should_exit = self._drain.is_over(self._delay_s)
        return await super().on_tick(counter)

    async def cancel_requests(self) -> None:
        """Cancel running requests; each still sends an error to its client."""
        if tasks := set(self.server_state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=GOODBYE_S)


def _config(services: Services, secrets: Secrets) -> ConnectionConfig:
    limits = services.settings.limits
    connections = ConnectionLimits(limits.connections, _slots(services.settings, secrets))
    services.reload.subscribe(
        lambda settings, secrets: connections.limit_to(_slots(settings, secrets))
    )
    return ConnectionConfig(
        create_gateway(services),
        limits=limits,
        connections=connections,
        refused=RefusedConnections(services.metrics.connection_refusals),
        upload_paths=ROUTES.upload_paths,
        probe_paths=ROUTES.probe_paths,
    )


def _slots(settings: Settings, secrets: Secrets) -> int | None:
    """Connection slots of an address; None for any number.

    Without a data key no connection can authenticate, and only this machine is served.
    """
    has_key = KeyRing(settings.access.keys, secrets).has("data")
    return settings.limits.connections_per_address if has_key else None


def _collect_garbage_rarely() -> None:
    """Exclude loaded objects from garbage collection: scanning them takes 0.1 s each time.

    The youngest generation is collected once in several requests instead of in each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()


def _listen(host: str, port: int, cure: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # only listening makes bind() fail for a second gateway
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise SettingsError(f"{host}:{port} is in use: {cure}") from exc
        raise SettingsError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener
