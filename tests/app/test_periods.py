"""Periods of budgets: days and months follow each other without a gap, in every time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.budgets import period_at

ZONES = sorted(available_timezones() - {"localtime"})
MOMENTS = st.floats(0, 4e9)  # until the year 2096


@given(MOMENTS, st.sampled_from(["day", "month"]), st.sampled_from(ZONES))
def test_periods_follow_each_other(seconds: float, per: Literal["day", "month"], zone: str) -> None:
    """Until its end a period has the same name, and then another: also where clocks change.

    Midnights that a time zone skips, or has twice, are among the moments that the search finds.
    """
    period = period_at(seconds, per, zone)
    assert seconds < period.end <= seconds + (26 * 3600 if per == "day" else 32 * 86_400)
    assert period_at(period.end - 1e-3, per, zone) == period
    assert period.has(seconds)
    assert not period.has(period.end)
    assert not period.has(period.begin - 1)
    following = period_at(period.end, per, zone)
    assert following.id > period.id
    assert following.begin == period.end < following.end


@given(MOMENTS, st.sampled_from(ZONES))
def test_a_period_is_named_by_its_local_date(seconds: float, zone: str) -> None:
    """The first letters of the moment, as a clock on a wall there shows it."""
    local = datetime.fromtimestamp(seconds, ZoneInfo(zone)).isoformat()
    assert period_at(seconds, "day", zone).id == local[:10]
    assert period_at(seconds, "month", zone).id == local[:7]


@pytest.mark.parametrize(
    ("zone", "skipped"),
    [
        ("America/Santiago", "2022-09-11T00:00:00-04:00"),  # clocks go from 0:00 to 1:00
        ("Asia/Beirut", "2022-03-27T00:00:00+02:00"),
        ("Africa/Cairo", "2023-04-28T00:00:00+02:00"),
    ],
)
def test_a_day_without_midnight_begins_when_clocks_change(zone: str, skipped: str) -> None:
    """At the moment that would be midnight."""
    begins = datetime.fromisoformat(skipped)
    day = timedelta(days=1)
    before = period_at((begins - timedelta(hours=3)).timestamp(), "day", zone)
    assert before.end == begins.timestamp()
    assert period_at(before.end, "day", zone).id == begins.date().isoformat()
    assert period_at(before.end - 1, "day", zone).id == (begins - day).date().isoformat()


def test_ends_are_told_in_the_time_zone() -> None:
    """With its offset."""
    now = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    assert period_at(now, "month", "UTC").ends_at == "2027-01-01T00:00:00+00:00"
    berlin = period_at(now, "month", "Europe/Berlin")
    assert (berlin.id, berlin.ends_at) == ("2027-01", "2027-02-01T00:00:00+01:00")
