"""Everything that can go wrong with a call, as UpstreamError; no upstream text is ever repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

from app.errors import (
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)

RAISED: Final = (aiohttp.ClientError, OSError)  # a TimeoutError is one
HEAD_BYTES: Final = 64 * 2**10

# The replica's own fault; with what a client sent, anybody could provoke the other kinds.
_FAULTS = frozenset(
    {
        "upstream_error",
        "upstream_disconnected",
        "upstream_invalid_response",
        "upstream_protocol_error",
        "upstream_tls_error",
        "upstream_unavailable",
    }
)


def is_fault(exc: UpstreamError, *, patient: bool) -> bool:
    """Whether a failure speaks against the replica.

    Args:
        exc: The failure.
        patient: The call had the time that the configuration gives it; a client that allows a
            millisecond proves nothing by a timeout.
    """
    if isinstance(exc, UpstreamTimeout):
        return patient and exc.status is None
    return exc.kind in _FAULTS


def is_unreachable(exc: UpstreamError) -> bool:
    """Whether there was no connection at all."""
    return exc.kind in ("upstream_unavailable", "upstream_tls_error")


def translated(name: str, exc: Exception) -> UpstreamError:
    """What the client library raised, as an UpstreamError."""
    match exc:
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch():
            return UpstreamError(f"{name} has no valid TLS", kind="upstream_tls_error")
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return UpstreamUnavailable(f"{name} cannot be reached")
        case TimeoutError():
            return UpstreamTimeout(f"{name} did not answer in time")
        case aiohttp.ClientResponseError():
            return not_http(name)
        case _:
            return UpstreamError(f"{name} broke off", kind="upstream_disconnected")


def check_head(name: str, response: aiohttp.ClientResponse) -> None:
    """Refuse errors, redirects, encodings and floods of headers. Raises UpstreamError."""
    status = response.status
    if sum(len(key) + len(value) for key, value in response.raw_headers) > HEAD_BYTES:
        raise not_http(name)
    if status == 200:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamError(f"{name} compressed its answer", kind="upstream_encoding")
        return
    wait = retry_after_s(response.headers)
    if status == 429:
        raise UpstreamRateLimited(f"{name} is rate limited", status=status, retry_after_s=wait)
    if status == 408:
        raise UpstreamTimeout(f"{name} gave the call up", status=status, retry_after_s=wait)
    if 300 <= status < 400:
        raise UpstreamError(f"{name} answered with a redirect", kind="upstream_redirect")
    if status in (401, 403):
        raise UpstreamError(f"{name} refused the gateway's key", kind="upstream_auth_error")
    if 400 <= status < 500:
        raise UpstreamRejected(f"{name} rejected the request ({status})", status=status)
    if status in (503, 529):
        raise UpstreamUnavailable(
            f"{name} is overloaded", kind="upstream_error", status=status, retry_after_s=wait
        )
    raise UpstreamError(f"{name} failed with status {status}", status=status, retry_after_s=wait)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks for, as a number or a date; None if it asks for nothing clear."""
    said = headers.get("retry-after", "").strip()
    try:
        wait = float(said)
    except ValueError:
        try:
            date = parsedate_to_datetime(said)
        except (ValueError, OverflowError):
            return None
        wait = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, wait) if math.isfinite(wait) else None


def not_http(name: str) -> UpstreamError:
    """The server broke the protocol."""
    return UpstreamError(f"{name} does not speak HTTP as it should", kind="upstream_protocol_error")
