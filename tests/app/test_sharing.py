"""Several gateways on one PostgreSQL: shared state, and outages of the database."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from app.monitoring.decisions.store import DecisionStore
from app.monitoring.drift.alarms import DriftMonitor
from app.monitoring.drift.populations import MonitoredCalibration
from app.monitoring.drift.store import DriftStore
from app.monitoring.metrics import MonitoringMetrics
from app.routing.calibration_sync import STORE_TIMEOUT_S
from app.store import Store, engine, notifications
from app.telemetry.metrics import Metrics
from tests.kit.accounts import configured_key
from tests.kit.databases import Postgres
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    Restart,
    Serve,
    as_json,
    configure,
    labelled,
    noisy,
    user,
)
from tests.kit.monitored import calibration_record, decision_records, draw_scores
from tests.kit.network import Cuttable, End
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

pytestmark = pytest.mark.scale

ACTIVATES = b"UPDATE active_calibrations"
AGREED_S = 10.0  # ten times the goal for all gateways to use a calibration
# Until a gateway works with a database that is back: waits for locks and for connections that began
# before end after 5 s each; the rest is for machines with other work.
RECOVERED_S = 30.0

Start = Callable[..., Gateway]


@pytest.fixture
def store_url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.create()


@pytest.fixture
def start(serve: Serve, store_url: str, noisy_artifact: Path) -> Start:
    """Start gateways that share a store; only the first is calibrated."""
    count = itertools.count()

    def begin(*, url: str = store_url, **changes: Any) -> Gateway:
        return serve(
            calibrated=next(count) == 0,
            environment=ENVIRONMENT | {"RACER_STORE_URL": url} | changes.pop("environment", {}),
            artifact=noisy_artifact,
            **changes,
        )

    return begin


def calibrated(gateway: Gateway, seed: int, **options: Any) -> dict[str, Any]:
    """Upload noisy rows: every seed has another threshold."""
    return gateway.calibrate(rows=noisy(10_000 + 1_000 * seed, 120), **options)


def somebody_waits(connection: psycopg.Connection[Any]) -> bool:
    """Whether a lock in this database is waited for."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    row = connection.execute(f"{waiting} AND datname = current_database()").fetchone()
    return row is not None and row[0] > 0


