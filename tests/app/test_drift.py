"""Drift monitoring: the monitored streams, and when each raises its alarm.

Simulations have fixed seeds. Where nothing changes, ``false_alarm`` is one in a million, so that a
red test means a fault; a change must be seen all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.access.api_keys import Caller
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.drift.risk import detection
from app.monitoring.drift.statistics import (
    CRITICAL_SCORE,
    JUDGED,
    STREAMS,
    UNLABELLED,
    judged_query,
    new_drift_state,
    tie_draws,
)
from app.monitoring.monitor import Monitor
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.service import RoutingService
from app.settings.monitoring import MonitoringSettings
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from app.store.tables import WatchRow
from racer_core.calibration.augmentation import augment_truth
from racer_core.calibration.martingales import UpwardMartingale
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.types import BINARY_TARGETS, FloatArray, RiskTarget, RowsKind, Score
from tests.kit.gateway import ADMIN_KEY, ONE, TWO, UNANSWERABLE, Serve
from tests.kit.monitored import (
    POOL,
    MonitoredStore,
    calibration_record,
    decision_record,
    decision_records,
    draw_scores,
    exported_rows,
    monitoring,
    verdicts_on_all,
)
from tests.kit.waiting import eventually

pytestmark = pytest.mark.anyio
ADMIN = Caller(name="admin", role="admin")
RARE = 1e-6


async def feed(monitor: Monitor, made: list[DecisionRecord]) -> None:
    """Let queries come, and wait until they were seen."""
    for note in made:
        monitor.record(note)
    await monitor.feedback.decision(made[-1].decision_id, ADMIN)
    await monitor.flush_drift()


def stale_now(monitor: Monitor, world: MonitoredStore) -> tuple[str, ...]:
    """Why certificates of the active calibration are void."""
    return monitor.stale_reasons(world.active.record().id)


# Queries, without labels ----------------------------------------------------------------------


@pytest.mark.parametrize("score", ["gap", "prob"])
async def test_two_thousand_queries_like_the_rows_raise_no_alarm(store: Store, score: str) -> None:
    """False alarm one in a million, all streams together, at every moment of the run."""
    rng = np.random.default_rng(5)
    async with monitoring(store, record=calibration_record(score=score), false_alarm=RARE) as (
        monitor,
        world,
    ):
        for _ in range(40):
            await feed(monitor, decision_records(world.record, draw_scores(rng, 50)))
            assert stale_now(monitor, world) == ()
        report = await monitor.drift_report()
        rounds = {name: each["rounds"] for name, each in report["alarms"]["streams"].items()}
        assert {name: rounds.pop(name) for name in JUDGED} == dict.fromkeys(JUDGED, 0)
        assert rounds == dict.fromkeys(UNLABELLED, 2_000)


def alike(scores: FloatArray) -> FloatArray:
    """Scores that do not tell candidates apart, at the same mean."""
    return np.repeat(scores.mean(axis=1, keepdims=True), 3, axis=1).round(6)


@pytest.mark.parametrize(
    ("change", "moved", "seen_by"),
    [
        (lambda scores: scores * 0.8, 1.0, {"largest_score", "mean_score", "embedding"}),
        (alike, 1.0, {"set_size"}),
        (lambda scores: scores, 0.8, {"embedding"}),
    ],
    ids=["harder", "alike", "new topics"],
)
async def test_queries_that_change_raise_an_alarm(
    store: Store, change: Callable[[FloatArray], FloatArray], moved: float, seen_by: set[str]
) -> None:
    """After a thousand like the rows, by a stream that the change concerns."""
    rng = np.random.default_rng(6)
    async with monitoring(store, false_alarm=RARE) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 1_000)))
        assert stale_now(monitor, world) == ()
        seen = {f"stale:{name}" for name in seen_by}
        for _ in range(16):
            made = decision_records(world.record, change(draw_scores(rng, 50)))
            await feed(
                monitor,
                [
                    replace(each, projection=tuple(moved * x for x in each.scores or ()))
                    for each in made
                ],
            )
            if seen & {*stale_now(monitor, world)}:
                break
        assert seen & {*stale_now(monitor, world)}
        if "set_size" not in seen_by:
            assert {*stale_now(monitor, world)} <= seen
        raised = (await monitor.drift_report())["alarms"]["raised"]
        assert [f"stale:{name}" for name in raised] == list(stale_now(monitor, world))


def without_embedding() -> CalibrationRecord:
    """Rows that came with their scores."""
    record = calibration_record()
    calibration = replace(record.calibration, projections=None)
    return replace(record, populations=(replace(record.populations[0], calibration=calibration),))


@pytest.mark.parametrize(
    ("record", "streams", "bound"),
    [
        (without_embedding(), set(STREAMS) - {"embedding"}, "0."),
        (calibration_record(rows=5), set(UNLABELLED), "NaN"),
    ],
    ids=["no embedding", "no finite threshold"],
)
async def test_streams_are_those_that_the_rows_allow(
    store: Store, record: CalibrationRecord, streams: set[str], bound: str
) -> None:
    """They share the false alarm; where the whole pool is called no risk is bounded."""
    async with monitoring(store, record=record) as (monitor, world):
        made = decision_records(world.record, draw_scores(np.random.default_rng(1), 9))
        await feed(monitor, made)
        found = (await monitor.drift_report())["alarms"]["streams"]
        assert set(found) == streams
        assert sum(each["level"] for each in found.values()) == pytest.approx(0.01)
        text = world.metrics.render().decode()
        assert f'racer_risk_bound{{application=""}} {bound}' in text


async def test_request_options_raise_no_drift_alarm(store: Store) -> None:
    """Another alpha, a smaller pool or a pinned set tell nothing of queries: false alarm 1e-6."""
    rng = np.random.default_rng(8)
    choices: list[dict[str, Any]] = [
        {"alpha": 0.5},
        {"alpha": 0.01},
        {"pool": ("adder",), "selected": ("adder",)},
        {"chosen_by": ChosenBy.OVERRIDDEN, "selected": ("poet",)},
    ]
    async with monitoring(store, false_alarm=RARE) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 500)))
        for choice in choices:
            await feed(monitor, decision_records(world.record, draw_scores(rng, 300), **choice))
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"]["streams"]["set_size"]["rounds"] == 1_700


async def test_uncertified_queries_enter_no_drift_stream(store: Store) -> None:
    """Their certificates are void as it is, and they must not void the others'."""
    reasons = (
        "multi_turn_uncalibrated",
        "later_turn",
        "unlabelled_request_kind",
        "query_too_long",
        "group_uncalibrated",
        "grouping_changed",
        "router_changed:option.model",
    )
    changes: list[dict[str, Any]] = [{"scores": None}, {"calibration_id": "another"}]
    changes += [{"reasons": (each,)} for each in reasons]
    rng = np.random.default_rng(9)
    async with monitoring(store) as (monitor, world):
        for each in changes:
            made = decision_records(world.record, draw_scores(rng, 20, harder=0.1))
            await feed(monitor, [replace(note, **each) for note in made])
            assert stale_now(monitor, world) == ()
            streams = (await monitor.drift_report())["alarms"]["streams"]
            assert streams["mean_score"]["rounds"] == 0, each


