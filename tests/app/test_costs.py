"""Costs of requests: what is booked is what candidates report, times the configured prices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from racer_core.prices import as_text
from tests.kit.accounts import PRICES, UsageReport, counted, owed
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    candidates,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

PICO = 10**12


OWN = {name: {"price": dict(price)} for name, price in PRICES.items()}


@pytest.fixture
def priced(shared: Shared, pool: FakePool) -> Gateway:
    """The shared gateway whose candidates have prices."""
    return shared(candidates=candidates(pool.url, **OWN)).gateway


@pytest.fixture
def fresh(serve: Serve, pool: FakePool) -> Gateway:
    """Another one, for a test of what a gateway counted or learned since its start."""
    return serve(candidates=candidates(pool.url, **OWN))


def exactly(cost: float) -> Fraction:
    """A number of the interface, which has all twelve decimals."""
    return Fraction(round(cost * PICO), PICO)


def record_of(gateway: Gateway, decision_id: str) -> dict[str, Any]:
    """The stored decision."""
    response = gateway.get(f"/decisions/{decision_id}", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return response.json()


FORMATS: Mapping[str, str] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/messages": "messages",
}


def asked(
    gateway: Gateway, text: str, path: str = "/v1/chat/completions", **fields: Any
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The ``racer`` object of an answer, and the headers; no call is cancelled."""
    if path == "/route":
        response = gateway.post(path, json={"query": text, "execute": True})
        return response.json(), response.headers
    name = FORMATS[path]
    body = {"model": "auto", name: user(text) if name == "messages" else text}
    body |= {"max_tokens": 9} if path == "/v1/messages" else {}
    response = gateway.post(path, json=body | {"racer": {"explain": True}} | fields)
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        return response.json()["racer"], response.headers
    lines = [each[6:] for each in response.text.splitlines() if each.startswith("data: {")]
    racers = [
        found["racer"]
        for event in map(json.loads, lines)
        for found in (event, *event.values())
        if isinstance(found, dict) and "racer" in found
    ]
    return racers[-1], response.headers


def test_what_is_booked_is_what_is_reported(fresh: Gateway, pool: FakePool) -> None:
    """180 requests: sets of one and two, every API format, whole and streamed."""
    rng = np.random.default_rng(20261203)
    reported, answered, recorded = Fraction(0), Fraction(0), Fraction(0)
    of_calls: Counter[str] = Counter()
    kinds = [("/route", False), *((path, live) for path in FORMATS for live in (False, True))]
    for number in range(180):
        path, is_stream = kinds[number % len(kinds)]
        text = f"{(ONE, TWO)[int(rng.integers(2))]} {number}"
        told = {name: UsageReport.drawn(rng) for name in POOL}
        for name, each in told.items():
            pool.say(name, "42", fields={"usage": each.usage(path)})
        racer, headers = asked(fresh, text, path, **({"stream": True} if is_stream else {}))
        called = [each["candidate"] for each in racer["calls"] if "ms" in each]
        assert len(called) == len(racer["calls"])
        assert racer["cost"]["estimated"] is False
        cost = exactly(racer["cost"]["cost"])
        if not is_stream:
            assert headers["x-racer-cost"] == f"{as_text(int(cost * PICO))} USD"
        stored = record_of(fresh, racer["decision_id"])["cost"]
        assert stored == racer["cost"]
        reported += sum(told[name].owed(name) for name in called)
        answered += cost
        recorded += sum(owed(each["candidate"], each) for each in stored["calls"])
        of_calls.update(called)
    assert reported == answered == recorded
    assert of_calls["adder"] > of_calls["speller"] > 0
    total = sum(counted(fresh, "racer_cost").values())
    assert total == pytest.approx(float(reported), rel=1e-12)


