"""Drift monitoring: the monitored streams, and when each raises its alarm.

Simulations have fixed seeds. Where nothing changes, ``false_alarm`` is one in a million, so that a
red test means a fault; a change must be seen all the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.access.api_keys import Caller
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.drift.statistics import JUDGED, STREAMS, UNLABELLED
from app.monitoring.monitor import Monitor
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.service import RoutingService
from app.settings.monitoring import MonitoringSettings
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from app.store.tables import WatchRow
from racer_core.calibration.augmentation import augment_truth
from racer_core.types import BINARY_TARGETS, FloatArray, RiskTarget, RowsKind
from tests.kit.gateway import ADMIN_KEY, ONE, TWO, UNANSWERABLE, Gateway, Serve
from tests.kit.monitored import (
    POOL,
    MonitoredStore,
    calibration_record,
    decision_record,
    decision_records,
    draw_scores,
    exported_rows,
    monitored,
    verdicts_on_all,
)
from tests.kit.upstream import FakePool

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


async def until_alarm(
    monitor: Monitor,
    world: MonitoredStore,
    queries: Callable[[int], list[DecisionRecord]],
    *,
    at_most: int,
) -> int:
    """How many queries it took, fifty at a time."""
    for count in range(50, at_most + 1, 50):
        await feed(monitor, queries(50))
        if stale_now(monitor, world):
            return count
    raise AssertionError(f"no alarm after {at_most} queries: {await monitor.drift_report()}")


def capital(report: dict[str, Any], stream: str) -> float:
    """What a stream has earned."""
    return report["alarms"]["streams"][stream]["capital"]


# Queries, without labels ----------------------------------------------------------------------


@pytest.mark.parametrize("score", ["gap", "prob"])
def test_two_thousand_queries_like_the_rows_raise_no_alarm(store: Store, score: str) -> None:
    """False alarm one in a million, all streams together, at every moment of the run."""
    rng = np.random.default_rng(5)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        for _ in range(40):
            await feed(monitor, decision_records(world.record, draw_scores(rng, 50)))
            assert stale_now(monitor, world) == ()
        report = await monitor.drift_report()
        rounds = {name: each["rounds"] for name, each in report["alarms"]["streams"].items()}
        assert {name: rounds.pop(name) for name in JUDGED} == dict.fromkeys(JUDGED, 0)
        assert rounds == dict.fromkeys(UNLABELLED, 2_000)

    monitored(store, story, record=calibration_record(score=score), false_alarm=RARE)


def test_harder_queries_raise_an_alarm(store: Store) -> None:
    """After a thousand like the rows, queries whose scores are a fifth smaller are seen."""
    rng = np.random.default_rng(6)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 1_000)))
        assert stale_now(monitor, world) == ()

        def harder(count: int) -> list[DecisionRecord]:
            return decision_records(world.record, draw_scores(rng, count, harder=0.8))

        assert await until_alarm(monitor, world, harder, at_most=600) <= 600
        seen_by = {"stale:largest_score", "stale:mean_score", "stale:embedding"}
        assert set(stale_now(monitor, world)) <= seen_by
        raised = (await monitor.drift_report())["alarms"]["raised"]
        assert [f"stale:{name}" for name in raised] == list(stale_now(monitor, world))

    monitored(store, story, false_alarm=RARE)


def test_sets_that_grow_raise_an_alarm(store: Store) -> None:
    """Queries on which the router cannot tell candidates apart, at the same mean score."""
    rng = np.random.default_rng(7)

    def alike(count: int) -> FloatArray:
        scores = draw_scores(rng, count)
        return np.repeat(scores.mean(axis=1, keepdims=True), 3, axis=1).round(6)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 1_000)))
        await until_alarm(
            monitor, world, lambda n: decision_records(world.record, alike(n)), at_most=600
        )
        await feed(monitor, decision_records(world.record, alike(300)))
        assert "stale:set_size" in stale_now(monitor, world)

    monitored(store, story, false_alarm=RARE)


def test_new_topics_with_the_same_scores_raise_an_alarm(store: Store) -> None:
    """The router is as sure as before; only the embedding of the queries has moved."""
    rng = np.random.default_rng(33)

    def moved(record: CalibrationRecord, count: int) -> list[DecisionRecord]:
        return [
            replace(note, projection=tuple(0.8 * x for x in note.scores or ()))
            for note in decision_records(record, draw_scores(rng, count))
        ]

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 500)))
        assert stale_now(monitor, world) == ()
        await until_alarm(monitor, world, lambda n: moved(world.record, n), at_most=600)
        assert stale_now(monitor, world) == ("stale:embedding",)

    monitored(store, story, false_alarm=RARE)


def test_rows_without_an_embedding_have_no_stream_for_it(store: Store) -> None:
    """Rows with their own scores; the others share."""
    record = calibration_record()
    record = replace(
        record,
        populations=(
            replace(
                record.populations[0], calibration=replace(record.calibration, projections=None)
            ),
        ),
    )

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(
            monitor, decision_records(world.record, draw_scores(np.random.default_rng(1), 9))
        )
        streams = (await monitor.drift_report())["alarms"]["streams"]
        assert set(streams) == set(STREAMS) - {"embedding"}
        assert sum(each["level"] for each in streams.values()) == pytest.approx(0.01)

    monitored(store, story, record=record)


def test_request_options_raise_no_drift_alarm(store: Store) -> None:
    """Another alpha, a smaller pool or a pinned set say nothing of the queries: false alarm 1e-6.

    The set size that is watched is the one at the calibration's own alpha and pool.
    """
    rng = np.random.default_rng(8)
    choices: list[dict[str, Any]] = [
        {"alpha": 0.5},
        {"alpha": 0.01},
        {"pool": ("adder",), "selected": ("adder",)},
        {"chosen_by": ChosenBy.OVERRIDDEN, "selected": ("poet",)},
    ]

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 500)))
        for choice in choices:
            await feed(monitor, decision_records(world.record, draw_scores(rng, 300), **choice))
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"]["streams"]["set_size"]["rounds"] == 1_700

    monitored(store, story, false_alarm=RARE)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None},
        {"reasons": ("multi_turn_uncalibrated",)},
        {"reasons": ("later_turn",)},
        {"reasons": ("unlabelled_request_kind",)},
        {"reasons": ("query_too_long",)},
        {"reasons": ("group_uncalibrated",)},
        {"reasons": ("grouping_changed",)},
        {"calibration_id": "another"},
    ],
    ids=str,
)
def test_uncertified_queries_enter_no_drift_stream(store: Store, changes: dict[str, Any]) -> None:
    """Their certificates are void as it is, and they must not void the others'."""
    rng = np.random.default_rng(9)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        made = decision_records(world.record, draw_scores(rng, 20, harder=0.1))
        await feed(monitor, [replace(note, **changes) for note in made])
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"]["streams"]["mean_score"]["rounds"] == 0

    monitored(store, story)


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