def test_a_repeated_query_raises_no_drift_alarm(serve: Serve) -> None:
    """A health check or a demo, with or without an answer, says one thing once."""
    gateway = serve(watching={"false_alarm": 0.01})
    for _ in range(999):
        gateway.post("/route", json={"query": UNANSWERABLE})
    last = gateway.chat(UNANSWERABLE)["id"]
    assert gateway.get(f"/decisions/{last}").json()["repeated"]
    alarms = gateway.get("/drift", ADMIN_KEY).json()["alarms"]
    assert alarms["raised"] == []
    rounds = {name: each["rounds"] for name, each in alarms["streams"].items()}
    assert rounds == dict.fromkeys(UNLABELLED, 1) | dict.fromkeys(JUDGED, 0)
    assert gateway.route(UNANSWERABLE)["certificate"]["holds"]


async def test_a_repeat_is_a_query_or_row_of_its_calibration_and_population(store: Store) -> None:
    """Under a new calibration others are new; a later turn "yes" is not the question "yes"."""
    row, query = calibration_record().calibration.fingerprints[0], b"a query"
    async with monitoring(store, false_alarm=None) as (monitor, world):
        assert monitor.is_repeat(row, ())
        assert [monitor.is_repeat(query, ()) for _ in range(2)] == [False, True]
        later = [(reason,) for reason in ("multi_turn_uncalibrated", "later_turn")]
        for reasons in (*later, (), *later):
            assert not monitor.is_repeat(b"yes", reasons)
        await world.active.swap(calibration_record(seed=2))
        assert not monitor.is_repeat(query, ())
        assert not monitor.is_repeat(row, ())