def test_calls_by_name_are_booked(fresh: Gateway, pool: FakePool) -> None:
    """Whole, streamed and embeddings; whole answers say it in a header."""
    rng = np.random.default_rng(20261204)
    told = [UsageReport.drawn(rng) for _ in range(3)]
    path = "/v1/chat/completions"
    body = {"model": "speller", "messages": user(ONE)}
    pool.say("speller", "42", fields={"usage": told[0].usage(path)})
    whole = fresh.post(path, json=body)
    assert whole.headers["x-racer-cost"] == f"{as_text(int(told[0].owed('speller') * PICO))} USD"
    assert "racer" not in whole.json()
    pool.say("speller", "42", fields={"usage": told[1].usage(path)})
    assert "[DONE]" in fresh.post(path, json=body | {"stream": True}).text
    embedded = fresh.post("/v1/embeddings", json={"model": "speller", "input": ["a", "b"]})
    tokens = {"input_tokens": 2, "cached_tokens": 0, "output_tokens": 0, "calls": 1}
    assert embedded.headers["x-racer-cost"] == f"{as_text(int(owed('speller', tokens) * PICO))} USD"
    due = told[0].owed("speller") + told[1].owed("speller") + owed("speller", tokens)
    assert counted(fresh, "racer_cost") == {("", "speller", ""): pytest.approx(float(due))}
    assert counted(fresh, "racer_alternative_cost") == {}


def test_what_was_not_called_is_estimated(fresh: Gateway, pool: FakePool) -> None:
    """The same input, and the mean output of that candidate's earlier answers."""
    path = "/v1/chat/completions"
    for name, written in (("adder", 100), ("speller", 20), ("speller", 41), ("poet", 7)):
        pool.say(name, "42", fields={"usage": UsageReport(50, 0, written).usage(path)})
        assert fresh.post(path, json={"model": name, "messages": user("?")}).status_code == 200
    # Embeddings write nothing, and are no answers to learn from.
    fresh.post("/v1/embeddings", json={"model": "speller", "input": ["a"]})
    pool.say("adder", "42", fields={"usage": UsageReport(1_000, 400, 300).usage(path)})
    racer, _ = asked(fresh, ONE)
    assert [each["candidate"] for each in racer["calls"]] == ["adder"]
    alternatives = racer["cost"]["alternatives"]
    own = UsageReport(1_000, 400, 300).owed("adder")
    # The mean of 20 and 41 is 30.5, of which the even neighbour counts.
    rest = UsageReport(1_000, 0, 30).owed("speller") + UsageReport(1_000, 0, 7).owed("poet")
    assert alternatives["everyone"] == {"cost": float(own + rest), "estimated": True}
    best = {"candidate": "adder", "cost": float(own), "estimated": False}
    assert alternatives["best_single"] == best
    assert racer["cost"]["cost"] == float(own)
    assert counted(fresh, "racer_alternative_cost") == {
        ("everyone", "", ""): pytest.approx(float(own + rest)),
        ("best_single", "", ""): pytest.approx(float(own)),
    }


def test_abstaining_costs_nothing_and_saves_all(fresh: Gateway, pool: FakePool) -> None:
    """What everyone would have cost is known once each has answered some request."""
    racer, headers = asked(fresh, UNANSWERABLE)
    assert (racer["selected"], racer["cost"]["cost"], headers["x-racer-cost"]) == ([], 0.0, "0 USD")
    assert "everyone" not in racer["cost"]["alternatives"]
    path = "/v1/chat/completions"
    for name in POOL:
        assert fresh.post(path, json={"model": name, "messages": user("?")}).status_code == 200
    racer, _ = asked(fresh, UNANSWERABLE)
    assert racer["cost"]["alternatives"]["everyone"]["cost"] > PRICES["poet"]["call"]


def test_usage_that_is_not_reported_is_estimated_and_marked(
    priced: Gateway, pool: FakePool
) -> None:
    """The input by what the other candidate reports, the output by four characters a token."""
    pool.say(
        "adder", "seventy", fields={"usage": UsageReport(90, 0, 5).usage("/v1/chat/completions")}
    )
    pool.say("speller", "seventy-seven", fields={"usage": None})
    racer, headers = asked(priced, TWO)
    assert racer["cost"]["estimated"] is True
    assert headers["x-racer-cost"].endswith(" USD; estimated")
    by_name = {each["candidate"]: each for each in racer["cost"]["calls"]}
    assert not by_name["adder"]["estimated"]
    guessed = by_name["speller"]
    assert (guessed["input_tokens"], guessed["output_tokens"]) == (90, 4)
    assert guessed["estimated"]
    assert exactly(guessed["cost"]) == owed("speller", guessed)