def test_a_calibration_row_counts_as_a_repeat(store: Store) -> None:
    """Nor is a query under a new calibration that has it among its rows; others are new there."""
    row, query = calibration_record().calibration.fingerprints[0], b"a query"

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        assert monitor.is_repeat(row, ())
        assert not monitor.is_repeat(query, ())
        assert monitor.is_repeat(query, ())
        await world.active.swap(calibration_record(seed=2))
        assert not monitor.is_repeat(query, ())
        assert not monitor.is_repeat(row, ())

    monitored(store, story, false_alarm=None)


def test_queries_of_other_populations_do_not_count_as_seen(store: Store) -> None:
    """A later turn that says "yes" does not stand for the question "yes"."""

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        for reason in ("multi_turn_uncalibrated", "later_turn"):
            assert not monitor.is_repeat(b"yes", (reason,))
        assert not monitor.is_repeat(b"yes", ())
        for reason in ("multi_turn_uncalibrated", "later_turn"):
            assert not monitor.is_repeat(b"yes", (reason,))

    monitored(store, story)


def test_nothing_is_watched_when_the_operator_says_so(store: Store) -> None:
    """`watching.false_alarm: null`."""
    rng = np.random.default_rng(10)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 500, harder=0.1)))
        await monitor.reset_drift()
        assert stale_now(monitor, world) == ()
        assert (await monitor.drift_report())["alarms"] is None

    monitored(store, story, false_alarm=None)


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
def test_the_shadow_sample_estimates_the_risk(store: Store, target: RiskTarget) -> None:
    """The mean loss of those that count, with an interval that holds 0.1 here; no alarm (1e-6)."""
    rng = np.random.default_rng(11)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        losses = await judge(monitor, world, rng, 150)
        report = await monitor.drift_report()
        shadow = report["shadow"]
        assert shadow["sampled"] == shadow["judged"] == 150
        assert shadow["counted"] == len(losses)
        assert shadow["risk"] == pytest.approx(np.mean(losses))
        assert shadow["lower"] < 0.1 < shadow["upper"]
        assert report["alarms"]["streams"]["risk"]["rounds"] == len(losses)
        assert report["alarms"]["streams"]["risk"]["rho"] == report["risk_q95"]
        assert stale_now(monitor, world) == ()

    monitored(
        store,
        story,
        record=calibration_record(risk_target=target),
        shadow_rate=0.5,
        false_alarm=RARE,
    )


