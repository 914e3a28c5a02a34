"""Prometheus metrics, with label values that no client can choose."""

from __future__ import annotations

import asyncio
import random
import string
import time

import pytest
from prometheus_client import CollectorRegistry, Gauge

from app.errors import StoreFull
from app.monitoring.decisions.store import DecisionStore
from app.telemetry.metrics import EVERY_S, LoopLag
from tests.kit.accounts import series
from tests.kit.connections import CHAT as CHAT_PATH
from tests.kit.connections import left
from tests.kit.connections import opened as connected
from tests.kit.gateway import ONE, TWO, Gateway, Serve, user
from tests.kit.loops import on_loop
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until


def value(gateway: Gateway, name: str) -> float:
    """The series without labels of this name."""
    return series(gateway.get("/metrics").text)[f"{name}[]"]


def test_no_client_makes_a_new_series(serve: Serve, pool: FakePool) -> None:
    """500 requests with models, groups, paths, methods and keys of their own, after some others."""
    rng = random.Random(20261121)
    gateway = serve(access={"failures_per_minute": 5})

    def ask(number: int) -> None:
        word = "".join(rng.choices(string.ascii_lowercase, k=12))
        method = rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", word.upper()])
        body = {"model": "auto", "messages": user(ONE)}
        match number % 5:
            case 0:
                gateway.post("/v1/chat/completions", json=body | {"model": word})
            case 1:
                racer = {"group": word, "alpha": rng.uniform(0.05, 0.95)}
                gateway.post("/route", json={"query": f"{ONE} {word}", **racer})
            case 2:
                client.request(method, f"/{word}/{word}", headers={"traceparent": word})
            case 3:
                client.request(method, f"/v1/models/{word}", headers={"x-session-id": word})
            case _:
                client.get("/metrics", headers={"authorization": f"Bearer {word}"})

    with gateway.http() as client:
        for number in range(100):
            ask(number)
        gateway.get("/metrics")  # counted once it is answered
        before = set(series(gateway.get("/metrics").text))
        for number in range(500):
            ask(number)
        after = set(series(gateway.get("/metrics").text))
    assert len(before) > 100
    assert after == before


def test_the_gateways_own_time_is_measured(serve: Serve, pool: FakePool) -> None:
    """Waiting for candidates is not in it: a slow answer adds next to nothing."""
    gateway = serve()
    pool.say("adder", "7", delay_s=3.0)
    assert gateway.chat(ONE)["racer"]["overhead_ms"] < 2_500
    assert value(gateway, "racer_overhead_seconds_count") == 1
    assert 0 < value(gateway, "racer_overhead_seconds_sum") < 2.5
    gateway.route(TWO)
    assert value(gateway, "racer_overhead_seconds_count") == 2
    assert value(gateway, "racer_router_seconds_count") >= 2


def test_requests_in_flight_are_shown(serve: Serve, pool: FakePool) -> None:
    """What autoscalers follow: one while its candidate answers, none afterwards, scrapes aside."""
    gateway = serve()
    assert value(gateway, "racer_requests_in_flight") == 0
    pool.say("adder", "7", delay_s=30)
    body = {"model": "auto", "messages": user(ONE)}
    connection = connected(gateway, CHAT_PATH, body)
    wait_until(lambda: value(gateway, "racer_requests_in_flight") == 1)
    assert left(pool, connection, ["adder"])
    wait_until(lambda: value(gateway, "racer_requests_in_flight") == 0)


def test_writes_that_the_store_refuses_are_counted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it takes them: the decision is stored in the end, and the counter stays."""
    gateway = serve()
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise StoreFull("the disk is full")

        patch.setattr(DecisionStore, "add", refused)
        decision = gateway.route(ONE)["decision_id"]
        wait_until(lambda: value(gateway, "racer_store_write_failures_total") >= 2)
    wait_until(lambda: gateway.get(f"/decisions/{decision}").status_code == 200)
    failed = value(gateway, "racer_store_write_failures_total")
    gateway.get(f"/decisions/{gateway.route(TWO)['decision_id']}")
    assert value(gateway, "racer_store_write_failures_total") == failed
    assert value(gateway, "racer_decisions_dropped_total") == 0


@on_loop
async def test_a_blocked_loop_is_seen() -> None:
    """For as long as Prometheus takes to come by, though it was blocked once only."""
    gauge = Gauge("lag", "Lag", registry=CollectorRegistry())
    async with LoopLag(gauge):
        await asyncio.sleep(2 * EVERY_S)
        time.sleep(EVERY_S + 0.5)  # noqa: ASYNC251 - which is the fault
        await asyncio.sleep(2 * EVERY_S)
        assert gauge.collect()[0].samples[0].value >= 0.5