async def test_nothing_is_watched_when_the_operator_says_so(store: Store) -> None:
    """`watching.false_alarm: null`."""
    rng = np.random.default_rng(10)
    async with monitoring(store, false_alarm=None) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 500, harder=0.1)))
        await monitor.reset_drift()
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"] is None


# Losses, judged -------------------------------------------------------------------------------


async def judge(
    monitor: Monitor,
    world: MonitoredStore,
    rng: np.random.Generator,
    count: int,
    chances: Callable[[FloatArray], FloatArray] = lambda scores: scores,
) -> list[float]:
    """Shadow decisions judged in full; return their losses, computed here.

    ``chances`` tells from the scores how likely each candidate is right.
    """
    options = world.record.calibration.options
    scores = draw_scores(rng, count)
    labels = rng.random(scores.shape) < chances(scores)
    made = decision_records(world.record, scores, shadow_rate=0.5)
    for note in made:
        monitor.record(note)
    losses: list[float] = []
    for note, right in zip(made, labels, strict=True):
        await monitor.feedback.add(note.decision_id, verdicts_on_all(right), ADMIN)
        inside = [name in note.selected for name in POOL]
        if options.risk_target is RiskTarget.PAPER:
            inside, right = [*inside, note.null_selected], augment_truth(right[None, :])[0]
        if right.any():
            losses.append(float(not np.any(right & np.array(inside))))
    return losses


@pytest.mark.parametrize("target", BINARY_TARGETS)
async def test_the_shadow_sample_estimates_the_risk(store: Store, target: RiskTarget) -> None:
    """The mean loss of those that count, with an interval that holds 0.1 here; no alarm (1e-6)."""
    rng = np.random.default_rng(11)
    options = {"shadow_rate": 0.5, "false_alarm": RARE}
    record = calibration_record(risk_target=target)
    async with monitoring(store, record=record, **options) as (monitor, world):
        unknown = series(world, "racer_realised_risk", "bound")
        assert (unknown["lower"], unknown["upper"]) == (0.0, 1.0)
        assert math.isnan(unknown["mean"])
        losses = await judge(monitor, world, rng, 150)
        report = await monitor.drift_report()
        shadow = report["shadow"]
        assert shadow["sampled"] == shadow["judged"] == 150
        assert shadow["counted"] == len(losses)
        assert shadow["risk"] == pytest.approx(np.mean(losses))
        assert shadow["lower"] < 0.1 < shadow["upper"]
        assert report["alarms"]["streams"]["risk"]["rounds"] == 150, (
            "one round each, counted or not"
        )
        assert report["alarms"]["streams"]["risk"]["rho"] == report["risk_q95"]
        seen = report["detection"]
        assert seen["judged_a_week"] == len(losses)
        assert [each["risk"] for each in seen["risks"]] == pytest.approx([0.15, 0.2])
        assert stale_now(monitor, world) == ()
    async with await world.monitor(**options):
        await eventually(lambda: series(world, "racer_realised_risk", "bound")["upper"] < 1.0)
    assert series(world, "racer_realised_risk", "bound") == {
        "lower": shadow["lower"],
        "mean": shadow["risk"],
        "upper": shadow["upper"],
    }
    text = world.metrics.render().decode()
    assert f'racer_risk_bound{{application=""}} {report["risk_q95"]}\n' in text


