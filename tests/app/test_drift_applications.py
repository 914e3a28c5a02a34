"""Drift alarms and realised risk by application: streams, void certificates, reset, risk.

Simulations have fixed seeds. Where nothing changes, ``false_alarm`` is one in a million for each
application, so that a red test means a fault.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.access.api_keys import Caller
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.drift import risk as risk_report
from app.monitoring.drift import statistics
from app.monitoring.drift.populations import MonitoredCalibration
from app.monitoring.drift.statistics import JUDGED, STREAMS, UNLABELLED
from app.monitoring.monitor import Monitor
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.risk_e_process import RiskEProcess
from tests.kit.applications import ACCESS, BOT_KEY
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, TWO, Serve, as_json, error_message, noisy
from tests.kit.monitored import (
    HARDER,
    POOL,
    ROWS,
    MonitoredStore,
    application_queries,
    application_record,
    calibration_record,
    draw_scores,
    verdicts_on_all,
)

ADMIN = Caller(name="admin", role="admin")
RARE = 1e-6
Story = Callable[[Monitor, MonitoredStore], Awaitable[None]]


def run(world: MonitoredStore, story: Story, **settings: Any) -> None:
    """Run a story with a gateway's monitor, and close it."""

    async def opened() -> None:
        async with await world.monitor(**settings) as monitor:
            await story(monitor, world)

    asyncio.run(opened())


async def feed(monitor: Monitor, decisions: list[DecisionRecord]) -> None:
    """Record decisions, and wait until they were added."""
    for each in decisions:
        monitor.record(each)
    await monitor.feedback.decision(decisions[-1].decision_id, ADMIN)
    await monitor.flush_drift()


def queries(
    world: MonitoredStore, name: str, rng: np.random.Generator, count: int, harder: float = 1.0
) -> list[DecisionRecord]:
    """Queries like the rows of an application, or harder ones."""
    scores = draw_scores(rng, count, harder=harder * HARDER[name])
    return application_queries(world.record, name, scores)


def stale(monitor: Monitor, world: MonitoredStore) -> dict[str, tuple[str, ...]]:
    """The applications whose certificates are void, and why."""
    found = {name: monitor.stale_reasons(world.record.id, name) for name in ROWS}
    return {name: reasons for name, reasons in found.items() if reasons}


async def applications(monitor: Monitor) -> dict[str, Any]:
    """What the drift report says of each application."""
    return (await monitor.drift_report())["applications"]


async def rounds(monitor: Monitor, stream: str = "set_size") -> dict[str, int]:
    """The rounds of a stream by application."""
    found = await applications(monitor)
    return {name: each["alarms"]["streams"][stream]["rounds"] for name, each in found.items()}


async def counted(monitor: Monitor) -> dict[str, int]:
    """The losses that count, by application."""
    found = await applications(monitor)
    return {name: each["shadow"]["counted"] for name, each in found.items()}


def values(world: MonitoredStore, metric: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, the application first."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(world.metrics.render().decode())
        for sample in family.samples
        if sample.name == metric
    }


# Streams ----------------------------------------------------------------------------------------


def test_queries_like_the_rows_of_their_application_raise_no_alarm(store: Store) -> None:
    """False alarm 3e-6: one in a million for each of three applications, at every moment.

    The applications differ: queries of one, under another one's name, raise its alarm within 300.
    """
    rng = np.random.default_rng(1)
    world = MonitoredStore(store, application_record())

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        for name in [*ROWS] * 10:
            await feed(monitor, queries(world, name, rng, 50))
            assert stale(monitor, world) == {}
        reported = await applications(monitor)
        assert {*reported} == {*ROWS}
        for each in reported.values():
            rounds = {name: at["rounds"] for name, at in each["alarms"]["streams"].items()}
            assert rounds == dict.fromkeys(UNLABELLED, 500) | dict.fromkeys(JUDGED, 0)
            assert each["alarms"]["false_alarm"] == RARE
        as_bot = draw_scores(rng, 300)
        await feed(monitor, application_queries(world.record, "bot", as_bot))
        assert set(stale(monitor, world)) == {"bot"}

    run(world, story, false_alarm=RARE)


