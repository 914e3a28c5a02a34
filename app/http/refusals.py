"""Refusals: errors that a connection answers itself, before there is a request, and their count."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

import prometheus_client
from fastapi.responses import Response

from app.http.exchange import STATUS_LINES
from app.settings import Limits
from app.wire import error_envelope

MOST_HEADERS: Final = 100


def refusal(status: int, message: str, code: str, path: str = "") -> Response:
    """An error in the envelope of a path; its connection is closed."""
    kind = "api_error" if status >= 500 else "invalid_request_error"
    body = error_envelope.error_body(message, kind, code=code)
    response = error_envelope.error_response(status, body, path=path, request_id=None)
    response.headers["connection"] = "close"
    return response


def head_is_too_large(limits: Limits, path: str) -> Response:
    """The request has too many headers, or too large ones."""
    most = f"{limits.header_bytes:,} bytes or {MOST_HEADERS} headers"
    return refusal(431, f"the request's headers are over {most}", "headers_too_large", path)


def too_slow(part: str, path: str) -> Response:
    """A part of the request has missed its deadline."""
    return refusal(408, f"the {part} of the request came too slowly", "request_timeout", path)


def too_many_connections(path: str) -> Response:
    """All slots are taken, or those of the client's address by connections without a valid key."""
    message = "too many connections: send a request with a valid key at once, or connect later"
    return refusal(503, message, "overloaded", path)


def as_bytes(response: Response) -> bytes:
    """The response as it is sent."""
    lines = [b"%s: %s\r\n" % header for header in response.raw_headers]
    return b"".join((STATUS_LINES[response.status_code], *lines, b"\r\n", bytes(response.body)))


log = logging.getLogger(__name__)

STATUSES: Final = (400, 408, 414, 431, 503)


class RefusedConnections:
    """Counts connections that are refused before there is a request, by status.

    The log has a periodic summary: with one line per refusal a client could fill it.

    Args:
        counter: The metric, with ``status`` as its label.
        every_s: Seconds between summaries; none is written while nothing is refused.
    """

    def __init__(self, counter: prometheus_client.Counter, *, every_s: float = 60.0) -> None:
        self._counter = {status: counter.labels(status) for status in STATUSES}
        self._every_s = every_s
        self._unlogged: Counter[int] = Counter()

    def count(self, status: int) -> None:
        """Count a refusal; the first one since the last summary schedules the next."""
        self._counter[status].inc()
        if not self._unlogged:
            asyncio.get_running_loop().call_later(self._every_s, self._log_summary)
        self._unlogged[status] += 1

    def _log_summary(self) -> None:
        log.warning("connections were refused", extra={"fields": {"refused": dict(self._unlogged)}})
        self._unlogged.clear()