def test_ties_of_critical_scores_go_by_the_query() -> None:
    """Most rows tie; the same rows and queries are the same evidence, whatever a process draws."""
    record = calibration_record(score=Score.GAP)
    calibration = record.calibration
    assert (calibration.row_critical_scores == 0.0).mean() > 0.5
    scores = draw_scores(np.random.default_rng(3), 200)
    decisions = [decision_record(record, each.tolist()) for each in scores]
    capitals = set()
    for seed in range(5):
        state = new_drift_state(calibration, 0.01, np.random.default_rng(seed))
        critical = state.streams[CRITICAL_SCORE]
        assert isinstance(critical, UpwardMartingale)
        for decision, own in zip(decisions, scores, strict=True):
            correct = dict(zip(POOL, (own == own.max()).tolist(), strict=True))
            judged = judged_query(calibration, decision, correct)
            assert judged is not None
            tie = float(tie_draws([bytes.fromhex(decision.fingerprint)])[0])
            critical.update(judged.critical_score, tie, 0.0)
        capitals.add(critical.e_value)
    assert len(capitals) == 1


def test_how_late_an_alarm_is_is_said() -> None:
    """At alpha 0.2 with 199 rows; more judged requests see it sooner, a risk near alpha never.

    The number of judged requests is that of the test itself (``alarm_within``).
    """
    test = RiskEProcess(0.248, level=0.0025)
    seen = detection(test, 0.2, judged_a_week=70, counted_a_week=700)
    near, twice = seen["risks"]
    assert (near["risk"], twice["risk"]) == pytest.approx((0.3, 0.4))
    for each in (near, twice):
        assert each["judged"] == test.alarm_within(each["risk"], seen["chance"])
        assert each["days"] == pytest.approx(each["judged"] / 10.0)
    assert near["rate_for_a_week"] is None, "not even by judging all"
    assert twice["rate_for_a_week"] == twice["judged"] / 700.0
    assert detection(test, 0.2, judged_a_week=0, counted_a_week=0)["risks"][1]["days"] is None
    barely = RiskEProcess(0.3999, level=0.0025)
    (_, twice) = detection(barely, 0.2, judged_a_week=70, counted_a_week=700)["risks"]
    assert twice["judged"] is None, "it would take more than 100,000, and minutes to count them"
    half = detection(test, 0.2, judged_a_week=70, counted_a_week=700, labelled=0.5)["risks"]
    assert [each["judged"] for each in half] == [None, None], "they look like risks of 0.15 and 0.2"
    most = detection(test, 0.2, judged_a_week=70, counted_a_week=700, labelled=0.9)["risks"][1]
    assert most["judged"] == math.ceil(0.9 * (test.alarm_within(0.36, seen["chance"]) or 0))
    assert most["rate_for_a_week"] == seen["risks"][1]["rate_for_a_week"], "all would be labelled"
    blind = detection(RiskEProcess(0.45, level=0.0025), 0.2, judged_a_week=1, counted_a_week=1)
    assert [each["judged"] for each in blind["risks"]] == [None, None]


async def test_certificates_expire_where_the_operator_says_so(store: Store) -> None:
    """A calibration of eight days voids after seven and not after nine; a reload changes it."""
    old = (datetime.now(UTC) - timedelta(days=8)).isoformat(timespec="microseconds")
    record = replace(calibration_record(), created_at=old)
    async with monitoring(store, record=record, expire_after_days=7.0) as (monitor, world):
        assert stale_now(monitor, world) == ("stale:age",)
        monitor.reconfigure(MonitoringSettings(expire_after_days=9.0), {})
        assert stale_now(monitor, world) == ()
        monitor.reconfigure(MonitoringSettings(), {})
        assert stale_now(monitor, world) == ()