@pytest.mark.parametrize("name", ROWS)
def test_an_alarm_voids_its_application_alone(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Report, metric and log line name the application; the others go on."""
    rng = np.random.default_rng(2)
    world = MonitoredStore(store, application_record())

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        for each in ROWS:
            await feed(monitor, queries(world, each, rng, 100))
        await feed(monitor, queries(world, name, rng, 400, harder=0.6))
        found = stale(monitor, world)
        assert set(found) == {name}
        reported = await applications(monitor)
        raised = {each: at["alarms"]["raised"] for each, at in reported.items()}
        expected: dict[str, list[str]] = {each: [] for each in ROWS}
        expected[name] = [reason.removeprefix("stale:") for reason in found[name]]
        assert raised == expected
        alarms = values(world, "racer_drift_alarm")
        assert alarms == {
            (each, stream): stream in raised[each] for each in ROWS for stream in STREAMS
        }
        evidence = values(world, "racer_drift_evidence")
        assert {each for each, at in evidence.items() if at >= 1.0} == {
            (name, stream) for stream in raised[name]
        }
        lines = {line for line in caplog.messages if line.startswith("drift alarm")}
        assert lines == {
            f"drift alarm: {stream}, calibration {world.record.id}, application {name}"
            for stream in raised[name]
        }

    run(world, story, false_alarm=RARE)


def test_a_reset_is_of_one_application_or_of_all(store: Store) -> None:
    """The alarms of the other stay, after a restart, too."""
    rng = np.random.default_rng(3)
    world = MonitoredStore(store, application_record())

    async def alarm(monitor: Monitor, _: MonitoredStore) -> None:
        for name in ("desk", "bot"):
            await feed(monitor, queries(world, name, rng, 300, harder=0.4))
        assert set(stale(monitor, world)) == {"desk", "bot"}

    async def reset_one(monitor: Monitor, _: MonitoredStore) -> None:
        assert set(stale(monitor, world)) == {"desk", "bot"}
        await monitor.reset_drift("bot")
        assert set(stale(monitor, world)) == {"desk"}
        assert await rounds(monitor) == {"desk": 300, "search": 0, "bot": 0}

    async def reset_all(monitor: Monitor, _: MonitoredStore) -> None:
        assert set(stale(monitor, world)) == {"desk"}
        await monitor.reset_drift()
        assert stale(monitor, world) == {}

    for story in (alarm, reset_one, reset_all):
        run(world, story)


def test_an_alarm_of_one_gateway_voids_its_application_at_all(store: Store) -> None:
    """Another gateway reads it from the shared store, and so it does the reset."""
    rng = np.random.default_rng(4)
    world = MonitoredStore(store, application_record())

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        async with await world.monitor(seed=8) as other:
            await feed(monitor, queries(world, "bot", rng, 300, harder=0.4))
            assert stale(other, world) == {}
            other.on_shared_state(store.shared_state(world.record.artifact))
            assert stale(other, world) == stale(monitor, world) != {}
            assert set(stale(other, world)) == {"bot"}
            await other.reset_drift("bot")
            monitor.on_shared_state(store.shared_state(world.record.artifact))
            assert stale(monitor, world) == {}

    run(world, story)


def test_only_first_turns_of_the_applications_rows_count(store: Store) -> None:
    """Neither those of another population, of no row's application, nor void ones."""
    rng = np.random.default_rng(6)
    world = MonitoredStore(store, application_record())
    changes: list[dict[str, Any]] = [
        {"population": 0},
        {"reasons": ("later_turn",)},
        {"reasons": ("grouping_changed",)},
        {"group": "stranger", "reasons": ("group_uncalibrated",)},
        {"group_by": "request"},
    ]

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        scores = draw_scores(rng, 50, harder=0.01)
        for each in changes:
            await feed(monitor, application_queries(world.record, "bot", scores, **each))
        reported = await applications(monitor)
        for each in reported.values():
            assert {at["rounds"] for at in each["alarms"]["streams"].values()} == {0}
        labelled = {"reasons": ("labelled_conditions",)}
        await feed(monitor, application_queries(world.record, "bot", scores, **labelled))
        bot = (await applications(monitor))["bot"]
        assert bot["alarms"]["streams"]["set_size"]["rounds"] == 50

    run(world, story)


def test_repeats_count_for_applications_whose_rows_are_traffic(store: Store) -> None:
    """Rows of one upload are a list of questions; those that replaced the bot's are its traffic."""
    rng = np.random.default_rng(8)
    sample = {
        "questions": {"sample": {"kind": "questions"}},
        "bot": {"sample": {"kind": "traffic"}},
    }
    evidence = sample["questions"] | {"uploads": {"bot": sample["bot"]}}
    world = MonitoredStore(store, replace(application_record(), evidence=evidence))

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        for name in ("desk", "bot"):
            made = queries(world, name, rng, 30)
            await feed(monitor, [replace(each, repeated=True) for each in made])
        assert await rounds(monitor) == {"desk": 0, "search": 0, "bot": 30}
        for name in ("desk", "bot"):
            (made,) = queries(world, name, rng, 1)
            made = replace(made, repeated=True, shadow_rate=0.5)
            monitor.record(made)
            verdicts = verdicts_on_all([True, True, True])
            await monitor.feedback.add(made.decision_id, verdicts, ADMIN)
        assert await counted(monitor) == {"desk": 0, "search": 0, "bot": 1}

    run(world, story, shadow_rate=0.5)


def test_the_same_words_to_two_applications_are_two_queries(store: Store) -> None:
    """A repeat is one of the same application, and rows are those of its own."""
    world = MonitoredStore(store, application_record())
    bot, desk = (world.record.populations[place].calibration.fingerprints[0] for place in (1, 0))

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        assert not monitor.is_repeat(b"words", (), "desk")
        assert not monitor.is_repeat(b"words", (), "search")
        assert not monitor.is_repeat(b"words", (), "bot", 1)
        assert monitor.is_repeat(b"words", (), "bot", 1)
        assert monitor.is_repeat(b"words", (), "desk")
        assert monitor.is_repeat(bot, (), "bot", 1)
        assert not monitor.is_repeat(bot, (), "desk")
        assert not monitor.is_repeat(desk, (), "bot", 1)

    run(world, story)


# Realised risk ----------------------------------------------------------------------------------


def test_each_application_has_its_realised_risk(store: Store) -> None:
    """Mean, exact 95 % interval, bound and counts of its own decisions; metrics after a restart."""
    rng = np.random.default_rng(7)
    world = MonitoredStore(store, application_record())
    monitored = MonitoredCalibration.of(world.record)
    counted: dict[str, list[float]] = {name: [] for name in ROWS}
    reports: dict[str, Any] = {}

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        for name, count in {"desk": 40, "bot": 20}.items():
            scores = draw_scores(rng, count, harder=HARDER[name])
            made = application_queries(world.record, name, scores, shadow_rate=0.5)
            for each, right in zip(made, rng.random(scores.shape) < scores, strict=True):
                monitor.record(each)
                await monitor.feedback.add(each.decision_id, verdicts_on_all(right), ADMIN)
                if right.any():
                    hit = any(right[POOL.index(member)] for member in each.selected)
                    counted[name].append(float(not hit))
        reports.update(await applications(monitor))

    run(world, story, shadow_rate=0.5, false_alarm=RARE)
    judged = [name for name, losses in counted.items() if losses]
    for name, losses in counted.items():
        report, expected = reports[name], risk_report.estimate(losses)
        shadow = report["shadow"]
        assert (shadow["lower"], shadow["upper"]) == (expected.lower, expected.upper)
        assert shadow["counted"] == len(losses)
        assert shadow["risk"] == (np.mean(losses) if losses else None)
        assert report["alarms"]["streams"]["risk"]["rounds"] == len(losses)
        assert report["alpha"] == (0.2 if name == "bot" else 0.1)
        assert report["risk_q95"] == risk_report.bound(monitored.by_application[name])
        assert report["decisions"]["kept"] == shadow["sampled"]
        assert report["decisions"]["at_own_alpha_and_pool"] == shadow["sampled"]

    async def after(monitor: Monitor, _: MonitoredStore) -> None:
        async with asyncio.timeout(30):
            while 1.0 in (values(world, "racer_realised_risk")[(name, "upper")] for name in judged):  # noqa: ASYNC110 - housekeeping sets no event
                await asyncio.sleep(0.01)
        shown = values(world, "racer_realised_risk")
        for name in counted:
            assert shown[(name, "lower")] == reports[name]["shadow"]["lower"]
        bounds = values(world, "racer_risk_bound")
        assert bounds == {(name,): reports[name]["risk_q95"] for name in counted}
        await world.active.swap(calibration_record(seed=9))
        assert {each[0] for each in values(world, "racer_risk_bound")} == {""}
        for metric in ("racer_realised_risk", "racer_drift_alarm", "racer_drift_evidence"):
            assert {each[0] for each in values(world, metric)} == {""}

    run(world, after, shadow_rate=0.5, false_alarm=RARE)


def test_the_risk_goes_on_where_another_applications_rows_are_replaced(store: Store) -> None:
    """The rows and the threshold are the same, and so is the risk that was judged before."""
    rng = np.random.default_rng(10)
    first = application_record()
    world = MonitoredStore(store, first)

    async def judge(monitor: Monitor, record: CalibrationRecord, name: str) -> None:
        scores = draw_scores(rng, 10, harder=HARDER[name])
        for made in application_queries(record, name, scores, shadow_rate=0.5):
            monitor.record(made)
            await monitor.feedback.add(made.decision_id, verdicts_on_all([True, True, True]), ADMIN)

    async def story(monitor: Monitor, _: MonitoredStore) -> None:
        second = replace(
            application_record(),
            evidence={"replaced": {"application": "bot", "earlier": {"desk": [first.id]}}},
        )
        store.add(second, activate=False)
        for record in (first, second):
            await world.active.swap(record)
            for name in ("desk", "bot"):
                await judge(monitor, record, name)
        found = await applications(monitor)
        counted = {name: each["shadow"]["counted"] for name, each in found.items()}
        assert counted == {"desk": 20, "search": 0, "bot": 10}
        assert found["desk"]["decisions"]["at_own_alpha_and_pool"] == 20
        assert found["desk"]["feedback"]["identified"] == 20

    run(world, story, shadow_rate=0.5)


def test_a_query_has_one_loss_in_each_application(database: str) -> None:
    """Gateways that share a store count a query once for an application, not once for all."""
    record = application_record()
    with Store(database) as store:
        world = MonitoredStore(store, record)

        async def story(monitor: Monitor, _: MonitoredStore) -> None:
            for name in ("desk", "desk", "search"):
                (made,) = application_queries(
                    record, name, np.array([[0.9, 0.5, 0.1]]), shadow_rate=0.5, fingerprint="ab"
                )
                monitor.record(made)
                await monitor.feedback.add(
                    made.decision_id, verdicts_on_all([True, False, False]), ADMIN
                )
            found = await applications(monitor)
            is_shared = store.is_shared  # one gateway alone remembers queries in memory
            assert found["desk"]["shadow"]["counted"] == (1 if is_shared else 2)
            assert found["search"]["shadow"]["counted"] == 1

        run(world, story, shadow_rate=0.5)


# Monitored populations --------------------------------------------------------------------------


def test_every_application_has_its_largest_population(store: Store) -> None:
    """With its own alpha; without applications it is the first population, whatever its groups."""
    record = application_record()
    found = MonitoredCalibration.of(record).by_application
    rows = {name: len(each.calibration.fingerprints) for name, each in found.items()}
    assert rows == ROWS
    assert {name: each.place for name, each in found.items()} == {"bot": 1, "desk": 0, "search": 0}
    assert found["bot"].calibration.options.alpha == 0.2
    assert found["desk"].calibration.groups == ("desk",) * ROWS["desk"]
    store.add(record, activate=True)
    assert MonitoredCalibration.of(store.record(record.id)).by_application.keys() == ROWS.keys()
    (whole,) = MonitoredCalibration.of(grouped_by_request(record)).by_application.values()
    assert whole.calibration is record.calibration


def test_rows_with_a_judges_verdicts_are_tested_against_alpha() -> None:
    """Their threshold keeps alpha with probability 1 - delta; critical scores are unknown.

    Losses above alpha raise the alarm: 100 misses, whose probability below alpha is 0.2^100.
    """
    rng = np.random.default_rng(9)
    record = calibration_record(rows=600)
    rows = record.calibration
    is_judged = rng.random(600) < 0.5
    wrong = rng.random(rows.labels.shape) < 0.1
    rows = replace(
        rows,
        labels=rows.labels & ~is_judged[:, None],
        unlabelled=is_judged,
        judged=(rows.labels ^ wrong).astype(np.int8),
        options=replace(rows.options, alpha=0.2, delta=0.05),
    )
    record = replace(record, populations=(replace(record.populations[0], calibration=rows),))
    assert math.isfinite(rows.lambda_hat())
    (population,) = MonitoredCalibration.of(record).by_application.values()
    assert risk_report.bound(population) == 0.2
    state = statistics.new_drift_state(population.calibration, 0.01, rng)
    assert {*state.streams} == {*UNLABELLED, "risk"}
    assert sum(each.false_alarm for each in state.streams.values()) == pytest.approx(0.01)
    risk = state.streams["risk"]
    assert isinstance(risk, RiskEProcess)
    assert risk.rho == 0.2
    for _ in range(100):
        risk.update(1.0)
    assert state.raised == ("risk",)


def grouped_by_request(record: CalibrationRecord) -> CalibrationRecord:
    """The same rows, whose groups are no applications."""
    return replace(record, grouped_by="request")


# HTTP -------------------------------------------------------------------------------------------


def test_alarms_of_an_application_over_http(serve: Serve) -> None:
    """Queries of one kind to the bot void its certificates; a reset mends them."""
    gateway = serve(
        calibrated=False,
        watching={"false_alarm": 0.01},
        access=ACCESS,
        applications={"bot": {"keys": ["bot"], "premise": "drawn"}},
    )
    bot = [
        {"request": {"messages": [{"role": "user", "content": row["query"]}]}}
        | {"correct": row["correct"], "application": "bot"}
        for row in as_json(noisy(20_000, 80))
    ]
    gateway.upload([*bot, *as_json(noisy(40_000, 120))], alpha=0.2)

    def decide(key: str, query: str = TWO) -> dict[str, Any]:
        response = gateway.post("/route", key, json={"query": query})
        assert response.status_code == 200, response.text
        return response.json()

    poems = [f"Write a poem about {number} and {number * 7}" for number in range(200)]
    made = [decide(BOT_KEY, each)["decision_id"] for each in poems]
    gateway.get(f"/decisions/{made[-1]}", ADMIN_KEY)
    found = gateway.get("/drift", ADMIN_KEY).json()["applications"]
    assert found["bot"]["alarms"]["raised"]
    assert found["default"]["alarms"]["raised"] == []
    voided = decide(BOT_KEY)["certificate"]
    assert not voided["holds"]
    assert {f"stale:{name}" for name in found["bot"]["alarms"]["raised"]} <= {*voided["reasons"]}
    assert decide(DATA_KEY)["certificate"]["holds"]
    unknown = gateway.post("/drift/reset?application=chess", ADMIN_KEY)
    assert "no application 'chess' has rows" in error_message(unknown, 404)
    reset = gateway.post("/drift/reset?application=default", ADMIN_KEY).json()
    assert reset["applications"]["bot"]["alarms"]["raised"]
    reset = gateway.post("/drift/reset?application=bot", ADMIN_KEY).json()
    assert reset["applications"]["bot"]["alarms"]["raised"] == []
    assert decide(BOT_KEY)["certificate"]["holds"]
