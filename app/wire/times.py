"""Timestamps of requests: ISO 8601, read as the store writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_time(value: str) -> str:
    """A time in UTC with microseconds, as decisions store it; without a zone it is UTC.

    Raises:
        ValueError: It is no time.
    """
    try:
        time = datetime.fromisoformat(value)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return time.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError) as exc:
        raise ValueError("must be a time in ISO 8601, such as 2026-01-31T12:00:00Z") from exc