@pytest.mark.parametrize(
    ("chances", "raised"),
    [
        # Those candidates are right that used to be wrong.
        (lambda scores: 1.0 - scores, {"stale:critical_score", "stale:risk"}),
        # One judged query in four has its scores reversed.
        (lambda scores: 0.25 + 0.5 * scores, {"stale:critical_score"}),
    ],
    ids=["worse", "unsure"],
)
async def test_candidates_that_got_worse_raise_an_alarm(
    store: Store, chances: Callable[[FloatArray], FloatArray], raised: set[str]
) -> None:
    """The queries are as before."""
    rng = np.random.default_rng(12)
    async with monitoring(store, shadow_rate=0.5) as (monitor, world):
        await judge(monitor, world, rng, 50)
        assert stale_now(monitor, world) == ()
        for _ in range(40):
            await judge(monitor, world, rng, 25, chances)
            if raised <= {*stale_now(monitor, world)}:
                break
        assert raised <= {*stale_now(monitor, world)} <= {"stale:critical_score", "stale:risk"}
        streams = (await monitor.drift_report())["alarms"]["streams"]
        assert streams["critical_score"]["rounds"] == streams["risk"]["rounds"]


async def test_a_judged_decision_counts_once_and_when_it_is_accepted(store: Store) -> None:
    """However often its verdicts are sent; a data key alone can neither raise nor hush an alarm."""
    async with monitoring(store, shadow_rate=0.5) as (monitor, world):
        for counted, caller in enumerate((Caller(name="data"), ADMIN)):
            note = decision_record(world.record, [0.9, 0.5, 0.1], shadow_rate=0.5)
            monitor.record(note)
            correct = verdicts_on_all([False, False, True])
            for _ in range(3):
                await monitor.feedback.add(note.decision_id, correct, caller)
                report = await monitor.drift_report()
                assert report["alarms"]["streams"]["risk"]["rounds"] == counted + (caller is ADMIN)
                assert report["feedback"]["identified"] == counted + (caller is ADMIN)
            await monitor.feedback.accept([note.decision_id])
            report = await monitor.drift_report()
            assert report["alarms"]["streams"]["risk"]["rounds"] == counted + 1
            assert report["shadow"]["counted"] == report["feedback"]["identified"] == counted + 1


async def test_only_decisions_about_the_watched_risk_are_bet_on(store: Store) -> None:
    """The loss is that of the calibration's own set, so another alpha does no harm."""
    bets: list[dict[str, Any]] = [{}, {"alpha": 0.5}]
    others: list[dict[str, Any]] = [
        {"pool": POOL[:2], "selected": ("adder",)},
        {"calibration_id": "another"},
        *({"reasons": (each,)} for each in ("multi_turn_uncalibrated", "later_turn")),
        {"reasons": ("conditions_differ",)},
    ]
    async with monitoring(store, shadow_rate=0.5) as (monitor, world):
        for count, changes in enumerate([*bets, *others], 1):
            note = decision_record(world.record, [0.9, 0.5, 0.1], shadow_rate=0.5)
            note = replace(note, **changes)
            monitor.record(note)
            await monitor.feedback.add(note.decision_id, dict.fromkeys(note.pool, True), ADMIN)
            assert (await monitor.feedback.decision(note.decision_id, ADMIN)).judged
            streams = (await monitor.drift_report())["alarms"]["streams"]
            assert streams["risk"]["rounds"] == min(count, len(bets)), changes


