"""Failures of upstream calls, translated to `UpstreamError`; no upstream text is repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from app.errors import (
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.upstream.connection import InvalidAnswer

RAISED: Final = (InvalidAnswer, OSError)  # by a connection; a TimeoutError is an OSError

# The replica's own fault. Clients could provoke the other kinds with what they send.
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

# The candidate may have computed an answer, or a part of one.
_WORKED = frozenset(
    {
        "upstream_disconnected",
        "upstream_empty",
        "upstream_invalid_response",
        "upstream_response_too_large",
        "upstream_timeout",
    }
)


def may_be_charged(exc: UpstreamError) -> bool:
    """Whether a candidate may charge for a failed call: it did not answer with an error status."""
    return exc.kind in _WORKED and exc.status is None


def is_replica_fault(exc: UpstreamError, *, had_full_time: bool) -> bool:
    """Whether a failure counts against the replica.

    Args:
        exc: The failure.
        had_full_time: The call had the time that the configuration gives it. A timeout after the
            one millisecond that a client allowed proves nothing.
    """
    if isinstance(exc, UpstreamTimeout):
        return had_full_time and exc.status is None
    return exc.kind in _FAULTS


def is_unreachable(exc: UpstreamError) -> bool:
    """Whether no connection could be made."""
    return exc.kind in ("upstream_unavailable", "upstream_tls_error")


def to_upstream_error(name: str, exc: Exception) -> UpstreamError:
    """Translate an exception of a connection that was established."""
    match exc:
        case TimeoutError():
            return UpstreamTimeout(f"{name} did not answer in time")
        case InvalidAnswer():
            return UpstreamError(
                f"{name} does not speak HTTP as it should", kind="upstream_protocol_error"
            )
        case _:
            return UpstreamError(f"{name} broke off", kind="upstream_disconnected")


def check_response_head(name: str, status: int, headers: Mapping[str, str]) -> None:
    """Reject errors, redirects and encodings. Raises UpstreamError."""
    if status == 200:
        if headers.get("content-encoding", "identity") != "identity":
            raise UpstreamError(f"{name} compressed its answer", kind="upstream_encoding")
        return
    wait = retry_after_s(headers)
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
    """Parse Retry-After, a number of seconds or a date; None where it is missing or invalid."""
    value = headers.get("retry-after", "").strip()
    try:
        wait = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        wait = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, wait) if math.isfinite(wait) else None
