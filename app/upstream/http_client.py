"""One HTTP call to one replica.

aiohttp and not httpx: a call costs 57 us of CPU instead of 1,420, and httpx 0.28 wedges its pool
for good after cancelled fan-outs. Answers are asked for uncompressed and refused otherwise: half a
megabyte on the wire can be a gigabyte in memory. Redirects are not followed, and the environment's
proxies are not used: candidates are exactly where the configuration says.
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
from app.upstream.failures import RAISED, check_head, not_http, translated
from app.upstream.http_response import Response
from app.upstream.replicas import Replica, Target

HEADERS: Final = 100  # of a response
HEADER_BYTES: Final = 8190  # of each, and of the status line
LARGE_BYTES: Final = 2**20  # is written in parts, for aiohttp would copy it in one go
PROBE_S: Final = 5.0
LOOK_S: Final = 0.5  # between two looks at whether a silent connection still exists
DRAIN_S: Final = 0.02  # for what follows the end of a stream, so that its connection can stay


@dataclass(slots=True)
class _Wire:
    """What tracing tells of one call."""

    reused: bool = False  # it went out on a connection that was open already


class UpstreamClient:
    """One pooled session for everybody."""

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
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # every callee has its own
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
        """How much of all large payloads and answers is in memory now."""
        return self._buffers.used

    @contextlib.contextmanager
    def holding(self, data: bytes) -> Generator[None]:
        """Count a payload as long as it is needed; small ones are free. Raises UpstreamError."""
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
        """Send a JSON document and wait for the head of a good answer. Close the answer.

        Args:
            target: Who is asked.
            replica: Where.
            path: Below the base URL.
            data: The document.
            limit_s: For the whole call.
            may_reconnect: Send it again where an open connection turns out to be closed. A prompt
                at which servers hang up looks the same, so this is for a request's first call only.
            trace: Headers that say to which trace it belongs.

        Raises:
            UpstreamError: No usable answer.
        """
        until = time.monotonic() + limit_s
        headers = target.headers if trace is None else {**target.headers, **trace}
        try:
            async with asyncio.timeout(limit_s):
                response = await self._sent(
                    target, f"{replica.base_url}/{path}", data, headers, may_reconnect
                )
        except RAISED as exc:
            raise translated(target.name, exc) from exc
        try:
            check_head(target.name, response)
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
        """Whether a replica answers at all; which answer does not matter, below 500."""
        try:
            async with (
                asyncio.timeout(PROBE_S),
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

    async def _sent(
        self,
        target: Target,
        url: str,
        data: bytes,
        headers: Mapping[str, str],
        may_reconnect: bool,
    ) -> aiohttp.ClientResponse:
        """Post, once more where the server had closed an idle connection without our notice."""
        while True:
            wire = _Wire()
            try:
                return await self._session.post(
                    url,
                    data=io.BytesIO(data) if len(data) > LARGE_BYTES else data,
                    headers=headers,
                    allow_redirects=False,
                    ssl=target.verify_tls,
                    trace_request_ctx=wire,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
                if not may_reconnect or not wire.reused or _has_begun(exc):
                    raise
                may_reconnect = False


class UpstreamAnswer:
    """A response of which the head was read.

    Attributes:
        is_whole: The answer was read to its end.
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
        self.is_whole = False

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, and close it otherwise."""
        self._response.close()
        self._buffers.release(self._buffered)
        self._buffered = 0

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events."""
        return self._response.headers.get("content-type", "").startswith("text/event-stream")

    async def whole(self) -> bytes:
        """The whole document; it counts as buffered until the answer is closed."""
        parts: list[bytes] = []
        while part := await self.part():
            self._buffers.reserve(len(part))
            self._buffered += len(part)
            parts.append(part)
        self.is_whole = True
        return b"".join(parts)

    async def part(self) -> bytes:
        """What arrived next; nothing at the end. Raises UpstreamError at every limit."""
        part = await self._next(min(self._idle_s, self._until - time.monotonic()))
        self._size += len(part)
        if self._size > self._max_bytes:
            raise UpstreamError(
                f"{self._name} sent too large an answer", kind="upstream_response_too_large"
            )
        return part

    async def ended(self) -> None:
        """Its meaning is whole; wait a moment for the end of its bytes."""
        self.is_whole = True
        if not self._response.content.at_eof():
            with contextlib.suppress(UpstreamError):
                await self._next(DRAIN_S)

    async def _next(self, patience_s: float) -> bytes:
        content = self._response.content
        try:
            if patience_s <= 0:  # however much is there already
                raise TimeoutError
            if content.at_eof():
                return b""
            if part := content.read_nowait():
                return part
            return await self._awaited(content, patience_s)
        except RAISED as exc:
            raise translated(self._name, exc) from exc

    async def _awaited(self, content: aiohttp.StreamReader, patience_s: float) -> bytes:
        until = time.monotonic() + patience_s
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_S)):
                    return await content.readany()
            if self._is_lost:
                raise not_http(self._name)
        raise TimeoutError

    @property
    def _is_lost(self) -> bool:
        """Whether aiohttp closed the connection over a malformed chunk, which no reader is told."""
        connection = self._response.connection
        return connection is not None and connection.transport is None


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    if isinstance(context.trace_request_ctx, _Wire):
        context.trace_request_ctx.reused = True


def _has_begun(exc: Exception) -> bool:
    """Whether part of an answer had come when the connection broke."""
    return isinstance(exc, aiohttp.ServerDisconnectedError) and not isinstance(exc.message, str)