def test_a_failed_call_costs_only_what_it_may_have_used(priced: Gateway, pool: FakePool) -> None:
    """A status of an error costs nothing; an answer that cannot be read costs its input."""
    pool.say("speller", "42", fields={"usage": UsageReport(60, 0, 2).usage("/v1/chat/completions")})
    pool.fail("adder", "500")
    racer, _ = asked(priced, TWO)
    assert [each["candidate"] for each in racer["cost"]["calls"]] == ["speller"]
    assert racer["cost"]["estimated"] is False
    pool.fail("adder", "half")
    racer, _ = asked(priced, TWO)
    broken, *others = [each for each in racer["cost"]["calls"] if each["candidate"] == "adder"]
    assert broken == {
        "candidate": "adder", "input_tokens": 60, "cached_tokens": 0, "output_tokens": 0,
        "calls": 1, "estimated": True,
        "cost": float(owed("adder", broken)), "seconds": broken["seconds"],
    }  # fmt: skip
    assert len(others) <= 1, "a retry is a call of its own"


def test_a_client_that_leaves_pays_what_had_arrived(priced: Gateway, pool: FakePool) -> None:
    """Of a stream one token an event; of calls that had not answered, their input alone."""
    pool.say("adder", "4" * 1_000, pause_s=0.05)
    body = {"model": "auto", "messages": user(ONE), "stream": True}
    with priced.http() as client, client.stream("POST", "/v1/chat/completions", json=body) as told:
        decision = told.headers["x-racer-decision-id"]
        for number, _ in enumerate(told.iter_lines()):
            if number > 10:
                break
    found: dict[str, Any] = {}

    def is_stored() -> bool:
        response = priced.get(f"/decisions/{decision}", ADMIN_KEY)
        found.update(response.json() if response.status_code == 200 else {})
        return bool(found)

    wait_until(is_stored)
    (call,) = found["cost"]["calls"]
    assert found["outcome"] == "cancelled"
    assert 5 <= call["output_tokens"] < 1_000
    assert call["input_tokens"] > 0
    assert call["estimated"] is True
    assert exactly(found["cost"]["cost"]) == owed("adder", call)


def test_without_prices_there_is_no_word_of_costs(gateway: Gateway) -> None:
    """Neither in answers and their headers, nor in records, nor a series in `/metrics`."""
    racer, headers = asked(gateway, ONE)
    assert "cost" not in racer
    assert not [name for name in headers if "cost" in name]
    assert "cost" not in record_of(gateway, racer["decision_id"])
    assert not [name for name in ("racer_cost", "racer_alternative_cost") if counted(gateway, name)]


def test_an_evaluator_of_the_pool_is_paid(shared: Shared, pool: FakePool) -> None:
    """Its calls stand beside those of the candidates; calling everyone would not have needed it."""
    rule = {"method": "weighted", "weight": "verbal", "evaluator": {"candidate": "poet"}}
    own = {name: {"price": dict(price)} for name, price in PRICES.items()}
    gateway = shared(candidates=candidates(pool.url, **own), aggregation=rule).gateway
    pool.say("adder", "7", fields={"usage": UsageReport(60, 0, 2).usage("/v1/chat/completions")})
    pool.say("speller", "8", fields={"usage": UsageReport(60, 0, 2).usage("/v1/chat/completions")})
    cost = asked(gateway, TWO)[0]["cost"]
    rated = cost["calls"][-1]
    assert (rated["candidate"], rated["calls"]) == ("poet", 2)
    assert (rated["input_tokens"], rated["output_tokens"]) == (60, 2)
    assert exactly(cost["cost"]) == sum(owed(each["candidate"], each) for each in cost["calls"])
    everyone = sum(UsageReport(60, 0, 2).owed(name) for name in POOL)
    assert cost["alternatives"]["everyone"] == {"cost": float(everyone), "estimated": True}