def test_candidates_that_got_worse_raise_an_alarm(store: Store) -> None:
    """The queries are as before; now those candidates are right that used to be wrong."""
    rng = np.random.default_rng(12)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await judge(monitor, world, rng, 50)
        assert stale_now(monitor, world) == ()
        await judge(monitor, world, rng, 100, lambda scores: 1.0 - scores)
        assert stale_now(monitor, world) == ("stale:critical_score", "stale:risk")

    monitored(store, story, shadow_rate=0.5, false_alarm=RARE)


def test_critical_scores_that_grow_raise_an_alarm(store: Store) -> None:
    """Scores tell half of what they did: one judged query in four has its scores reversed."""
    rng = np.random.default_rng(31)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await judge(monitor, world, rng, 50)
        assert stale_now(monitor, world) == ()
        for _ in range(40):
            await judge(monitor, world, rng, 25, lambda scores: 0.25 + 0.5 * scores)
            if "stale:critical_score" in stale_now(monitor, world):
                break
        assert "stale:critical_score" in stale_now(monitor, world)
        streams = (await monitor.drift_report())["alarms"]["streams"]
        assert streams["critical_score"]["rounds"] == streams["risk"]["rounds"]

    monitored(store, story, shadow_rate=0.5)


def test_the_drift_state_of_the_version_before_goes_on(store: Store) -> None:
    """It has four streams, no critical scores, and an alarm: nothing of it is lost."""
    rng = np.random.default_rng(32)

    async def before(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 300, harder=0.5)))
        await judge(monitor, world, rng, 5)

    world = monitored(store, before, shadow_rate=0.5)
    with world.store.transaction() as session:
        row = session.get(WatchRow, (world.record.id, ""))
        assert row is not None
        state = json.loads(row.state)
        names = ("largest_score", "mean_score", "set_size", "risk")
        state["streams"] = {name: state["streams"][name] for name in names}
        row.state = json.dumps(state)

    async def after() -> None:
        async with await world.monitor(shadow_rate=0.5) as monitor:
            raised = stale_now(monitor, world)
            assert raised
            await feed(monitor, decision_records(world.record, draw_scores(rng, 10)))
            losses = await judge(monitor, world, rng, 10)
            report = await monitor.drift_report()
            streams = report["alarms"]["streams"]
            assert stale_now(monitor, world) == raised
            assert set(streams) == set(names)
            assert streams["mean_score"]["rounds"] == 300 + 5 + 10 + 10
            assert streams["risk"]["rounds"] == report["shadow"]["counted"] > len(losses)

    asyncio.run(after())


def test_a_judged_decision_counts_once(store: Store) -> None:
    """However often its verdicts are sent, and after a restart."""
    rng = np.random.default_rng(13)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        note = decision_record(world.record, draw_scores(rng, 1)[0].tolist(), shadow_rate=0.5)
        monitor.record(note)
        for _ in range(3):
            await monitor.feedback.add(
                note.decision_id, verdicts_on_all([True, False, False]), ADMIN
            )
            await monitor.feedback.accept([note.decision_id])
        report = await monitor.drift_report()
        assert report["alarms"]["streams"]["risk"]["rounds"] == 1
        assert report["shadow"]["counted"] == 1

    monitored(store, story, shadow_rate=0.5)


