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
        begin: Its beginning, in seconds since 1970.
        end: Its end, the same way.
    """

    id: str
    ends_at: str
    begin: float
    end: float

    def has(self, seconds: float) -> bool:
        """Whether a moment is within it: a clock may go back, too."""
        return self.begin <= seconds < self.end


def period_at(seconds: float, per: Literal["day", "month"], time_zone: str) -> Period:
    """The period with a moment, given in seconds since 1970.

    A period ends where its successor's first midnight is, or would be: some time zones skip it.
    """
    zone = ZoneInfo(time_zone)
    today = datetime.fromtimestamp(seconds, zone).date()
    if per == "day":
        period_id, first, following = today.isoformat(), today, today + timedelta(days=1)
    else:
        period_id, first = f"{today:%Y-%m}", today.replace(day=1)
        following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    begin, end = (datetime.combine(day, time.min, zone) for day in (first, following))
    return Period(period_id, end.isoformat(), begin.timestamp(), end.timestamp())
