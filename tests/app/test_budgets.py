"""Budgets: refused before a call, settled by what calls cost, shared by gateways on one store."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text

from app.store import Store
from tests.kit import same_answer
from tests.kit.accounts import configured_key, counted
from tests.kit.connections import CHAT, opened
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    candidates,
    configure,
    error_message,
    running,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

CALLS: Final = {"adder": 1.0, "speller": 2.0, "poet": 0.5}  # a call of each
Budgeted = Callable[..., Gateway]


@pytest.fixture
def budgeted(serve: Serve, pool: FakePool) -> Budgeted:
    """Start a gateway whose candidates cost a price for each call, which is made once."""

    def start(hard: float | None = None, **changes: Any) -> Gateway:
        own = {name: {"price": price} for name, price in CALLS.items()}
        if hard is not None:
            changes["budget"] = {"hard": hard}
        patient = candidates(pool.url, timeout_s=60, **own)
        return serve(candidates=patient, fleet={"attempts": 1}, **changes)

    return start


def shown(gateway: Gateway, budget: str = "all", key: str = ADMIN_KEY) -> dict[str, Any]:
    """One budget."""
    response = gateway.get("/budgets", key)
    assert response.status_code == 200, response.text
    return next(each for each in response.json()["budgets"] if each["budget"] == budget)


def left(gateway: Gateway, budget: str = "all") -> tuple[float, float]:
    """What is spent and reserved."""
    found = shown(gateway, budget)
    return found["spent"], found["reserved"]


# The hard limit ---------------------------------------------------------------------------------


def test_a_request_that_could_exceed_is_refused_before_its_calls(
    budgeted: Budgeted, pool: FakePool
) -> None:
    """All calls of the set count: the first fits, the second does not, a smaller one does."""
    gateway = budgeted(hard=4.0)
    assert gateway.ask(TWO).status_code == 200
    pool.reset()
    refused = gateway.ask(TWO)
    assert error_message(refused, 429) == (
        "this request may cost up to 3 USD, more than is left of the budget of all for this month; "
        f"it begins anew at {shown(gateway)['ends_at']}. Until then lower `max_tokens`, or raise "
        "the budget"
    )
    assert refused.json()["error"]["code"] == "budget_exceeded"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    streamed = gateway.ask(TWO, stream=True)
    assert (streamed.status_code, streamed.headers["x-should-retry"]) == (429, "false")
    assert pool.requests == []
    assert left(gateway) == (3.0, 0.0)
    assert gateway.ask(ONE).status_code == 200
    assert left(gateway) == (4.0, 0.0)
    assert counted(gateway, "racer_budget_refusals") == {("all",): 2.0}


def test_what_costs_nothing_is_never_refused(budgeted: Budgeted) -> None:
    """A decision, an abstention, a GET: whatever is left."""
    gateway = budgeted(hard=0.1)
    assert gateway.ask(ONE).status_code == 429
    assert gateway.route(TWO)["selected"]
    assert gateway.chat(UNANSWERABLE)["racer"]["abstained"]
    assert gateway.get("/v1/models").status_code == 200
    assert gateway.post("/route", json={"query": ONE, "execute": True}).status_code == 429


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"]
)
def test_calls_by_name_count(budgeted: Budgeted, pool: FakePool, path: str) -> None:
    """Whole and streamed."""
    gateway = budgeted(hard=2.0)
    field = {"/v1/completions": "prompt", "/v1/embeddings": "input"}.get(path, "messages")
    body = {"model": "adder", field: user(ONE) if field == "messages" else ONE}
    body |= {"max_tokens": 9} if path == "/v1/messages" else {}
    assert gateway.post(path, json=body).status_code == 200
    stream = {} if field == "input" else {"stream": True}
    assert gateway.post(path, json=body | stream).status_code == 200
    assert left(gateway) == (2.0, 0.0)
    for live in ({}, stream):
        assert "budget of all" in gateway.post(path, json=body | live).json()["error"]["message"]
    assert len(pool.requests) == 2


def test_tokens_are_reserved_by_the_limit_of_the_request(serve: Serve, pool: FakePool) -> None:
    """By `max_tokens`, else the candidate's parameter, else `limits.max_tokens`; by each choice.

    The price is a unit per token, of the input nothing.
    """
    price = {"output": 1e6, "input": 1e-6}
    own = {"adder": {"price": price}, "speller": {"price": price, "parameters": {"max_tokens": 30}}}
    gateway = serve(
        candidates=candidates(pool.url, **own, poet={"price": price}),
        fleet={"attempts": 2},
        limits={"max_tokens": 500},
        budget={"hard": 200.0},
        calibrated=False,
    )

    def status(model: str, **fields: Any) -> int:
        body = {"model": model, "messages": user(ONE), **fields}
        return gateway.post("/v1/chat/completions", json=body).status_code

    pool.say("adder", "4")
    never = gateway.post("/v1/chat/completions", json={"model": "adder", "messages": user(ONE)})
    assert "more than the whole budget of all" in error_message(never, 429)  # 2 x 500
    assert "retry-after" not in never.headers
    assert never.headers["x-should-retry"] == "false"
    assert status("adder", max_tokens=100) == 429  # and a little for the input
    assert status("adder", max_tokens=90) == 200
    assert status("adder", max_completion_tokens=40, n=3) == 429
    assert status("adder", max_completion_tokens=30, n=3) == 200
    assert status("speller") == 200
    assert status("speller", n=4) == 429
    assert left(gateway)[0] == pytest.approx(1 + 1 + 2, abs=1e-6)


def test_fifty_clients_at_two_gateways_spend_a_budget_to_its_end_and_no_further(
    serve: Serve, pool: FakePool, database: str
) -> None:
    """Of 50 at once, 20 fit; the rest is refused, at first for now and at last for good.

    Both gateways, and one that starts later, know in the end what all have spent.
    """
    environment = ENVIRONMENT | {"RACER_STORE_URL": database}
    terms: dict[str, Any] = {
        "candidates": candidates(pool.url, timeout_s=60, **{name: {"price": 1} for name in POOL}),
        "fleet": {"attempts": 1},
        "budget": {"hard": 20.5},
        "calibrated": False,
        "environment": environment,
    }
    gateways = [serve(**terms) for _ in range(2)]
    gate = threading.Event()
    pool.say("adder", "42", gate=gate)

    def ask(number: int) -> list[tuple[int, str | None, str | None]]:
        """A client that retries where it may."""
        told = list[tuple[int, str | None, str | None]]()
        body = {"model": "adder", "messages": user(f"{number}")}
        while not told or (told[-1][0] in (429, 503) and told[-1][2] is None):
            time.sleep(0.2 * bool(told))
            found = gateways[(number + len(told)) % 2].post("/v1/chat/completions", json=body)
            headers = [found.headers.get(name) for name in ("retry-after", "x-should-retry")]
            told.append((found.status_code, headers[0], headers[1]))
        return told

    with ThreadPoolExecutor(50) as threads:
        asked = [threads.submit(ask, number) for number in range(50)]
        wait_until(lambda: len(pool.requests) == 20)
        done = [each.result() for each in asked if each.done()]
        assert not done, "they go on while others are served"
        gate.set()
        told = [each.result() for each in asked]
    assert Counter(each[-1] for each in told) == {(200, None, None): 20, (429, None, "false"): 30}
    assert max(map(len, told)) > 1
    assert len(pool.requests) == 20
    for gateway in (*gateways, serve(**terms)):
        assert until(lambda gateway=gateway: left(gateway) == (20.0, 0.0), 20)
    assert sum(sum(counted(each, "racer_cost").values()) for each in gateways) == 20.0


def test_refused_requests_at_one_gateway_take_nothing_from_another(
    serve: Serve, pool: FakePool, database: str
) -> None:
    """Not those that exceed the budget, nor those that a second budget of theirs refuses.

    One gateway is asked for both in a loop, while thirty affordable requests reserve the rest at
    the other: all of them are served, and no refused one reaches a candidate.
    """
    team, line = configured_key("team", budget={"hard": 50.0})
    terms: dict[str, Any] = {
        "candidates": candidates(
            pool.url, timeout_s=60, **{name: {"price": {"output": 1e6}} for name in POOL}
        ),
        "fleet": {"attempts": 1},
        "budget": {"hard": 100.0},
        "access": {"keys": [line]},
        "calibrated": False,
        "environment": ENVIRONMENT | {"RACER_STORE_URL": database},
    }
    asked, other = (serve(**terms) for _ in range(2))
    gate, over = threading.Event(), threading.Event()
    pool.say("adder", "4", gate=gate)

    def status(gateway: Gateway, max_tokens: int, key: str = DATA_KEY) -> int:
        body = {"model": "adder", "messages": user(ONE), "max_tokens": max_tokens}
        return gateway.post("/v1/chat/completions", key, json=body).status_code

    def in_a_loop(*request: Any) -> Counter[int]:
        found = Counter[int]()
        while not over.is_set():
            found[status(asked, *request)] += 1
        return found

    with ThreadPoolExecutor(40) as threads, closing(over, gate):
        held = threads.submit(status, other, 50, team)  # all that the key has, and half of the rest
        wait_until(lambda: len(pool.requests) == 1)
        loops = [threads.submit(in_a_loop, 131), threads.submit(in_a_loop, 50, team)]
        wait_until(lambda: counted(asked, "racer_budget_refusals")[("key:team",)] >= 3)
        affordable = list[Future[int]]()
        for number in range(1, 31):
            affordable.append(threads.submit(status, other, 1))
            wait_until(lambda number=number: number < len(pool.requests) + refused(affordable))
    assert [each.result() for each in affordable] == [200] * 30
    assert held.result() == 200
    assert [set(each.result()) for each in loops] == [{429}, {429}]
    assert len(pool.requests) == 31


def refused(asked: Sequence[Future[int]]) -> int:
    """How many requests have ended, while no candidate answers."""
    return [each.done() for each in asked].count(True)


@contextmanager
def closing(*events: threading.Event) -> Generator[None]:
    """Set events at the end, so that no thread waits for them for ever."""
    try:
        yield
    finally:
        for each in events:
            each.set()


def test_a_budget_that_cannot_be_read_closes_no_other(
    budgeted: Budgeted, pool: FakePool, database: str
) -> None:
    """Its own requests are refused as long as its row is damaged, and `/readyz` says so."""
    one, entry = configured_key("one", budget={"hard": 50.0})
    other, other_entry = configured_key("other", budget={"hard": 50.0})
    gateway = budgeted(
        access={"keys": [entry, other_entry]},
        calibrated=False,
        environment=ENVIRONMENT | {"RACER_STORE_URL": database},
    )

    def status(key: str) -> int:
        body = {"model": "adder", "messages": user(ONE)}
        return gateway.post("/v1/chat/completions", key, json=body).status_code

    assert (status(one), status(other)) == (200, 200)
    assert until(lambda: left(gateway, "key:one") == (1.0, 0.0))
    with Store(database) as store, store.transaction() as session:
        session.execute(text("UPDATE limits SET used = '1e6' WHERE name = 'key:one'"))
    wait_until(lambda: status(one) == 503, 30)
    assert status(other) == 200
    assert gateway.degraded() == ["budgets"]
    assert len(pool.requests) >= 3


# Settling ---------------------------------------------------------------------------------------


def test_what_is_not_spent_is_given_back(serve: Serve, pool: FakePool) -> None:
    """After an answer, a failure and a refusal: the reservation is far larger than the cost."""
    own = {name: {"price": {"output": 1e3}} for name in POOL}
    gateway = serve(candidates=candidates(pool.url, **own), budget={"hard": 1000.0})
    pool.say("adder", "42")
    assert gateway.ask(ONE, max_tokens=100_000).status_code == 200
    assert left(gateway) == (0.002, 0.0)
    for name in POOL:
        pool.fail(name, "500")
    assert gateway.ask(ONE, max_tokens=100_000).status_code == 502
    assert left(gateway) == (0.002, 0.0)
    named = {"model": "adder", "messages": user(ONE)}
    assert gateway.post("/v1/chat/completions", json=named).status_code == 502
    assert left(gateway) == (0.002, 0.0)


@pytest.mark.parametrize("model", ["auto", "adder"])
def test_a_client_that_leaves_pays_what_had_arrived(
    serve: Serve, pool: FakePool, model: str
) -> None:
    """Of a stream; the rest of its reservation is given back."""
    own = {name: {"price": {"output": 1e3}} for name in POOL}
    gateway = serve(candidates=candidates(pool.url, **own), budget={"hard": 1000.0})
    pool.say("adder", "4" * 2_000, pause_s=0.02)
    body = {"model": model, "messages": user(ONE), "stream": True, "max_tokens": 90_000}
    with gateway.http() as client, client.stream("POST", "/v1/chat/completions", json=body) as told:
        lines = told.iter_lines()
        for _ in range(10):
            next(lines)
        assert left(gateway) == (0.0, pytest.approx(180.0, rel=0.1))
    wait_until(lambda: left(gateway)[1] == 0.0)
    assert 0.0 < left(gateway)[0] < 2.0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_pays_ratings_under_way(
    budgeted: Budgeted, pool: FakePool, stream: bool
) -> None:
    """Of the two answers of a set, by a candidate: each call costs a half."""
    rule = {"method": "weighted", "weight": "verbal", "evaluator": {"candidate": "poet"}}
    gateway = budgeted(hard=100.0, aggregation=rule)
    pool.say("adder", "7")
    pool.say("speller", "8")
    pool.rate("poet", {}, delay_s=5.0)
    pool.rated.clear()
    body = {"model": "auto", "messages": user(TWO), "stream": stream}
    with opened(gateway, CHAT, body):
        wait_until(lambda: len(pool.rated) == 2)
    wait_until(lambda: left(gateway)[1] == 0.0)
    assert left(gateway)[0] == 1.0 + 2.0 + 2 * 0.5


def test_a_replacement_that_cannot_be_paid_is_not_called(
    budgeted: Budgeted, pool: FakePool
) -> None:
    """The fallback failed, and what comes next costs more than is left beside it."""
    pool.fail("adder", "half")  # it may be charged
    terms: dict[str, Any] = {"calibrated": False, "routing": {"fallback": "adder"}}
    poor = budgeted(hard=2.5, **terms)
    assert poor.ask(ONE).status_code == 502
    assert pool.models_called() == ["adder"]
    assert left(poor) == (1.0, 0.0)
    rich = budgeted(hard=3.0, **terms)
    assert rich.ask(ONE).status_code == 200
    assert left(rich) == (3.0, 0.0)
    assert pool.models_called() == ["adder", "adder", "speller"]


# Scopes -----------------------------------------------------------------------------------------


def test_each_scope_has_a_budget_of_its_own(budgeted: Budgeted) -> None:
    """Keys, applications and pools; a request counts towards all of its budgets, or of none."""
    one, entry = configured_key("one", budget={"hard": 2.0})
    poor, poor_entry = configured_key("poor", budget={"hard": 0.5})
    other, other_entry = configured_key("other")
    gateway = budgeted(
        hard=100.0,
        access={"keys": [entry, other_entry, poor_entry]},
        applications={"bot": {"budget": {"per": "day", "hard": 3.0}}},
        pools={"small": {"candidates": ["adder"], "budget": {"hard": 4.0}}},
        calibrated=False,
        routing={"fallback": "adder"},
    )

    def ask(key: str, model: str = "auto", **racer: Any) -> int:
        body = {"model": model, "messages": user(ONE), **({"racer": racer} if racer else {})}
        return gateway.post("/v1/chat/completions", key, json=body).status_code

    assert ask(poor) == 429
    assert left(gateway) == left(gateway, "key:poor") == (0.0, 0.0)
    assert [ask(one) for _ in range(3)] == [200, 200, 429]
    assert ask(other) == 200
    assert [ask(other, application="bot") for _ in range(4)] == [200, 200, 200, 429]
    assert [ask(other, "auto/small") for _ in range(5)] == [200, 200, 200, 200, 429]
    scopes = ("key:one", "application:bot", "pool:small", "all")
    assert [left(gateway, scope)[0] for scope in scopes] == [2.0, 3.0, 4.0, 10.0]
    assert len(shown(gateway, "application:bot")["period"]) == len("2026-11-25")
    own = gateway.get("/budgets", one).json()["budgets"]
    assert [each["budget"] for each in own] == ["key:one"]
    assert gateway.get("/budgets", other).json()["budgets"] == []


# The soft limit ---------------------------------------------------------------------------------


def test_above_the_soft_limit_a_larger_alpha_decides(
    budgeted: Budgeted, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the request states none; the certificate says so, and an alert can be raised."""
    gateway = budgeted(budget={"soft": 0.5, "above_soft": 0.4})
    before = gateway.chat(TWO)["racer"]["certificate"]
    assert before["guarantee"]["alpha"] == 0.1
    racer = gateway.chat(TWO)["racer"]
    certificate = racer["certificate"]
    assert certificate["guarantee"]["alpha"] == 0.4
    assert "alpha_assumed_independent_of_query" in certificate["reasons"]
    assert certificate["holds"]
    stated = gateway.chat(TWO, {"alpha": 0.05})["racer"]["certificate"]
    assert stated["guarantee"]["alpha"] == 0.05
    assert shown(gateway)["above_soft"]
    warned = [each for each in caplog.messages if "above its soft limit" in each]
    assert len(warned) == 1
    metrics = gateway.get("/metrics").text
    assert 'racer_budget_limit{budget="all",kind="soft"} 0.5' in metrics
    assert 'racer_budget_spent{budget="all"} ' in metrics