@pytest.mark.parametrize(
    ("changes", "counted"),
    [({}, 1), ({"alpha": 0.5}, 1), ({"pool": POOL[:2], "selected": ("adder",)}, 0),
     ({"calibration_id": "another"}, 0), ({"reasons": ("multi_turn_uncalibrated",)}, 0),
     ({"reasons": ("later_turn",)}, 0), ({"reasons": ("conditions_differ",)}, 0)],
    ids=str,
)  # fmt: skip
def test_only_decisions_about_the_watched_risk_are_bet_on(
    store: Store, changes: dict[str, Any], counted: int
) -> None:
    """The loss is that of the calibration's own set, so another alpha does no harm."""

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        note = replace(decision_record(world.record, [0.9, 0.5, 0.1], shadow_rate=0.5), **changes)
        monitor.record(note)
        correct = dict.fromkeys(note.pool, True)
        await monitor.feedback.add(note.decision_id, correct, ADMIN)
        assert (await monitor.feedback.decision(note.decision_id, ADMIN)).judged
        assert (await monitor.drift_report())["alarms"]["streams"]["risk"]["rounds"] == counted

    monitored(store, story, shadow_rate=0.5)


def test_answers_under_other_conditions_give_no_loss(store: Store) -> None:
    """Cut at five tokens all candidates are wrong: no loss, no row and no feedback counts it."""
    rng = np.random.default_rng(16)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
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

    monitored(store, story, shadow_rate=0.5, false_alarm=RARE)


@pytest.mark.parametrize("kind", [RowsKind.QUESTIONS, RowsKind.TRAFFIC])
def test_a_repeat_counts_where_the_rows_have_repeats(store: Store, kind: RowsKind) -> None:
    """It is drawn, judged and a row in any case; what it tells of the risk depends on the rows."""
    record = replace(calibration_record(), evidence={"sample": {"kind": kind}})

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        for repeated in (False, True):
            note = decision_record(
                world.record, [0.9, 0.5, 0.1], shadow_rate=0.5, repeated=repeated
            )
            monitor.record(note)
            await monitor.feedback.add(note.decision_id, verdicts_on_all([True] * 3), ADMIN)
        report = await monitor.drift_report()
        assert report["shadow"]["judged"] == 2
        assert report["shadow"]["counted"] == 1 + (kind is RowsKind.TRAFFIC)

    monitored(store, story, record=record, shadow_rate=0.5)


def test_verdicts_that_wait_move_no_stream(store: Store) -> None:
    """A data key cannot raise an alarm, nor hush one, before an admin accepts."""
    data = Caller(name="data")

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        note = decision_record(world.record, [0.9, 0.5, 0.1], shadow_rate=0.5)
        monitor.record(note)
        await monitor.feedback.add(note.decision_id, verdicts_on_all([False, False, True]), data)
        assert (await monitor.drift_report())["alarms"]["streams"]["risk"]["rounds"] == 0
        assert (await monitor.drift_report())["feedback"]["identified"] == 0
        await monitor.feedback.accept([note.decision_id])
        assert (await monitor.drift_report())["alarms"]["streams"]["risk"]["rounds"] == 1
        assert (await monitor.drift_report())["feedback"]["identified"] == 1

    monitored(store, story, shadow_rate=0.5)


def test_without_a_finite_threshold_there_is_no_risk_stream(store: Store) -> None:
    """Five rows for alpha 0.1: the whole pool is called, and query statistics are still tested."""

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(
            monitor, decision_records(world.record, draw_scores(np.random.default_rng(14), 3))
        )
        report = await monitor.drift_report()
        assert sorted(report["alarms"]["streams"]) == sorted(UNLABELLED)
        levels = [each["level"] for each in report["alarms"]["streams"].values()]
        assert sum(levels) == pytest.approx(0.01)

    monitored(store, story, record=calibration_record(rows=5))


# What feedback alone says ---------------------------------------------------------------------


def test_feedback_alone_gives_a_range(store: Store) -> None:
    """Of ten decisions two are hits, one is a miss, one set is wrong; six have no feedback.

    The wrong set may be a miss or an unanswerable query; the six may also be hits.
    """

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
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

    monitored(store, story)


