"""A wall clock that was 400 days ahead for a while: afterwards everything goes on as before."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import utc
from app.access.api_keys import Caller
from app.monitoring.decisions.housekeeping import Housekeeping
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.store import DecisionStore
from app.routing import artifact_files
from app.same_answer.calibration import is_due
from app.settings.monitoring import MonitoringSettings
from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationStore
from app.store.tables import AnswerCalibrationRow
from app.store.traffic import WeekOfTraffic
from app.utc import STEADY_S, SteadyClock, ago, following, is_within, latest, now, past
from tests.kit.monitored import (
    calibration_record,
    decision_record,
    decision_records,
    draw_scores,
    monitoring,
    verdicts_on_all,
)
from tests.kit.stores import prune
from tests.kit.waiting import eventually

pytestmark = pytest.mark.anyio
AHEAD = timedelta(days=400)
ADMIN = Caller(name="admin", role="admin")
SPANS = st.timedeltas(timedelta(0), timedelta(days=2_000))
Step = Callable[[timedelta], None]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    """Let the wall clock be so far ahead; of zero: let it be right again."""
    present = utc.present

    def to(ahead: timedelta) -> None:
        monkeypatch.setattr(utc, "present", lambda: present() + ahead)

    return to


# The comparisons --------------------------------------------------------------------------------


@given(age=SPANS | SPANS.map(lambda each: -each), span=SPANS)
def test_a_time_is_within_a_span_in_one_direction_only(age: timedelta, span: timedelta) -> None:
    """Past and younger; what is further ahead than clocks differ is not young for ever."""
    second = timedelta(seconds=1)
    if abs(age - span) > second and abs(age + utc.SKEW) > second:
        assert is_within(ago(age), span) is (-utc.SKEW < age < span)
    assert past(ago(age)) <= latest()
    moment = ago(age)
    assert past(moment) == moment or age < second - utc.SKEW
    assert following(ago(age)) > ago(age + second)
    assert following(None) <= now()


@given(st.lists(st.sampled_from(["wait", "ahead", "back", "slew"]), max_size=20))
def test_a_clock_is_steady_an_hour_after_its_last_step(events: list[str]) -> None:
    """Whatever it did before; a slow adjustment is no step."""
    clock, wall, stepped_at = 0.0, 1e9, -STEADY_S
    steady = SteadyClock(lambda: wall, lambda: clock)
    for each in events:
        clock, wall = clock + 600.0, wall + 600.0
        if each in ("ahead", "back"):
            wall += AHEAD.total_seconds() * (1 if each == "ahead" else -1)
            stepped_at = clock
        wall += 0.5 * (each == "slew")
        assert steady.is_steady is (clock >= stepped_at + STEADY_S)


def test_what_is_due_by_a_time_in_the_future_is_due() -> None:
    """It is of a clock that was ahead, and would be due in 2028 only."""
    assert is_due(ago(timedelta(days=2)))
    assert not is_due(now())
    assert is_due(ago(-AHEAD))


# The store --------------------------------------------------------------------------------------


async def test_a_step_of_the_clock_deletes_no_decision(store: Store, step: Step) -> None:
    """Nor its verdicts and samples; the surplus of rows goes, and old ones once it is steady."""
    decisions, made = DecisionStore(store), decision_records(calibration_record(), np.ones((3, 3)))
    old = replace(made[0], created_at=ago(timedelta(days=40)))
    decisions.add([old, *made[1:]], [False] * 3)
    wall, clock, rounds = [1e9], [0.0], [0]

    class Counting(DecisionStore):
        def past_limits(self, keep_days: float | None, keep_rows: int) -> str | None:
            up_to = super().past_limits(keep_days, keep_rows)
            rounds[0] += up_to is None
            return up_to

        def prune(self, up_to: str) -> int:
            deleted = super().prune(up_to)
            rounds[0] += not deleted
            return deleted

    steady = SteadyClock(lambda: wall[0], lambda: clock[0])

    async def round_of_housekeeping() -> int:
        before = rounds[0]
        async with Housekeeping(
            settings=MonitoringSettings(keep_days=50.0, keep_rows=2),
            decision_store=Counting(store),
            flush_drift=lambda: None,
            settle_drift=lambda _: None,
            show_risk=lambda: None,
            fit_budget=lambda: None,
            clock=steady,
        ):
            await eventually(lambda: rounds[0] > before)
        return prune(decisions, None, 0)

    step(AHEAD)
    wall[0] += AHEAD.total_seconds()
    assert await round_of_housekeeping() == 2
    decisions.add([old, *made[1:]], [False] * 3)
    clock[0] += STEADY_S
    wall[0] += STEADY_S
    assert await round_of_housekeeping() == 0


async def test_alarms_bet_on_decisions_after_the_clock_is_right_again(
    store: Store, step: Step
) -> None:
    """No later one comes before a judged decision of the future: all bet, but for the first few."""
    rng = np.random.default_rng(3)
    async with monitoring(store, shadow_rate=0.5, false_alarm=1e-6) as (monitor, world):

        async def judge(count: int) -> int:
            for each in decision_records(world.record, draw_scores(rng, count), shadow_rate=0.5):
                monitor.record(each)
                await monitor.feedback.add(
                    each.decision_id, verdicts_on_all([True, True, True]), ADMIN
                )
            streams = (await monitor.drift_report())["alarms"]["streams"]
            return streams["risk"]["rounds"]

        assert await judge(20) == 20
        step(AHEAD)
        assert await judge(5) == 25
        step(timedelta(0))
        first = await judge(5)
        assert first >= 25
        assert await judge(30) == first + 30


async def test_a_calibration_of_the_future_is_not_young(store: Store) -> None:
    """Where certificates expire: its age is not known."""
    record = replace(calibration_record(), created_at=ago(-AHEAD))
    async with monitoring(store, record=record, expire_after_days=7.0) as (monitor, world):
        assert monitor.stale_reasons(world.record.id) == ("stale:age",)


def test_decisions_of_the_future_are_no_traffic_of_today(store: Store) -> None:
    """They would lower the rates of samples until then."""
    ahead = decision_record(calibration_record(), [0.5, 0.5, 0.5], created_at=ago(-AHEAD))
    DecisionStore(store).add([ahead], [False])
    statistics = DecisionStatistics(store)
    assert statistics.daily_requests(utc.present(), by_application=False) == {"": 0}
    assert statistics.past_week("") == WeekOfTraffic()


def test_what_is_activated_last_decides(store: Store, step: Step) -> None:
    """Also after an activation by a clock that was ahead."""
    answers = AnswerCalibrationStore(store)

    def add(name: str) -> None:
        with store.transaction() as session:
            session.add(
                AnswerCalibrationRow(
                    id=name,
                    created_at=now(),
                    activated_at=None,
                    answer_setup="setup",
                    application="",
                    document='{"evidence": {"ordinal": 0}}',
                    arrays=b"",
                )
            )
        answers.activate(name, "setup")

    for name, ahead in (("one", timedelta(0)), ("two", AHEAD), ("three", timedelta(0))):
        step(ahead)
        add(name)
        assert answers.active("setup")[""][0] == name
    answers.activate("one", "setup")
    assert answers.active("setup")[""][0] == "one"


def test_no_step_of_the_clock_keeps_stale_downloads(tmp_path: Path) -> None:
    """Of the future, nor of long ago; one that is under way stays."""
    present = datetime.now().timestamp()
    for name, age_s in (("young", 60.0), ("old", 1e6), ("future", -1e6)):
        folder = tmp_path / f"{artifact_files.SCRATCH}{name}"
        folder.mkdir()
        os.utime(folder, (present - age_s, present - age_s))
    artifact_files.remove_stale(tmp_path)
    left = [each.name.removeprefix(artifact_files.SCRATCH) for each in tmp_path.iterdir()]
    assert left == ["young"]
