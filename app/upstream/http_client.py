"""HTTP client for upstream servers: connection pools, deadlines, and limits of size and memory.

It speaks HTTP/1.1 itself (`connection.py`): a call costs 14 us of CPU where plain aiohttp takes 69.
The same rules on top of aiohttp took a quarter more than aiohttp alone; aiohttp without its context
managers takes a tenth less, with aiofastnet as much. pyreqwest takes 31 us, but has no limits for
headers and interim answers (`benchmarks/upstream_call.py`).

Compressed answers are rejected: half a megabyte on the wire can be a gigabyte in memory. Redirects
are not followed and proxies from the environment are not used: candidates are exactly where the
configuration says.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Self
from urllib.parse import urlsplit

from app.concurrency.memory_budget import MemoryBudget
from app.errors import UpstreamError, UpstreamOverloaded, UpstreamRejected, UpstreamUnavailable
from app.settings import FleetSettings, Limits
from app.upstream.connection import Connection, Disconnected
from app.upstream.connection_pool import ConnectionPool, DnsCache
from app.upstream.replicas import Replica, Target
from app.upstream.retries import RAISED, check_response_head, rejected, to_upstream_error
from app.wire import parsing, rejections
from racer_core.errors import InputError

HEALTH_CHECK_S: Final = 5.0
ERROR_S: Final = 1.0  # for the words of an error, whose status has arrived
MAX_LIST_BYTES: Final = 2**20
DRAIN_S: Final = 0.02  # for the bytes behind the end of a stream, so that its connection is kept


class UpstreamClient:
    """The connection pools of all replicas.

    Attributes:
        buffers: Budget of the bytes of large payloads and of answers.
    """

    def __init__(self, rules: FleetSettings, limits: Limits) -> None:
        self._rules = rules
        self._limits = limits
        self._dns = DnsCache()
        self._pools: dict[Replica, ConnectionPool] = {}
        self.buffers = MemoryBudget(
            limits.buffered_bytes,
            UpstreamOverloaded,
            "too many large requests and answers are under way at once",
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.close()

    def forget(self, replica: Replica) -> None:
        """Close the connections to a server that is called no more, each after its call."""
        if (pool := self._pools.pop(replica, None)) is not None:
            pool.close()

    async def post(
        self,
        target: Target,
        replica: Replica,
        path: str,
        data: bytes,
        *,
        limit_s: float,
        may_reconnect: bool,
        trace: Mapping[str, str] | None = None,
    ) -> UpstreamAnswer:
        """Send a JSON document and wait for the headers of a good answer. Close the answer.

        Args:
            target: The model.
            replica: The server.
            path: Below the base URL.
            data: The document.
            limit_s: Time limit of the whole call.
            may_reconnect: Send it again where a pooled connection turns out to be closed. Only for
                a request's first call: a prompt that makes servers hang up looks the same.
            trace: Headers with the call's trace context.

        Raises:
            UpstreamError: No usable answer.
        """
        until = time.monotonic() + limit_s
        pool = self._pool(target, replica)
        head = pool.head("POST", path)
        if trace is not None:
            head += "".join(f"{name}: {value}\r\n" for name, value in trace.items()).encode()
        head += b"content-length: %d\r\n\r\n" % len(data)
        connection = await self._send(target.name, pool, head, data, until, may_reconnect)
        try:
            check_response_head(target.name, connection.status, connection.headers)
        except UpstreamRejected as exc:
            if exc.status not in rejections.STATUSES:
                connection.abort()
                raise
            document = await _beginning(connection, min(until, time.monotonic() + ERROR_S))
            raise rejected(target.name, exc.status, document, target.hidden_names) from None
        except UpstreamError:
            connection.abort()
            raise
        return UpstreamAnswer(
            target.name,
            connection,
            pool,
            until=until,
            idle_s=self._rules.idle_timeout_s,
            max_bytes=self._limits.answer_bytes,
            buffers=self.buffers,
        )

    async def is_alive(self, target: Target, replica: Replica, model: str | None = None) -> bool:
        """Health check: whether a replica answers with any status below 500.

        Args:
            target: The model.
            replica: The server.
            model: One that it must list, if it lists models: its name, or the name of one tag.
        """
        pool = self._pool(target, replica)
        head = pool.head("GET", "models") + b"\r\n"
        until = time.monotonic() + HEALTH_CHECK_S
        try:
            connection = await self._send(target.name, pool, head, b"", until, may_reconnect=True)
        except UpstreamError:
            return False
        if model is None:
            pool.give_back(connection)
            return connection.status < 500
        document = await _beginning(connection, until, MAX_LIST_BYTES)
        try:
            listed = parsing.model_names(document)
        except InputError:
            listed = (model,)  # a server without a list: the next call will tell
        is_listed = any(each == model or each.startswith(f"{model}:") for each in listed)
        return is_listed and connection.status < 500

    def _pool(self, target: Target, replica: Replica) -> ConnectionPool:
        pool = self._pools.get(replica)
        if pool is None:
            pool = self._pools[replica] = ConnectionPool(
                replica.base_url,
                target.headers,
                tls=self._tls(target, replica),
                dns=self._dns,
            )
        return pool

    async def _send(
        self,
        name: str,
        pool: ConnectionPool,
        head: bytes,
        data: bytes,
        until: float,
        may_reconnect: bool,
    ) -> Connection:
        """Send a request, and again on a new connection where the server had closed the pooled one.

        Returns:
            The connection, with the headers of the answer. Raises UpstreamError.
        """
        connection = pool.take()
        try:
            if connection is not None:
                try:
                    await connection.request(head, data, until)
                except Disconnected:
                    if not may_reconnect or connection.is_answering:
                        raise
                else:
                    return connection
            connection = await self._connect(name, pool, until)
            await connection.request(head, data, until)
        except RAISED as exc:
            raise to_upstream_error(name, exc) from exc
        return connection

    async def _connect(self, name: str, pool: ConnectionPool, until: float) -> Connection:
        """Open a connection. Raises UpstreamError, or TimeoutError at the deadline."""
        left = until - time.monotonic()
        try:
            async with asyncio.timeout(min(left, self._rules.connect_timeout_s)):
                return await pool.connect()
        except ssl.SSLError as exc:
            raise UpstreamError(f"{name} has no valid TLS", kind="upstream_tls_error") from exc
        except OSError as exc:
            if isinstance(exc, TimeoutError) and left <= self._rules.connect_timeout_s:
                raise
            raise UpstreamUnavailable(f"{name} cannot be reached") from exc

    def _tls(self, target: Target, replica: Replica) -> ssl.SSLContext | None:
        """Only for ``https``: reading the system's certificates blocks for 50 ms."""
        if urlsplit(replica.base_url).scheme != "https":
            return None
        return self._verifying if target.verify_tls else self._unverifying

    @cached_property
    def _verifying(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    @cached_property
    def _unverifying(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


async def _beginning(
    connection: Connection, until: float, max_bytes: int = rejections.MAX_BYTES
) -> bytes:
    """The beginning of a document, as far as it arrives in time; the connection is closed."""
    read = b""
    try:
        while len(read) < max_bytes and (part := await connection.read(until)):
            read += part
    except RAISED:
        pass
    finally:
        connection.abort()
    return read[:max_bytes]


class UpstreamAnswer:
    """A response whose headers were read, and whose body is read within its limits.

    Attributes:
        is_complete: The answer was read to its end.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        pool: ConnectionPool,
        *,
        until: float,
        idle_s: float,
        max_bytes: int,
        buffers: MemoryBudget,
    ) -> None:
        self._name = name
        self._connection = connection
        self._pool = pool
        self._until = until
        self._idle_s = idle_s
        self._max_bytes = max_bytes
        self._buffers = buffers
        self._size = 0
        self._buffered = 0
        self._is_closed = False
        self.is_complete = False

    def close(self) -> None:
        """Return the connection to the pool if the answer was read to its end; else close it."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.give_back(self._connection)
            self._buffers.release(self._buffered)

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self._connection.headers.get("content-type", "").startswith("text/event-stream")

    async def read_all(self) -> bytes:
        """Read the whole document; it counts as buffered until the answer is closed."""
        parts: list[bytes] = []
        while part := await self.read_part():
            self._buffers.reserve(len(part))
            self._buffered += len(part)
            parts.append(part)
        self.is_complete = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_part(self) -> bytes:
        """Read what arrived next; empty at the end. Raises UpstreamError at every limit."""
        now = time.monotonic()
        try:
            if now >= self._until:  # even if bytes have arrived
                raise TimeoutError
            part = self._connection.read_nowait() or await self._connection.read(
                min(now + self._idle_s, self._until)
            )
        except RAISED as exc:
            raise to_upstream_error(self._name, exc) from exc
        self._size += len(part)
        if self._size > self._max_bytes:
            raise UpstreamError(
                f"{self._name} sent too large an answer", kind="upstream_response_too_large"
            )
        return part

    async def finish(self) -> None:
        """Note that the answer is complete, and wait briefly for the end of its bytes."""
        self.is_complete = True
        if not self._connection.is_complete:
            with contextlib.suppress(*RAISED):
                self._connection.read_nowait()
                await self._connection.read(time.monotonic() + DRAIN_S)