def test_the_range_is_about_the_calibrations_own_alpha_and_pool(store: Store) -> None:
    """Other decisions are counted as kept, and not in the range."""

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        others: list[dict[str, Any]] = [
            {"alpha": 0.5},
            {"pool": POOL[:2]},
            {"chosen_by": ChosenBy.OVERRIDDEN},
            {"chosen_by": ChosenBy.EVERYONE},
            {"reasons": ("unlabelled_request_kind",)},
            {"score": "prob"},
        ]
        made = [
            replace(decision_record(world.record, [0.9, 0.2, 0.1]), **each)
            for each in ({}, *others)
        ]
        await feed(monitor, made)
        for note in made:
            await monitor.feedback.add(note.decision_id, {"adder": True}, ADMIN)
        report = await monitor.drift_report()
        assert report["decisions"]["kept"] == 7
        assert report["decisions"]["at_own_alpha_and_pool"] == 1
        assert report["decisions"]["of_these_with_feedback"] == 1
        assert report["feedback"]["identified"] == 1

    monitored(store, story)


# Restarts, swaps, resets ----------------------------------------------------------------------


def test_a_restart_loses_no_evidence(store: Store) -> None:
    """Capital, rounds and an alarm go on; the certificates are void from the first request."""
    rng = np.random.default_rng(15)
    reports: list[dict[str, Any]] = []

    async def before(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
        reports.append(await monitor.drift_report())
        assert stale_now(monitor, world)

    world = monitored(store, before)

    async def after() -> None:
        async with await world.monitor() as monitor:
            assert stale_now(monitor, world) == tuple(
                f"stale:{n}" for n in reports[0]["alarms"]["raised"]
            )
            assert (await monitor.drift_report())["alarms"] == reports[0]["alarms"]

    asyncio.run(after())


def test_a_new_calibration_begins_a_new_watch_and_the_old_one_is_kept(store: Store) -> None:
    """Swapping to fresh rows ends the alarm; rolling back brings it back at once."""
    rng = np.random.default_rng(16)
    fresh = calibration_record(seed=2)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
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

    monitored(store, story)


@pytest.mark.parametrize("later", [1, 2, 8])
def test_an_alarm_belongs_to_the_record_that_decided(store: Store, later: int) -> None:
    """However many were activated while a request was decided by the one that alarmed."""
    rng = np.random.default_rng(26)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
        raised = stale_now(monitor, world)
        assert raised
        for seed in range(later):
            fresh = calibration_record(seed=50 + seed, rows=100)
            world.store.add(fresh, activate=True)
            await world.active.swap(fresh)
        assert stale_now(monitor, world) == ()
        assert monitor.stale_reasons(world.record.id) == raised

    monitored(store, story)


def test_an_alarm_voids_a_decision_of_before_the_swap(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calibration is activated while a request is decided by the one that alarmed."""
    gateway = serve(watching={"false_alarm": 0.01})
    decided = [gateway.route(f"{UNANSWERABLE}{number}")["decision_id"] for number in range(120)]
    gateway.get(f"/decisions/{decided[-1]}")
    raised = gateway.get("/drift", ADMIN_KEY).json()["alarms"]["raised"]
    assert raised
    decide = RoutingService.route

    async def swapped_meanwhile(self: Any, *request: Any) -> CertifiedDecision:
        routed = await decide(self, *request)
        fresh = replace(routed.record, id="cal-fresh")
        await self._active.swap(fresh)
        return routed

    monkeypatch.setattr(RoutingService, "route", swapped_meanwhile)
    certificate = gateway.route(ONE)["certificate"]
    assert not certificate["holds"]
    assert {f"stale:{name}" for name in raised} <= set(certificate["reasons"])


def test_a_reset_begins_again(store: Store) -> None:
    """The alarm is gone, after a restart too, and the next change is seen again."""
    rng = np.random.default_rng(17)

    async def before(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))

    world = monitored(store, before)

    async def reset() -> None:
        async with await world.monitor() as monitor:
            assert stale_now(monitor, world)
            since = (await monitor.drift_report())["alarms"]["since"]
            await monitor.reset_drift()
            assert stale_now(monitor, world) == ()
            alarms = (await monitor.drift_report())["alarms"]
            assert alarms["since"] > since
            assert alarms["streams"]["mean_score"]["rounds"] == 0

    async def after() -> None:
        async with await world.monitor() as monitor:
            assert stale_now(monitor, world) == ()
            await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))
            assert stale_now(monitor, world)

    asyncio.run(reset())
    asyncio.run(after())


@pytest.mark.parametrize("damage", ["{}", '{"delta": 0.01, "streams": {"risk": 7}}'])
def test_a_damaged_watch_begins_again(store: Store, damage: str) -> None:
    """The gateway starts, and watches."""
    rng = np.random.default_rng(18)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 200, harder=0.5)))

    world = monitored(store, story)
    with world.store.transaction() as session:
        row = session.get(WatchRow, (world.record.id, ""))
        assert row is not None
        row.state = damage

    async def after() -> None:
        async with await world.monitor() as monitor:
            assert stale_now(monitor, world) == ()
            assert (await monitor.drift_report())["alarms"]["streams"]["risk"]["rounds"] == 0

    asyncio.run(after())


def test_the_saved_state_is_small(store: Store) -> None:
    """With full bags: well under a megabyte of JSON."""
    rng = np.random.default_rng(19)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        await feed(monitor, decision_records(world.record, draw_scores(rng, 10)))

    world = monitored(store, story, record=calibration_record(rows=12_000))
    with world.store.transaction() as session:
        row = session.get(WatchRow, (world.record.id, ""))
    assert row is not None
    assert len(row.state) < 1_000_000


# How it is told -------------------------------------------------------------------------------


def test_an_alarm_is_one_log_line_and_a_metric(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line per stream, for any number of further queries."""
    rng = np.random.default_rng(20)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        with caplog.at_level(logging.WARNING, "app.monitoring"):
            for _ in range(5):
                await feed(
                    monitor, decision_records(world.record, draw_scores(rng, 100, harder=0.5))
                )
        raised = (await monitor.drift_report())["alarms"]["raised"]
        lines = [line for line in caplog.messages if "drift alarm" in line]
        assert sorted(lines) == sorted(
            f"drift alarm: {name}, calibration {world.record.id}" for name in raised
        )
        text = world.metrics.render().decode()
        for name in STREAMS:
            value = float(name in raised)
            assert f'racer_drift_alarm{{application="",stream="{name}"}} {value}' in text

    monitored(store, story)


def series(world: MonitoredStore, name: str, label: str) -> dict[str, float]:
    """The values of a metric, by its one label."""
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(world.metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_evidence_is_how_far_a_bet_came_and_one_where_it_alarms(store: Store) -> None:
    """What an operator sees before the alarm; none is there before the first query."""
    rng = np.random.default_rng(23)

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        assert set(series(world, "racer_drift_evidence", "stream").values()) == {0.0}
        await feed(monitor, decision_records(world.record, draw_scores(rng, 60, harder=0.8)))
        seen = [series(world, "racer_drift_evidence", "stream")]
        await feed(monitor, decision_records(world.record, draw_scores(rng, 400, harder=0.5)))
        seen.append(series(world, "racer_drift_evidence", "stream"))
        streams = (await monitor.drift_report())["alarms"]["streams"]
        for name, each in streams.items():
            way = each["largest_log10_capital"] / math.log10(each["alarm_at"])
            assert seen[1][name] == pytest.approx(way)
            assert (seen[1][name] >= 1.0) == each["alarmed"]
        assert 0.0 < seen[0]["largest_score"] < seen[1]["largest_score"]
        assert seen[1]["largest_score"] >= 1.0 > seen[1]["risk"]
        await monitor.reset_drift()
        assert set(series(world, "racer_drift_evidence", "stream").values()) == {0.0}

    monitored(store, story)


def test_the_realised_risk_is_a_metric_beside_its_bound(store: Store) -> None:
    """Read from the store, so it is there after a restart; unknown before anything was judged."""
    rng = np.random.default_rng(24)
    report: dict[str, Any] = {}

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        unknown = series(world, "racer_realised_risk", "bound")
        assert (unknown["lower"], unknown["upper"]) == (0.0, 1.0)
        assert math.isnan(unknown["mean"])
        await judge(monitor, world, rng, 60)
        report.update(await monitor.drift_report())

    world = monitored(store, story, shadow_rate=0.5, false_alarm=RARE)

    async def later() -> None:
        async with await world.monitor(shadow_rate=0.5, false_alarm=RARE):
            async with asyncio.timeout(30):
                while series(world, "racer_realised_risk", "bound")["upper"] == 1.0:  # noqa: ASYNC110 - housekeeping sets no event
                    await asyncio.sleep(0.01)

    asyncio.run(later())
    shadow = report["shadow"]
    assert series(world, "racer_realised_risk", "bound") == {
        "lower": shadow["lower"],
        "mean": shadow["risk"],
        "upper": shadow["upper"],
    }
    text = world.metrics.render().decode()
    assert f'racer_risk_bound{{application=""}} {report["risk_q95"]}\n' in text


def test_where_the_whole_pool_is_called_no_risk_is_bounded(store: Store) -> None:
    """Too few rows for alpha: there is no threshold whose risk could be above anything."""

    async def story(_: Monitor, world: MonitoredStore) -> None:
        assert 'racer_risk_bound{application=""} NaN\n' in world.metrics.render().decode()

    monitored(store, story, record=calibration_record(rows=5))


def test_an_alarm_voids_certificates_and_a_reset_mends_them(serve: Serve) -> None:
    """Over HTTP: queries of a single kind raise an alarm, and every certificate has the reason."""
    gateway = serve(watching={"false_alarm": 0.01})
    assert gateway.route(ONE)["certificate"]["holds"]
    decided = [gateway.route(f"{UNANSWERABLE}{number}")["decision_id"] for number in range(120)]
    gateway.get(f"/decisions/{decided[-1]}")  # they were seen, and what asks for them adds them
    raised = gateway.get("/drift", ADMIN_KEY).json()["alarms"]["raised"]
    assert raised
    certificate = gateway.route(ONE)["certificate"]
    assert not certificate["holds"]
    assert {f"stale:{name}" for name in raised} <= set(certificate["reasons"])
    header = gateway.ask(TWO).headers["x-racer-guarantee"]
    assert header.startswith("void; reason=")
    assert "stale:" in header
    assert gateway.post("/drift/reset", ADMIN_KEY).json()["alarms"]["raised"] == []
    assert gateway.route(ONE)["certificate"]["holds"]


def test_drift_is_the_admins(gateway: Gateway, pool: FakePool) -> None:
    """403 for a data key, on every endpoint that shows or changes what is watched."""
    for path in ("/drift", "/shadow/rows"):
        assert gateway.get(path).status_code == 403
        assert gateway.get(path, ADMIN_KEY).status_code == 200
    for path in ("/drift/reset", "/feedback/accept"):
        assert gateway.post(path, json={}).status_code == 403


def test_drift_needs_a_calibration(serve: Serve) -> None:
    """503 that says what to do, before there is one."""
    gateway = serve(calibrated=False)
    response = gateway.get("/drift", ADMIN_KEY)
    assert response.status_code == 503
    assert "POST /calibrate" in response.json()["error"]["message"]


# The draw of the shadow sample ----------------------------------------------------------------


def test_the_sample_is_drawn_at_its_rate_by_the_decision(store: Store) -> None:
    """Replicas agree on every decision; about a fifth of 5,000, false alarm 1e-6."""

    async def story(monitor: Monitor, world: MonitoredStore) -> None:
        other = await world.monitor(seed=99, shadow_rate=0.2)
        ids = [f"chatcmpl-{number}" for number in range(5_000)]
        drawn = [monitor.sampler.draw(each, monitor.sampler.rate_of(None)) for each in ids]
        assert drawn == [other.sampler.draw(each, other.sampler.rate_of(None)) for each in ids]
        count = drawn.count(True)
        assert 1_000 - 140 < count < 1_000 + 140  # 4.9 standard deviations

    monitored(store, story, shadow_rate=0.2)


def test_nothing_is_sampled_by_default(store: Store) -> None:
    """The whole pool is called for sampling only if the operator enables it."""

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        assert MonitoringSettings().shadow_rate == 0.0
        assert not any(monitor.sampler.draw(f"{n}", 0.0) for n in range(1_000))
        assert not monitor.sampler.is_on

    monitored(store, story)