# Calibrations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("notified", [True, False])
def test_an_activation_on_one_is_used_by_all(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, notified: bool
) -> None:
    """Uploads and roll-backs by any of three gateways reach the others by notification or poll."""

    async def refused(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("no connection to listen on")

    if notified:
        monkeypatch.setattr(notifications, "POLL_S", 600.0)
    else:
        monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    gateways = [start() for _ in range(3)]
    first = gateways[0].active()
    second = calibrated(gateways[1], 1)["id"]
    assert until(lambda: {each.active() for each in gateways} == {second}, AGREED_S)
    assert gateways[2].activate(first).status_code == 200
    assert until(lambda: {each.active() for each in gateways} == {first}, AGREED_S)
    seen = {each.route(TWO)["certificate"]["calibration_id"] for each in gateways}
    assert seen == {first}


# Decisions ------------------------------------------------------------------------------------


def say(gateway: Gateway, decision_id: str, correct: dict[str, bool]) -> Any:
    """POST /feedback as an admin."""
    body = {"decision_id": decision_id, "correct": correct}
    return gateway.post("/feedback", ADMIN_KEY, json=body)


def test_feedback_finds_a_decision_of_another_gateway(start: Start) -> None:
    """Even one made a moment ago; a decision that no gateway made is unknown."""
    one, other = start(), start()
    made = one.route(TWO)["decision_id"]
    assert say(other, made, {"adder": True}).status_code == 200
    assert say(one, made, {"adder": False}).status_code == 409
    unknown = say(other, f"{made[:-4]}0000", {"adder": True})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_decision")


ALL_RIGHT = {"adder": True, "speller": True, "poet": True}


def test_every_gateways_losses_are_seen(start: Start, pool: FakePool) -> None:
    """Ten at each of two gateways are one stream of twenty, and each query counts once."""
    watching = {"false_alarm": 0.01, "shadow_rate": 1.0}
    gateways = [start(watching=watching) for _ in range(2)]
    for number, gateway in enumerate(gateways):
        for query in (*range(10), 0):  # the first one again, and at the other gateway, too
            for at in gateways if query == 0 else [gateway]:
                text = f"What is {query} plus {1_000 + number}?"
                made = at.chat(text)["racer"]["decision_id"]
                assert say(gateways[1 - number], made, ALL_RIGHT).status_code == 200
    gateways[1].get("/drift", ADMIN_KEY)  # who is asked adds what it saw
    for gateway in gateways:
        alarms = gateway.get("/drift", ADMIN_KEY).json()["alarms"]["streams"]
        assert alarms["risk"]["rounds"] == 20
        assert alarms["mean_score"]["rounds"] == 20


def test_concurrent_additions_of_two_gateways_are_all_stored(store_url: str) -> None:
    """Twenty times ten queries each: red when one writes over what the other added."""
    calibrated = calibration_record()
    start, failed = threading.Barrier(2), list[Exception]()

    def add(url: str, seed: int) -> dict[str, Any]:
        with Store(url) as store:
            rng = np.random.default_rng(seed)
            drift = DriftMonitor(
                drift_store=DriftStore(store),
                decision_store=DecisionStore(store),
                metrics=MonitoringMetrics(Metrics().registry),
                false_alarm=1e-6,
                rng=rng,
            )
            drift.set_calibration(MonitoredCalibration.of(calibrated))
            start.wait()
            for _ in range(20):
                drift.add_queries(decision_records(calibrated, draw_scores(rng, 10)))
                try:
                    drift.flush()
                except Exception as exc:  # noqa: BLE001 - looked at below
                    failed.append(exc)
            start.wait()
            return drift.as_json()[""]

    with Store(store_url) as store:
        store.add(calibrated, activate=True)
    with ThreadPoolExecutor(2) as threads:
        results = [each.result() for each in [threads.submit(add, store_url, s) for s in (1, 2)]]
    assert failed == []
    for each in results:
        assert each["streams"]["mean_score"]["rounds"] == 400


# Limits ---------------------------------------------------------------------------------------


def test_a_keys_limit_is_one_for_all_gateways(start: Start) -> None:
    """Two gateways, sixty a minute: what both let through is what one bucket would."""
    secret, line = configured_key("team", requests_per_minute=60)
    access = {"keys": [line]}
    gateways = [start(access=access) for _ in range(2)]
    statuses: list[int] = []
    began = time.monotonic()

    def let_through() -> int:
        for gateway in gateways:
            statuses.append(gateway.post("/route", secret, json={"query": ONE}).status_code)
        return statuses.count(200)

    # The store's bucket is emptied, but for what a lease may hold.
    assert until(lambda: let_through() >= 60 - 8, 30)
    for _ in range(200):
        let_through()
    elapsed = time.monotonic() - began
    assert set(statuses) == {200, 429}
    assert statuses.count(200) <= 60 + elapsed * 60 / 60 + 1  # what a bucket gives in this time


def test_a_raised_limit_is_there_at_once_at_each_gateway(
    start: Start, noisy_artifact: Path, pool: FakePool
) -> None:
    """Before the store knows of it, though all was used at both, from several threads at once.

    What both let through before is what one bucket would.
    """
    secret, line = configured_key("team", requests_per_minute=60)
    gateways = [start(access={"keys": [line]}) for _ in range(2)]
    statuses = list[int]()
    began = time.monotonic()

    def ask(gateway: Gateway) -> int:
        statuses.append(gateway.get("/v1/models", secret).status_code)
        return statuses[-1]

    def press(gateway: Gateway) -> None:
        wait_until(lambda: ask(gateway) == 429 and statuses.count(200) >= 60 - 4)
        for _ in range(100):
            ask(gateway)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(press, gateways * 2))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) <= 60 + (time.monotonic() - began) * 60 / 60 + 1
    for gateway in gateways:
        assert gateway.config is not None
        raised = {"keys": [line | {"requests_per_minute": 6_000}]}
        configure(gateway.config.parent, noisy_artifact, pool.url, access=raised)
        assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
        assert ask(gateway) == 200


def test_tokens_over_the_edge_are_a_debt_at_both(start: Start, pool: FakePool) -> None:
    """An answer used six minutes of them at one; the other spends its lease, and waits."""
    secret, line = configured_key("team", tokens_per_minute=1_000)
    gateways = [start(access={"keys": [line]}) for _ in range(2)]
    usage = {"prompt_tokens": 4_000, "completion_tokens": 2_000, "total_tokens": 6_000}
    pool.say("adder", "42", fields={"usage": usage})
    body = {"model": "adder", "messages": user(ONE)}

    def wait_s(gateway: Gateway) -> int:
        answer = gateway.post("/v1/chat/completions", secret, json=body)
        return int(answer.headers.get("retry-after", "0"))

    assert wait_s(gateways[0]) == 0
    pool.say("adder", "42")
    for gateway in gateways:
        wait_until(lambda gateway=gateway: wait_s(gateway) > 240)
        assert wait_s(gateway) <= 6_000 * 60 / 1_000


