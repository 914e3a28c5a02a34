"""The budget of the shadow sample: rates are lowered beforehand, and sampling never stops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.monitor import Monitor
from app.monitoring.samples.draw import ShadowSample
from app.store import Store
from tests.kit.databases import before_statements
from tests.kit.monitored import MonitoredStore, calibration_record, decision_record, monitored

RECORD = calibration_record()
NOW = datetime.now(UTC)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    """An empty store of either kind."""
    with Store(database) as opened:
        yield opened


def decisions(count: int, *, hours: float, group: str | None = None) -> list[DecisionRecord]:
    """Decisions that were made so long ago."""
    at = (NOW - timedelta(hours=hours)).isoformat(timespec="microseconds")
    by = "request" if group is None else "application"
    return [
        decision_record(RECORD, [0.9, 0.5, 0.1], created_at=at, group=group, group_by=by)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("requests", "budget", "share"),
    [(0, 1, 1.0), (1_000, 2_000, 1.0), (1_001, 2_000, 0.5), (1_000, 500, 0.25), (10**9, 1, 2**-31)],
)
def test_the_rate_is_halved_until_the_expected_calls_fit(
    requests: int, budget: int, share: float
) -> None:
    """Two more calls for each sampled request, at a rate of 1; and it grows again."""
    sample = ShadowSample(1.0, {}, b"key")
    assert sample.fit_budget({"": requests}, calls=2, budget=budget) == share
    assert sample.rate_of(None) == share > 0.0
    assert sample.fit_budget({"": 1}, calls=2, budget=budget + 2) == 1.0


def test_the_rates_of_all_applications_are_lowered_alike() -> None:
    """By the sum of their expected calls; a decision carries the rate in force."""
    sample = ShadowSample(0.5, {"bot": 1.0, "off": 0.0}, b"key")
    requests = {"bot": 100, "agent": 100, "off": 10_000}
    assert sample.fit_budget(requests, calls=2, budget=150) == 0.5
    assert [sample.rate_of(name) for name in ("bot", "agent", "off", None)] == [0.5, 0.25, 0, 0.25]
    drawn = [sample.draw(f"{number}", sample.rate_of("bot")) for number in range(200)]
    assert set(drawn) == {True, False}
    assert not any(sample.draw(f"{number}", sample.rate_of("off")) for number in range(200))


def test_requests_are_those_of_the_day_or_of_a_busy_hour(store: Store) -> None:
    """Of all gateways of the store, by application."""
    made = [
        *decisions(50, hours=2, group="bot"),
        *decisions(50, hours=30, group="bot"),
        *decisions(10, hours=2, group="agent"),
        *decisions(3, hours=0.5, group="agent"),
    ]
    DecisionStore(store).add(made, [False] * len(made))
    count = DecisionStatistics(store).daily_requests
    assert count(NOW, by_application=True) == {"bot": 50, "agent": 72}
    assert count(NOW, by_application=False) == {"": 72}


@pytest.mark.parametrize("by_application", [True, False])
def test_the_budget_reads_an_index_by_time_alone(database: str, by_application: bool) -> None:
    """Of a million decisions those of a day, and no row of the table."""
    statements: list[str] = []
    with Store(database) as store:
        made = decisions(2_000, hours=48, group="bot")
        DecisionStore(store).add(made, [False] * len(made))
        with before_statements(database, statements.append):
            DecisionStatistics(store).daily_requests(NOW, by_application=by_application)
        assert len(statements) == 2
        with store.transaction() as session:
            is_sqlite = session.get_bind().dialect.name == "sqlite"
            if not is_sqlite:
                session.execute(text("SET LOCAL enable_seqscan = off"))  # 2,000 rows are few
            how = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
            value = NOW.isoformat(timespec="microseconds")
            for each in statements:
                statement = re.sub(r"\?|%\(\w+\)s", f"'{value}'", each)
                plan = str(session.execute(text(how + statement.replace(":", "\\:"))).all())
                assert "decisions_by_time" in plan, plan
                assert "SCAN" not in plan, plan


def test_a_gateway_begins_within_its_budget(store: Store) -> None:
    """A restart forgets nothing; the metric says what is in force."""
    made = decisions(100, hours=2)
    DecisionStore(store).add(made, [False] * len(made))

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        assert monitor.sampler.rate_of(None) == 0.25
        assert (await monitor.drift_report())["shadow"]["rate"] == 0.25
        metric = world.metrics.registry.get_sample_value("racer_shadow_rate_share")
        assert metric == 0.25

    monitored(store, story, shadow_rate=1.0, shadow_calls_per_day=50)