def test_above_the_soft_limit_no_smaller_alpha_decides(budgeted: Budgeted) -> None:
    """The usual alpha is the configured one, whatever the calibration was made for."""
    gateway = budgeted(
        budget={"soft": 0.5, "above_soft": 0.2},
        calibrated=False,
        routing={"fallback": "adder", "alpha": 0.3},
    )
    assert gateway.ask(ONE).status_code == 200
    assert shown(gateway)["above_soft"]
    gateway.calibrate(alpha=0.1)
    certificate = gateway.chat(TWO)["racer"]["certificate"]
    assert certificate["guarantee"]["alpha"] == 0.3
    assert "alpha_assumed_independent_of_query" not in certificate["reasons"]


def test_above_the_soft_limit_the_cheapest_candidate_is_called(
    budgeted: Budgeted, pool: FakePool
) -> None:
    """Alone, with a void certificate; where it is the set, the certificate holds."""
    gateway = budgeted(budget={"soft": 0.5, "hard": 100.0, "above_soft": "cheapest"})
    assert gateway.chat(TWO, {"explain": True})["racer"]["certificate"]["holds"]  # all are called
    pool.requests.clear()
    racer = gateway.chat(TWO)["racer"]
    assert pool.models_called() == ["poet"]
    assert racer["selected"] == ["poet"]
    assert not racer["certificate"]["holds"]
    assert racer["certificate"]["reasons"] == ["above_budget"]
    racer = gateway.chat(TWO, {"candidates": ["adder", "speller"]})["racer"]
    assert racer["selected"] == ["adder"]
    racer = gateway.chat(ONE, {"candidates": ["adder", "speller"]})["racer"]
    assert racer["selected"] == ["adder"]
    assert racer["certificate"]["holds"]
    assert gateway.chat(UNANSWERABLE)["racer"]["abstained"]


