"""Periods of budgets: calendar days and months in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class Period:
    """A day or a month.

    Attributes:
        id: Such as ``2026-11-25`` or ``2026-11``.
        ends_at: When the next one begins: ISO 8601, in the time zone.
        end: The same in seconds since 1970.
    """

    id: str
    ends_at: str
    end: float


def period_at(seconds: float, per: Literal["day", "month"], time_zone: str) -> Period:
    """The period with a moment, given in seconds since 1970.

    A period ends where its successor's first midnight is, or would be: some time zones skip it.
    """
    zone = ZoneInfo(time_zone)
    today = datetime.fromtimestamp(seconds, zone).date()
    if per == "day":
        period_id, following = today.isoformat(), today + timedelta(days=1)
    else:
        period_id = f"{today:%Y-%m}"
        following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    end = datetime.combine(following, time.min, zone)
    return Period(period_id, end.isoformat(), end.timestamp())