# Without the store ----------------------------------------------------------------------------


def goes_on_with_its_share(gateway: Gateway, secret: str) -> None:
    """The lease is used up, and then there is more: red when nothing fills the bucket."""

    def ask() -> int:
        return gateway.post("/route", secret, json={"query": ONE}).status_code

    for _ in range(5):
        assert until(lambda: ask() == 429, 30)
        assert until(lambda: ask() == 200, 30)


def test_routing_goes_on_without_the_store(start: Start, postgres: Postgres) -> None:
    """Under the last calibration, certified, with a log line; decisions are written afterwards."""
    secret, line = configured_key("team", requests_per_minute=600)
    gateway = start(access={"keys": [line]})
    before = gateway.decided(TWO)
    with postgres.stopped():
        assert until(lambda: gateway.degraded() == ["store"], AGREED_S)
        assert "racer_store_up 0.0" in gateway.get("/metrics", ADMIN_KEY).text
        assert gateway.decided_without_store(TWO) == before
        made = gateway.route(ONE)["decision_id"]
        assert gateway.chat(TWO)["racer"]["certificate"]["holds"]
        goes_on_with_its_share(gateway, secret)
        for answer in (
            gateway.get("/calibrations", ADMIN_KEY),
            gateway.post("/calibrate", ADMIN_KEY, json={"rows": as_json(labelled(10_000, 60))}),
        ):
            code = answer.json()["error"]["code"]
            assert (answer.status_code, code) == (503, "store_unavailable")
    assert until(lambda: gateway.degraded() == [], RECOVERED_S)
    assert "racer_store_up 1.0" in gateway.get("/metrics", ADMIN_KEY).text
    assert until(
        lambda: gateway.get(f"/decisions/{made}", ADMIN_KEY).status_code == 200, RECOVERED_S
    )


def test_a_database_that_hangs_holds_up_no_request(start: Start, postgres: Postgres) -> None:
    """It accepts connections and never answers: reported, no effect on routing, until it wakes.

    Who must wait for it hears so: more of them than the gateway has places for requests.
    """
    secret, line = configured_key("team", requests_per_minute=600)
    gateway = start(access={"keys": [line]}, limits={"in_flight": 8})
    before = gateway.decided(TWO)
    made = gateway.route(ONE)["decision_id"]
    with postgres.frozen(), ThreadPoolExecutor(8) as threads:
        asking = [threads.submit(say, gateway, made, {"adder": True}) for _ in range(8)]
        assert {each.result().status_code for each in asking} == {503}
        assert until(lambda: gateway.degraded() == ["store"], 10 * STORE_TIMEOUT_S)
        assert gateway.decided_without_store(TWO) == before
        goes_on_with_its_share(gateway, secret)
        made = gateway.route(ONE)["decision_id"]
    assert until(lambda: gateway.degraded() == [], RECOVERED_S)
    assert until(
        lambda: gateway.get(f"/decisions/{made}", ADMIN_KEY).status_code == 200, RECOVERED_S
    )


def test_a_gateway_stops_though_its_database_hangs(
    restart: Restart, noisy_artifact: Path, postgres: Postgres, store_url: str
) -> None:
    """With decisions to be written, a lease to be given back and a watch to be kept."""
    _, line = configured_key("team", requests_per_minute=600)
    watching = {"false_alarm": 0.01}
    with ExitStack() as stack:
        gateway = stack.enter_context(
            restart(
                artifact=noisy_artifact,
                access={"keys": [line]},
                watching=watching,
                environment=ENVIRONMENT | {"RACER_STORE_URL": store_url},
            )
        )
        calibrated(gateway, 1)
        with postgres.frozen():
            gateway.route(ONE)
            began = time.monotonic()
            stack.close()
            assert time.monotonic() - began < 30  # what the container gives it, or `drain_s`