@pytest.mark.parametrize("stream", [False, True])
def test_above_the_soft_limit_the_next_cheapest_candidate_replaces_one(
    budgeted: Budgeted, pool: FakePool, stream: bool
) -> None:
    """It alone, instead of the set of the candidates that are left."""
    gateway = budgeted(budget={"soft": 0.5, "hard": 100.0, "above_soft": "cheapest"})
    assert gateway.ask(TWO).status_code == 200
    pool.requests.clear()
    pool.fail("poet", "500")
    assert gateway.ask(TWO, stream=stream).status_code == 200
    assert pool.models_called() == ["adder", "poet"]


@pytest.mark.parametrize("above_soft", [0.3, "cheapest"])
def test_rounds_reserve_all_that_they_may_call(
    serve: Serve, talking: FakePool, above_soft: float | str
) -> None:
    """All five candidates, of which two agree and suffice; the rest is given back.

    Above the soft limit the promise has the larger alpha, or the cheapest candidate answers.
    """
    given = same_answer.configured(
        talking,
        budget={"soft": 1, "hard": 6.5, "above_soft": above_soft},
        fleet={"attempts": 1},
    )
    for each in given["candidates"]:
        each["price"] = 0.9 if each["name"] == "eve" else 1.0
    gateway = serve(**given)
    same_answer.activate(gateway)
    for name in same_answer.NAMES:
        talking.say(name, "0")
    racer = gateway.chat("question 1")["racer"]
    assert racer["certificate"]["holds"]
    assert racer["certificate"]["guarantee"]["alpha"] == 0.02
    assert left(gateway) == (len(racer["selected"]), 0.0) == (2.0, 0.0)
    response = gateway.ask("question 2")
    if above_soft == "cheapest":
        racer = response.json()["racer"]
        assert racer["selected"] == ["eve"]
        assert racer["certificate"]["reasons"][-1] == "above_budget"
    else:
        assert error_message(response, 429).startswith("this request may cost up to 4.9 USD")
        racer = gateway.chat("question 3", {"candidates": ["ada", "bob", "cyd"]})["racer"]
        assert racer["certificate"]["guarantee"]["alpha"] == 0.3
        assert "alpha_assumed_independent_of_query" in racer["certificate"]["reasons"]


