"""Times as text: as `datetime` writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.utc import UtcTimes

BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))


@given(times=st.lists(moments | st.just(datetime(2026, 1, 1, 23, 59, 59, 999_999, UTC))))
def test_times_are_written_as_datetime_writes_them(times: list[datetime]) -> None:
    """In any order, also within a second, with milliseconds and with microseconds."""
    utc = UtcTimes()
    for each in [*times, *(time.replace(microsecond=7) for time in times)]:
        nanoseconds = (each - BEGIN) // timedelta(microseconds=1) * 1_000
        assert utc.text(nanoseconds, digits=3) == each.isoformat(timespec="milliseconds")
        assert utc.text(nanoseconds + 999, digits=6) == each.isoformat(timespec="microseconds")
