"""HTTP client for upstream servers: connection pool, deadlines, and limits of size and memory.

It uses aiohttp. With httpx 0.28 a call costs 1,420 us of CPU instead of 57, and its connection pool
never recovers from cancelled fan-outs. Compressed answers are rejected: half a megabyte on the wire
can be a gigabyte in memory. Redirects are not followed and proxies from the environment are not
used: candidates are exactly where the configuration says.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final, Self

import aiohttp

from app.concurrency.memory_budget import MemoryBudget
from app.concurrency.threads import SMALL_BYTES
from app.errors import UpstreamError, UpstreamOverloaded
from app.settings import FleetSettings, Limits
from app.upstream.dns_cache import CachingResolver
from app.upstream.failures import RAISED, check_response_head, not_http, to_upstream_error
from app.upstream.http_response import Response
from app.upstream.replicas import Replica, Target

HEADERS: Final = 100  # of a response
HEADER_BYTES: Final = 8190  # of each, and of the status line
LARGE_BYTES: Final = 2**20  # payloads from here on are sent in parts; aiohttp would copy them
HEALTH_CHECK_S: Final = 5.0
CONNECTION_CHECK_S: Final = 0.5  # interval at which a silent connection is checked
DRAIN_S: Final = 0.02  # for the bytes behind the end of a stream, so that its connection is kept


@dataclass(slots=True)
class _ConnectionTrace:
    """Facts about one call from aiohttp's tracing."""

    is_reused: bool = False  # the call was sent on a pooled connection


class UpstreamClient:
    """One connection pool for all targets."""

    def __init__(self, rules: FleetSettings, limits: Limits) -> None:
        self._rules = rules
        self._limits = limits
        self._buffers = MemoryBudget(
            limits.buffered_bytes,
            UpstreamOverloaded,
            "too many large requests and answers are under way at once",
        )

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_record_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # every target has its own
                resolver=CachingResolver(aiohttp.ThreadedResolver()),
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._rules.connect_timeout_s),
            response_class=Response,
            trace_configs=[trace],
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=HEADERS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of all large payloads and answers in memory."""
        return self._buffers.used

    @contextlib.contextmanager
    def buffering(self, data: bytes) -> Generator[None]:
        """Count a large payload as buffered inside the context. Raises UpstreamError."""
        size = len(data) if len(data) > SMALL_BYTES else 0
        self._buffers.reserve(size)
        try:
            yield
        finally:
            self._buffers.release(size)

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
        headers = target.headers if trace is None else {**target.headers, **trace}
        try:
            async with asyncio.timeout(limit_s):
                response = await self._send(
                    target, f"{replica.base_url}/{path}", data, headers, may_reconnect
                )
        except RAISED as exc:
            raise to_upstream_error(target.name, exc) from exc
        try:
            check_response_head(target.name, response)
        except UpstreamError:
            response.close()
            raise
        return UpstreamAnswer(
            target.name,
            response,
            until=until,
            idle_s=self._rules.idle_timeout_s,
            max_bytes=self._limits.answer_bytes,
            buffers=self._buffers,
        )

    async def is_alive(self, target: Target, replica: Replica) -> bool:
        """Health check: whether a replica answers with any status below 500."""
        try:
            async with (
                asyncio.timeout(HEALTH_CHECK_S),
                self._session.get(
                    f"{replica.base_url}/models",
                    headers=target.headers,
                    allow_redirects=False,
                    ssl=target.verify_tls,
                ) as response,
            ):
                return response.status < 500
        except (aiohttp.ClientError, OSError):  # a TimeoutError is one
            return False

    async def _send(
        self,
        target: Target,
        url: str,
        data: bytes,
        headers: Mapping[str, str],
        may_reconnect: bool,
    ) -> aiohttp.ClientResponse:
        """Post, and post again where the server had closed the pooled connection."""
        while True:
            trace = _ConnectionTrace()
            try:
                return await self._session.post(
                    url,
                    data=io.BytesIO(data) if len(data) > LARGE_BYTES else data,
                    headers=headers,
                    allow_redirects=False,
                    ssl=target.verify_tls,
                    trace_request_ctx=trace,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
                if not may_reconnect or not trace.is_reused or _is_partly_answered(exc):
                    raise
                may_reconnect = False


class UpstreamAnswer:
    """A response whose headers were read, and whose body is read within its limits.

    Attributes:
        is_complete: The answer was read to its end.
    """

    def __init__(
        self,
        name: str,
        response: aiohttp.ClientResponse,
        *,
        until: float,
        idle_s: float,
        max_bytes: int,
        buffers: MemoryBudget,
    ) -> None:
        self._name = name
        self._response = response
        self._until = until
        self._idle_s = idle_s
        self._max_bytes = max_bytes
        self._buffers = buffers
        self._size = 0
        self._buffered = 0
        self.is_complete = False

    def close(self) -> None:
        """Return the connection to the pool if the answer was read to its end; else close it."""
        self._response.close()
        self._buffers.release(self._buffered)
        self._buffered = 0

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self._response.headers.get("content-type", "").startswith("text/event-stream")

    async def read_all(self) -> bytes:
        """Read the whole document; it counts as buffered until the answer is closed."""
        parts: list[bytes] = []
        while part := await self.read_part():
            self._buffers.reserve(len(part))
            self._buffered += len(part)
            parts.append(part)
        self.is_complete = True
        return b"".join(parts)

    async def read_part(self) -> bytes:
        """Read what arrived next; empty at the end. Raises UpstreamError at every limit."""
        part = await self._read_next(min(self._idle_s, self._until - time.monotonic()))
        self._size += len(part)
        if self._size > self._max_bytes:
            raise UpstreamError(
                f"{self._name} sent too large an answer", kind="upstream_response_too_large"
            )
        return part

    async def finish(self) -> None:
        """Note that the answer is complete, and wait briefly for the end of its bytes."""
        self.is_complete = True
        if not self._response.content.at_eof():
            with contextlib.suppress(UpstreamError):
                await self._read_next(DRAIN_S)

    async def _read_next(self, limit_s: float) -> bytes:
        content = self._response.content
        try:
            if limit_s <= 0:  # even if bytes have arrived
                raise TimeoutError
            if content.at_eof():
                return b""
            if part := content.read_nowait():
                return part
            return await self._wait_and_read(content, limit_s)
        except RAISED as exc:
            raise to_upstream_error(self._name, exc) from exc

    async def _wait_and_read(self, content: aiohttp.StreamReader, limit_s: float) -> bytes:
        until = time.monotonic() + limit_s
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, CONNECTION_CHECK_S)):
                    return await content.readany()
            if self._is_lost:
                raise not_http(self._name)
        raise TimeoutError

    @property
    def _is_lost(self) -> bool:
        """Whether aiohttp closed the connection over a malformed chunk, without telling readers."""
        connection = self._response.connection
        return connection is not None and connection.transport is None


async def _record_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    if isinstance(context.trace_request_ctx, _ConnectionTrace):
        context.trace_request_ctx.is_reused = True


def _is_partly_answered(exc: Exception) -> bool:
    """Whether part of an answer had arrived when the connection broke."""
    return isinstance(exc, aiohttp.ServerDisconnectedError) and not isinstance(exc.message, str)
