"""Connections to one replica, made on demand and kept while idle for a short time; a DNS cache."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohappyeyeballs

from app.upstream.connection import Connection
from racer_core import __version__

IDLE_S: Final = 15.0  # then a connection is closed; servers close theirs about as early
NEXT_ADDRESS_S: Final = 0.25  # until a host's next address is tried as well (RFC 8305)


class ConnectionPool:
    """Connections to one server.

    Args:
        base_url: Of the server.
        headers: Sent with every request.
        tls: Encrypts its connections; None for an ``http`` URL.
        dns: Finds the server.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        tls: ssl.SSLContext | None,
        dns: DnsCache,
    ) -> None:
        parts = urlsplit(base_url)
        host = parts.hostname or ""
        self._host = host if host.isascii() else host.encode("idna").decode()
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        self._tls = tls
        self._dns = dns
        shown = f"[{self._host}]" if ":" in self._host else self._host
        named = {
            "host": shown if parts.port is None else f"{shown}:{parts.port}",
            "accept": "*/*",
            "user-agent": f"racer/{__version__}",
        }
        self._headers = "".join(
            f"{name}: {value}\r\n" for name, value in (named | {**headers}).items()
        )
        self._heads = dict[tuple[str, str], bytes]()  # paths come from the gateway's own routes
        self._idle = dict[Connection, float]()  # since when, the latest last
        self._cleaning: asyncio.TimerHandle | None = None
        self._is_closed = False

    def head(self, method: str, path: str) -> bytes:
        """Return the beginning of a request's head, up to the headers that all requests share.

        Args:
            method: HTTP method.
            path: Below the base URL; with a slash at its beginning, beside the URL's `/v1`.
        """
        head = self._heads.get((method, path))
        if head is None:
            beside = self._path.rstrip("/").removesuffix("/v1")
            place = f"{beside}{path}" if path.startswith("/") else f"{self._path}/{path}"
            text = f"{method} {place} HTTP/1.1\r\n{self._headers}"
            head = self._heads[method, path] = text.encode("latin-1")
        return head

    def take(self) -> Connection | None:
        """Return the connection that was used last, if one is idle."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        return None

    async def connect(self) -> Connection:
        """Make a connection. Raises OSError; a failed TLS handshake is an ssl.SSLError."""
        loop = asyncio.get_running_loop()
        addresses = await self._dns.addresses(self._host, self._port)
        socket = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, loop=loop
        )
        _, connection = await loop.create_connection(
            Connection,
            sock=socket,
            ssl=self._tls,
            server_hostname=None if self._tls is None else self._host,
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection if its answer was complete and it can be used again; else close it."""
        is_usable = connection.is_complete and connection.is_reusable and connection.is_open
        if is_usable and not self._is_closed:
            connection.read_nowait()  # what its reader did not need
            self._idle[connection] = time.monotonic()
            if self._cleaning is None:
                self._clean_later()
        else:
            connection.abort()

    def close(self) -> None:
        """Close the idle connections, and those in use when they are given back."""
        self._is_closed = True
        if self._cleaning is not None:
            self._cleaning.cancel()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _clean_later(self) -> None:
        self._cleaning = asyncio.get_running_loop().call_later(IDLE_S, self._clean)

    def _clean(self) -> None:
        """Close what has been idle for too long, and forget what the server closed."""
        self._cleaning = None
        oldest = time.monotonic() - IDLE_S
        for connection, since in list(self._idle.items()):
            if since <= oldest or not connection.is_open:
                connection.abort()
                del self._idle[connection]
        if self._idle:
            self._clean_later()


# DNS cache: one look-up in ten seconds; while the name server fails, the last good answer.
#
# Successive connections get the addresses of a host in rotation.

FRESH_S: Final = 10.0  # until then the name server is not asked again
CACHE_S: Final = 300.0
LOOKUP_S: Final = 1.0  # limit of a look-up when a cached answer can replace it

Address = tuple[int, int, int, str, tuple[Any, ...]]  # as `socket.getaddrinfo` returns it
Lookup = Callable[[str, int], Awaitable[Sequence[Address]]]


async def look_up(host: str, port: int) -> Sequence[Address]:
    """Ask the system for a host's addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class DnsCache:
    """The addresses of hosts."""

    def __init__(
        self, lookup: Lookup = look_up, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        # Hosts come from the configuration, so these cannot grow.
        self._cache: dict[tuple[str, int], tuple[float, list[Address]]] = {}
        self._locks = defaultdict[tuple[str, int], asyncio.Lock](asyncio.Lock)

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host, at least one. Raises OSError."""
        key = (host, port)
        async with self._locks[key]:  # many connections at once need one look-up
            asked_at, addresses = self._cache.get(key, (-CACHE_S, []))
            if self._clock() - asked_at >= FRESH_S:
                asked_at, addresses = await self._ask(key, asked_at, addresses)
            self._cache[key] = asked_at, addresses[1:] + addresses[:1]
        return addresses

    async def _ask(
        self, key: tuple[str, int], asked_at: float, cached: list[Address]
    ) -> tuple[float, list[Address]]:
        is_usable = bool(cached) and self._clock() - asked_at < CACHE_S
        try:
            async with asyncio.timeout(LOOKUP_S if is_usable else None):
                return self._clock(), [*await self._lookup(*key)]
        except OSError:  # a TimeoutError is one
            if is_usable:
                return asked_at, cached
            raise