async def test_answers_under_other_conditions_give_no_loss(store: Store) -> None:
    """Cut at five tokens all candidates are wrong: no loss, no row and no feedback counts it."""
    rng = np.random.default_rng(16)
    async with monitoring(store, shadow_rate=0.5, false_alarm=RARE) as (monitor, world):
        cut = decision_records(
            world.record, draw_scores(rng, 60), shadow_rate=0.5, reasons=("conditions_differ",)
        )
        usual = decision_record(world.record, [0.9, 0.5, 0.1], shadow_rate=0.5)
        for note in [*cut, usual]:
            monitor.record(note)
            right = [note is usual, note is usual, note is not usual]
            await monitor.feedback.add(note.decision_id, verdicts_on_all(right), ADMIN)
        report = await monitor.drift_report()
        assert stale_now(monitor, world) == ()
        assert (report["shadow"]["judged"], report["shadow"]["counted"]) == (61, 1)
        assert report["feedback"]["identified"] == 1
        assert report["alarms"]["streams"]["largest_score"]["rounds"] == 61
        rows = await exported_rows(monitor)
        assert [row["decision_id"] for row in rows] == [usual.decision_id]


@pytest.mark.parametrize("kind", [RowsKind.QUESTIONS, RowsKind.TRAFFIC])
async def test_a_repeat_counts_where_the_rows_have_repeats(store: Store, kind: RowsKind) -> None:
    """It is drawn, judged and a row in any case; what it tells of the risk depends on the rows."""
    record = replace(calibration_record(), evidence={"sample": {"kind": kind}})
    async with monitoring(store, record=record, shadow_rate=0.5) as (monitor, world):
        for repeated in (False, True):
            options: dict[str, Any] = {"shadow_rate": 0.5, "repeated": repeated}
            note = decision_record(world.record, [0.9, 0.5, 0.1], **options)
            monitor.record(note)
            await monitor.feedback.add(note.decision_id, verdicts_on_all([True] * 3), ADMIN)
        shadow = (await monitor.drift_report())["shadow"]
        assert (shadow["judged"], shadow["counted"]) == (2, 1 + (kind is RowsKind.TRAFFIC))


# What feedback alone says ---------------------------------------------------------------------


async def test_feedback_alone_gives_a_range(store: Store) -> None:
    """Of ten decisions two are hits, one is a miss, one set is wrong; six have no feedback."""
    async with monitoring(store) as (monitor, world):
        made = [decision_record(world.record, [0.9, 0.2, 0.1]) for _ in range(10)]
        assert {note.selected for note in made} == {("adder",)}
        verdicts: list[dict[str, bool]] = [
            {"adder": True},
            {"adder": True, "poet": False},
            {"adder": False, "poet": True},
            {"adder": False},
        ]
        await feed(monitor, made)
        for note, correct in zip(made, verdicts, strict=False):
            await monitor.feedback.add(note.decision_id, correct, ADMIN)
        report = await monitor.drift_report()
        # Least: the wrong one counts for nothing, the six are hits: 1 of 9.
        # Most: the wrong one and the six are misses: 8 of 10.
        assert report["feedback"] == {"lower": 1 / 9, "upper": 8 / 10, "identified": 3}
        assert report["decisions"]["of_these_with_feedback"] == 4


async def test_the_range_is_about_the_calibrations_own_alpha_and_pool(store: Store) -> None:
    """Other decisions are counted as kept, and not in the range."""
    others: list[dict[str, Any]] = [
        {"alpha": 0.5},
        {"pool": POOL[:2]},
        {"chosen_by": ChosenBy.OVERRIDDEN},
        {"chosen_by": ChosenBy.EVERYONE},
        {"reasons": ("unlabelled_request_kind",)},
        {"score": "prob"},
    ]
    async with monitoring(store) as (monitor, world):
        usual = [decision_record(world.record, [0.9, 0.2, 0.1]) for _ in range(7)]
        made = [replace(note, **each) for note, each in zip(usual, [{}, *others], strict=True)]
        await feed(monitor, made)
        for note in made:
            await monitor.feedback.add(note.decision_id, {"adder": True}, ADMIN)
        report = await monitor.drift_report()
        decisions = report["decisions"]
        assert decisions["kept"] == 7
        assert decisions["at_own_alpha_and_pool"] == decisions["of_these_with_feedback"] == 1
        assert report["feedback"]["identified"] == 1