def test_own_accelerators_are_paid_by_the_second(shared: Shared, pool: FakePool) -> None:
    """The time of the call, times the share of the accelerators; tokens cost nothing."""
    price = {"gpu_second": 0.0004, "gpus": 0.25}
    gateway = shared(candidates=candidates(pool.url, price=price), currency="credits").gateway
    pool.say("adder", "42", delay_s=0.2)
    racer, headers = asked(gateway, ONE)
    (call,) = racer["cost"]["calls"]
    assert 0.2 <= call["seconds"] < 5.0
    due = Fraction(round(call["seconds"] * 10**6), 10**6) * Fraction(4, 10_000) / 4
    assert abs(exactly(call["cost"]) - due) <= Fraction(1, 2 * PICO)
    assert racer["cost"]["currency"] == "credits"
    assert headers["x-racer-cost"].endswith(" credits")


def test_applications_and_pools_are_counted_apart(shared: Shared, pool: FakePool) -> None:
    """By the names of the configuration; a client can make no series."""
    gateway = shared(
        calibrated=False,
        candidates=candidates(pool.url, price=0.5),
        applications={"shop": {}, "help": {}},
        pools={"small": {"candidates": list(POOL[:2])}},
    ).gateway
    for application, model in (("shop", "auto"), ("help", "auto/small"), ("help", "auto/small")):
        answer = gateway.ask("Hello", {"application": application}, model=model)
        assert answer.status_code == 200, answer.text
    gateway.ask("Hello", {"application": "nonsense"})
    assert counted(gateway, "racer_cost") == {
        ("shop", "adder", ""): 0.5,
        ("help", "adder", "small"): 1.0,
    }


def test_a_reload_takes_over_new_prices(serve: Serve, pool: FakePool) -> None:
    """Requests cost what the prices in force say; prices can come and go."""
    gateway = serve(candidates=candidates(pool.url, price=0.5))
    assert asked(gateway, ONE)[1]["x-racer-cost"] == "0.5 USD"
    assert gateway.config is not None
    text = gateway.config.read_text(encoding="utf-8")
    gateway.config.write_text(text.replace("price: 0.5", "price: {call: 0.25}"), encoding="utf-8")
    assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
    assert asked(gateway, ONE)[1]["x-racer-cost"] == "0.25 USD"
    gateway.config.write_text(text.replace("price: 0.5", "price:"), encoding="utf-8")
    assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
    assert "x-racer-cost" not in asked(gateway, ONE)[1]


def test_samples_are_counted_apart(serve: Serve, pool: FakePool) -> None:
    """The calls that complete a sampled request are not its client's."""
    gateway = serve(candidates=candidates(pool.url, price=0.5), watching={"shadow_rate": 1.0})
    racer, _ = asked(gateway, ONE)
    assert racer["cost"]["cost"] == 0.5
    others = {("", "speller"): 0.5, ("", "poet"): 0.5}
    assert until(lambda: counted(gateway, "racer_shadow_cost") == others, 30.0)
    assert counted(gateway, "racer_cost") == {("", "adder", ""): 0.5}


def test_a_cached_answer_costs_nothing(shared: Shared, pool: FakePool) -> None:
    """It makes no call; what everyone would have cost for it is still an estimate."""
    gateway = shared(
        candidates=candidates(pool.url, price=0.5), answer_cache={"temperature": "any"}
    ).gateway
    body = {"model": "auto", "messages": user(ONE)}
    first, again = [gateway.post("/v1/chat/completions", json=body) for _ in range(2)]
    assert [each.headers["x-racer-cost"] for each in (first, again)] == ["0.5 USD", "0 USD"]
    cost = again.json()["racer"]["cost"]
    assert (cost["cost"], cost["calls"]) == (0.0, [])
    assert cost["alternatives"]["best_single"] == {
        "candidate": "adder", "cost": 0.5, "estimated": True,
    }  # fmt: skip
    assert counted(gateway, "racer_cost") == {("", "adder", ""): 0.5}