def test_waiting_verdicts_do_not_delay_an_activation(
    start: Start, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts wait for a locked decision, more of them than threads: an activation passes them.

    One has the turn to change the watch of losses meanwhile, and it is not waited for either. All
    wait as long as the lock is held: the limit of a wait does not let the activation pass.
    """
    monkeypatch.setattr(engine, "LIMITS", engine.LIMITS.replace("'5000'", "'600000'"))
    gateways = [start(watching={"false_alarm": 0.01, "shadow_rate": 1.0}) for _ in range(2)]
    first = gateways[0].active()
    second = calibrated(gateways[0], 1)["id"]
    assert until(lambda: gateways[1].active() == second, AGREED_S)
    made = gateways[1].chat("What is 77 plus 1077?")["racer"]["decision_id"]
    assert gateways[1].get("/drift", ADMIN_KEY).status_code == 200  # there is a watch
    agreed = threading.Event()

    def speak(_: int) -> set[int]:
        statuses: set[int] = set()
        while not agreed.is_set():
            statuses.add(say(gateways[1], made, ALL_RIGHT).status_code)
        return statuses

    with ThreadPoolExecutor(12) as threads, psycopg.connect(store_url) as connection:
        try:
            watch = "SELECT 1 FROM watches WHERE calibration_id = %s FOR UPDATE"
            assert connection.execute(watch, [second]).fetchone()
            speaking = list(map(threads.submit, [speak] * 12, range(12)))
            assert until(lambda: somebody_waits(connection), AGREED_S)
            time.sleep(0.5)  # so do the others, for him
            assert gateways[0].activate(first).status_code == 200
            # No wait for the lock ends sooner: this test holds it, and its limit is a minute.
            assert until(lambda: gateways[1].active() == first, AGREED_S)
        finally:
            agreed.set()
    assert set().union(*(each.result() for each in speaking)) <= {200, 503}


def test_a_server_restarted_under_load_costs_no_request(start: Start, postgres: Postgres) -> None:
    """Every answer is 200 and certified; afterwards an activation reaches all gateways."""
    gateways = [start(), start()]
    over = threading.Event()
    wrong: list[Any] = []

    def ask(number: int) -> None:
        while not over.is_set():
            response = gateways[number % 2].ask(ONE if counts[number] % 2 else TWO)
            if response.status_code != 200 or not response.json()["racer"]["certificate"]["holds"]:
                wrong.append(response.text)
            counts[number] += 1

    counts = [0] * 4
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, number) for number in range(4)]
        for mode in ("immediate", "fast"):
            time.sleep(0.5)
            with postgres.stopped(mode):
                time.sleep(1.0)
        until(lambda: min(counts) > 10, 30)
        over.set()
        for each in asking:
            each.result()
    assert min(counts) > 10
    assert wrong == []
    assert until(lambda: gateways[0].degraded() == gateways[1].degraded() == [], AGREED_S)
    wanted = calibrated(gateways[0], 1)["id"]
    assert until(lambda: {each.active() for each in gateways} == {wanted}, AGREED_S)


@pytest.mark.parametrize("when", ["asked", "answered"])
@pytest.mark.parametrize("message", [b"COMMIT", ACTIVATES], ids=["commit", "update"])
def test_a_connection_cut_in_an_activation_leaves_old_or_new_everywhere(
    start: Start, postgres: Postgres, store_url: str, message: bytes, when: End
) -> None:
    """It is atomic on every gateway and ends in the store's state; a repetition succeeds."""
    with Cuttable(postgres.port) as wire:
        cuttable = store_url.replace(f":{postgres.port}/", f":{wire.port}/")
        one, other = start(url=cuttable), start()
        old = one.active()
        new = calibrated(other, 1, activate=False)["id"]
        right = {each: one.get(f"/calibrations/{each}", ADMIN_KEY).json() for each in (old, new)}
        wire.cut(message, when, after=ACTIVATES)
        answer = one.activate(new)
        assert wire.was_cut.is_set()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        wanted = new if message == b"COMMIT" and when == "answered" else old
        assert until(lambda: {one.active(), other.active()} == {wanted}, AGREED_S)
        for gateway in (one, other):
            certificate = gateway.route(TWO)["certificate"]
            assert certificate["calibration_id"] == wanted
            assert certificate["lambda_hat"] == right[wanted]["evidence"]["lambda_hat"]
        assert until(lambda: one.degraded() == [], AGREED_S)
        assert one.activate(new).status_code == 200
        assert until(lambda: {one.active(), other.active()} == {new}, AGREED_S)