# Restarts, swaps, resets ----------------------------------------------------------------------


async def test_a_restart_loses_no_evidence_and_a_reset_begins_again(store: Store) -> None:
    """Capital, rounds and an alarm go on; after a reset the next change is seen again."""
    rng = np.random.default_rng(15)

    def harder(world: MonitoredStore) -> list[DecisionRecord]:
        return decision_records(world.record, draw_scores(rng, 200, harder=0.5))

    async with monitoring(store) as (monitor, world):
        await feed(monitor, harder(world))
        alarms = (await monitor.drift_report())["alarms"]
        raised = stale_now(monitor, world)
        assert raised == tuple(f"stale:{name}" for name in alarms["raised"]) != ()
    async with await world.monitor() as monitor:
        assert stale_now(monitor, world) == raised
        assert (await monitor.drift_report())["alarms"] == alarms
        await monitor.reset_drift()
        assert stale_now(monitor, world) == ()
        begun = (await monitor.drift_report())["alarms"]
        assert begun["since"] > alarms["since"]
        assert begun["streams"]["mean_score"]["rounds"] == 0
    async with await world.monitor() as monitor:
        assert stale_now(monitor, world) == ()
        await feed(monitor, harder(world))
        assert stale_now(monitor, world)


async def test_a_new_calibration_begins_a_new_watch_and_the_old_one_is_kept(store: Store) -> None:
    """Swapping to fresh rows ends the alarm; rolling back brings it back at once."""
    rng = np.random.default_rng(16)
    fresh = calibration_record(seed=2)
    async with monitoring(store) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
        raised = stale_now(monitor, world)
        assert raised
        world.store.add(fresh, activate=True)

        def meanwhile(new: CalibrationRecord) -> None:
            """The new calibration is followed; the old one still decides."""
            assert new is not fresh or stale_now(monitor, world) == raised

        await world.active.add_follower(meanwhile)
        await world.active.swap(fresh)
        assert stale_now(monitor, world) == ()
        await feed(monitor, decision_records(fresh, draw_scores(rng, 10)))
        report = await monitor.drift_report()
        assert report["calibration_id"] == fresh.id
        assert report["alarms"]["streams"]["mean_score"]["rounds"] == 10
        assert report["decisions"]["kept"] == 10
        await world.active.swap(world.record)
        assert stale_now(monitor, world) == raised


async def test_an_alarm_belongs_to_the_record_that_decided(store: Store) -> None:
    """However many were activated while a request was decided by the one that alarmed."""
    rng = np.random.default_rng(26)
    async with monitoring(store) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
        raised = stale_now(monitor, world)
        assert raised
        for seed in range(8):
            fresh = calibration_record(seed=50 + seed, rows=100)
            world.store.add(fresh, activate=True)
            await world.active.swap(fresh)
            assert stale_now(monitor, world) == ()
            assert monitor.stale_reasons(world.record.id) == raised


@pytest.mark.parametrize("damage", ["{}", '{"delta": 0.01, "streams": {"risk": 7}}'])
async def test_a_damaged_watch_begins_again(store: Store, damage: str) -> None:
    """The gateway starts, and watches."""
    rng = np.random.default_rng(18)
    async with monitoring(store) as (monitor, world):
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
    with world.store.transaction() as session:
        row = session.get(WatchRow, (world.record.id, ""))
        assert row is not None
        row.state = damage
    async with await world.monitor() as monitor:
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"]["streams"]["risk"]["rounds"] == 0


# How it is told -------------------------------------------------------------------------------