# Configuration ----------------------------------------------------------------------------------


def test_a_reload_takes_over_budgets(budgeted: Budgeted, pool: FakePool, artifact: Path) -> None:
    """A raised limit holds at once, also for what was just denied; what was spent stays spent."""
    gateway, gate = budgeted(hard=1.5), threading.Event()
    assert gateway.config is not None
    own = {name: {"price": price} for name, price in CALLS.items()}
    patient = candidates(pool.url, timeout_s=60, **own)
    terms = {"candidates": patient, "fleet": {"attempts": 1}}
    pool.say("adder", "42", gate=gate)
    with ThreadPoolExecutor(1) as threads, closing(gate):
        held = threads.submit(gateway.ask, ONE)
        wait_until(lambda: len(pool.requests) == 1)
        pool.say("adder", "42")
        assert gateway.ask(ONE).headers["retry-after"] == "10"
        configure(gateway.config.parent, artifact, pool.url, budget={"hard": 2.5}, **terms)
        assert gateway.post("/admin/reload", ADMIN_KEY).json() == {"changed": ["budget.hard"]}
        assert gateway.ask(ONE).status_code == 200
    assert held.result().status_code == 200
    assert left(gateway)[0] == 2.0
    configure(gateway.config.parent, artifact, pool.url, **terms)
    assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
    assert gateway.ask(ONE).status_code == 200
    assert gateway.get("/budgets", ADMIN_KEY).json()["budgets"] == []


def test_a_budget_of_a_gateway_without_a_store_needs_a_restart(
    tmp_path: Path, pool: FakePool
) -> None:
    """It counts in the store, which a start opens."""
    own = {name: {"price": price} for name, price in CALLS.items()}
    terms: dict[str, Any] = {
        "schema_version": 1,
        "port": 0,
        "candidates": candidates(pool.url, **own),
    }
    path = tmp_path / "racer.yaml"
    path.write_text(json.dumps(terms), encoding="utf-8")
    with running(path, ENVIRONMENT) as gateway:
        assert gateway.get("/budgets", ADMIN_KEY).status_code == 404
        path.write_text(json.dumps(terms | {"budget": {"hard": 1}}), encoding="utf-8")
        message = error_message(gateway.post("/admin/reload", ADMIN_KEY), 409)
        assert message.startswith("a budget needs the store")