async def test_an_alarm_is_one_log_line_and_metrics(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line per stream; evidence is how far a bet came, and 1 where it alarms."""
    rng = np.random.default_rng(20)
    async with monitoring(store) as (monitor, world):
        seen = [series(world, "racer_drift_evidence", "stream")]
        for count, harder in ((60, 0.8), *[(100, 0.5)] * 5):
            await feed(
                monitor, decision_records(world.record, draw_scores(rng, count, harder=harder))
            )
            seen.append(series(world, "racer_drift_evidence", "stream"))
        alarms = (await monitor.drift_report())["alarms"]
        lines = [line for line in caplog.messages if "drift alarm" in line]
        assert sorted(lines) == sorted(
            f"drift alarm: {name}, calibration {world.record.id}" for name in alarms["raised"]
        )
        text = world.metrics.render().decode()
        for name, each in alarms["streams"].items():
            alarm = float(name in alarms["raised"])
            assert f'racer_drift_alarm{{application="",stream="{name}"}} {alarm}' in text
            way = each["largest_log10_capital"] / math.log10(each["alarm_at"])
            assert seen[-1][name] == pytest.approx(way)
            assert (seen[-1][name] >= 1.0) == each["alarmed"] == (name in alarms["raised"])
        assert set(seen[0].values()) == {0.0}, "none is there before the first query"
        assert 0.0 < seen[1]["largest_score"] < seen[-1]["largest_score"]
        assert seen[-1]["largest_score"] >= 1.0 > seen[-1]["risk"]
        await monitor.reset_drift()
        assert set(series(world, "racer_drift_evidence", "stream").values()) == {0.0}


def series(world: MonitoredStore, name: str, label: str) -> dict[str, float]:
    """The values of a metric, by its one label."""
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(world.metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_an_alarm_voids_certificates_and_a_reset_mends_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP: also that of a decision during which another calibration was activated."""
    gateway = serve(watching={"false_alarm": 0.01})
    assert gateway.route(ONE)["certificate"]["holds"]
    decided = [gateway.route(f"{UNANSWERABLE}{number}")["decision_id"] for number in range(120)]
    gateway.get(f"/decisions/{decided[-1]}")  # they were seen, and what asks for them adds them
    raised = gateway.get("/drift", ADMIN_KEY).json()["alarms"]["raised"]
    assert raised
    stale = {f"stale:{name}" for name in raised}
    certificate = gateway.route(ONE)["certificate"]
    assert not certificate["holds"]
    assert stale <= set(certificate["reasons"])
    header = gateway.ask(TWO).headers["x-racer-guarantee"]
    assert header.startswith("void; ")
    assert "stale:" in header
    decide = RoutingService.route

    async def swapped_meanwhile(self: Any, *request: Any) -> CertifiedDecision:
        routed = await decide(self, *request)
        await self._active.swap(replace(routed.record, id="cal-fresh"))
        return routed

    with monkeypatch.context() as patched:
        patched.setattr(RoutingService, "route", swapped_meanwhile)
        assert stale <= set(gateway.route(ONE)["certificate"]["reasons"])
    assert gateway.route(ONE)["certificate"]["holds"], "the fresh one has no alarm"
    assert gateway.activate(certificate["calibration_id"]).status_code == 200
    assert gateway.post("/drift/reset", ADMIN_KEY).json()["alarms"]["raised"] == []
    assert gateway.route(ONE)["certificate"]["holds"]


# The draw of the shadow sample ----------------------------------------------------------------


async def test_the_sample_is_drawn_at_its_rate_by_the_decision(store: Store) -> None:
    """Replicas agree on every decision; about a fifth of 5,000, false alarm 1e-6."""
    async with monitoring(store, shadow_rate=0.2) as (monitor, world):
        other = await world.monitor(seed=99, shadow_rate=0.2)
        ids = [f"chatcmpl-{number}" for number in range(5_000)]
        drawn = [monitor.sampler.draw(each, monitor.sampler.rate_of(None)) for each in ids]
        assert drawn == [other.sampler.draw(each, other.sampler.rate_of(None)) for each in ids]
        count = drawn.count(True)
        assert 1_000 - 140 < count < 1_000 + 140  # 4.9 standard deviations
