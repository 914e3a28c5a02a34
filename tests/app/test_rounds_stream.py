"""Streams under the promise `same_answer`: a named reference called alone is passed through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit.case import Shared
from tests.kit.connections import CHAT, opened
from tests.kit.gateway import ADMIN_KEY, Gateway, Serve, user
from tests.kit.same_answer import NAMES, activate, configured
from tests.kit.upstream import FakePool, usage_of
from tests.kit.waiting import until, wait_until

EVE = {"reference": "eve"}
OTHERS = NAMES[:-1]
TEXT = "abcdef"


@pytest.fixture
def certified(shared: Shared, pool: FakePool) -> Gateway:
    """A promise that is calibrated, many comments, and candidates of which no two agree."""
    case = shared(**configured(pool, limits={"comment_every_s": 0.05}))
    if case.route("question 1")["certificate"]["reasons"] == ["not_calibrated"]:
        activate(case.gateway)
    for number, name in enumerate(OTHERS):
        pool.say(name, str(number))
    return case.gateway


def decision(gateway: Gateway, decision_id: str) -> dict[str, Any]:
    """What is stored of a decision, once it is."""
    path = f"/decisions/{decision_id}"
    wait_until(lambda: gateway.get(path, ADMIN_KEY).status_code == 200)
    return gateway.get(path, ADMIN_KEY).json()


def data(lines: list[str]) -> list[dict[str, Any]]:
    """The events of a stream."""
    return [json.loads(each[6:]) for each in lines if each.startswith("data: {")]


def text_of(events: list[dict[str, Any]]) -> str:
    """The text of chunks."""
    choices = [choice for each in events for choice in each.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_the_reference_passes_letter_by_letter(certified: Gateway, pool: FakePool) -> None:
    """Comments, then letters while it still answers; certificate, usage and record are whole."""
    pool.say("ada", "0", delay_s=0.4)
    pool.say("eve", TEXT, pause_s=0.1)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    body["stream_options"] = {"include_usage": True}
    lines: list[str] = []
    with certified.http() as client, client.stream("POST", CHAT, json=body) as response:
        assert response.headers["x-racer-guarantee"] == "pending"
        for line in response.iter_lines():
            lines.append(line)
            if len(events := data(lines)) == 2 and "racer" not in events[-1]:
                assert pool.running == ["eve"]
    first = next(place for place, line in enumerate(lines) if line.startswith("data: {"))
    assert sum(line.startswith(": 5 candidates") for line in lines[:first]) >= 2
    events = data(lines)
    assert text_of(events) == TEXT
    assert {each["model"] for each in events} == {"eve"}
    (racer,) = [each["racer"] for each in events if "racer" in each]
    certificate = racer["certificate"]
    made = certificate["rounds"]
    assert (certificate["holds"], made["stopped"], made["rounds"], made["calls"]) == (
        True, "all_called", 2, 5,
    )  # fmt: skip
    assert racer["served_by"] == "eve"
    assert {each["candidate"] for each in racer["calls"] if "ms" in each} == set(NAMES)
    assert len(racer["usage"]) == 5
    tokens = sum(usage_of(text)["total_tokens"] for text in (*"0123", TEXT))
    assert events[-1]["usage"]["total_tokens"] == tokens
    stored = decision(certified, racer["decision_id"])
    assert (stored["outcome"], stored["served_by"], stored["holds"]) == ("answered", "eve", True)
    assert set(stored["answered"]) == set(stored["selected"]) == set(NAMES)
    assert stored["sequence"]["made"]["stopped"] == "all_called"
    verified = certified.post(f"/decisions/{racer['decision_id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
    responses = {"model": "auto", "input": "how many?", "stream": True, "racer": EVE}
    *_, last = data(certified.post("/v1/responses", json=responses).text.splitlines())
    assert last["response"]["usage"]["input_tokens"] == 5 * 10
    assert last["response"]["racer"]["certificate"]["rounds"]["calls"] == 5


def test_a_certified_answer_needs_no_reference(certified: Gateway, pool: FakePool) -> None:
    """The others agree: their answer is sent as a merged one, and the reference is not called."""
    for name in OTHERS:
        pool.say(name, "7")
    asked = {**EVE, "alpha": 0.5}
    events = data(certified.ask("how many?", asked, stream=True).text.splitlines())
    assert text_of(events) == "7"
    assert events[-1]["racer"]["certificate"]["rounds"]["stopped"] == "certified"
    assert "eve" not in pool.models_called()
    skipped = [each["candidate"] for each in events[-1]["racer"]["calls"] if "skipped" in each]
    assert skipped == ["eve"]
    leader = certified.ask("how many?", {"stream": "leader"}, stream=True)
    assert "leader_streamed" in leader.text


@pytest.mark.parametrize("fault", ["500", "stream_empty"])
def test_a_reference_that_fails_before_its_first_letter(
    certified: Gateway, pool: FakePool, fault: str
) -> None:
    """The vote of the others, void, as where nothing streams."""
    pool.fail("eve", fault)
    whole = certified.chat("how many?", EVE)
    events = data(certified.ask("how many?", EVE, stream=True).text.splitlines())
    racer = events[-1]["racer"]
    assert racer["certificate"]["reasons"] == whole["racer"]["certificate"]["reasons"]
    assert "reference_unavailable" in racer["certificate"]["reasons"]
    assert racer["certificate"]["rounds"] == whole["racer"]["certificate"]["rounds"]
    assert text_of(events) == whole["choices"][0]["message"]["content"] in "0123"
    stored = decision(certified, racer["decision_id"])
    assert (stored["outcome"], stored["holds"]) == ("answered", False)
    assert set(stored["answered"]) == set(OTHERS)


def test_a_reference_that_breaks_off_or_whose_client_leaves(
    certified: Gateway, pool: FakePool
) -> None:
    """An error event; either way one record with the answers that arrived before."""
    pool.say("eve", TEXT, fault="cut")
    events = data(certified.ask("how many?", EVE, stream=True).text.splitlines())
    assert text_of(events) == TEXT
    assert "error" in events[-1]
    stored = decision(certified, events[0]["id"])
    assert (stored["outcome"], stored["holds"], set(stored["answered"])) == (
        "failed", False, set(OTHERS),
    )  # fmt: skip
    made = stored["sequence"]["made"]
    assert (made["stopped"], made["failed"]) == ("broken_off", ["eve"])
    verified = certified.post(f"/decisions/{stored['decision_id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
    pool.say("eve", "a long answer " * 20, pause_s=0.05)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    connection = opened(certified, CHAT, body)
    received = b""
    while b"data: {" not in received:
        received += connection.recv(4096)
    connection.close()
    assert until(lambda: pool.cancelled == ["eve"] and not pool.running)
    first = received.partition(b"data: ")[2].partition(b"\n")[0]
    stored = decision(certified, json.loads(first)["id"])
    assert (stored["outcome"], set(stored["answered"])) == ("cancelled", set(OTHERS))
    assert set(stored["selected"]) == set(NAMES)


def test_a_client_that_leaves_while_rounds_run(certified: Gateway, pool: FakePool) -> None:
    """Before the reference is called: one record, and no call goes on."""
    for name in OTHERS:
        pool.say(name, "7", delay_s=30)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    connection = opened(certified, CHAT, body)
    received = b""
    while b": 5 candidates" not in received:
        received += connection.recv(4096)
    decision_id = received.partition(b"x-racer-decision-id: ")[2].partition(b"\r\n")[0].decode()
    connection.close()
    assert until(lambda: sorted(pool.cancelled) == sorted(OTHERS) and not pool.running)
    stored = decision(certified, decision_id)
    assert (stored["outcome"], stored["answered"]) == ("cancelled", [])


def test_a_reference_that_is_cheapest_alone_is_a_live_stream(serve: Serve, pool: FakePool) -> None:
    """It is the first round: an early failure leaves the vote of the others."""
    given = configured(pool)
    for each in given["candidates"]:
        each["price"] = 0.01 if each["name"] == "eve" else 1.0
    gateway = serve(**given)
    activate(gateway)
    for name in NAMES:
        pool.say(name, "7")
    response = gateway.ask("how many?", EVE, stream=True)
    assert response.headers["x-racer-served-by"] == "eve"
    made = data(response.text.splitlines())[-1]["racer"]["certificate"]["rounds"]
    assert (made["calls"], made["first_round"], pool.models_called()) == (1, ["eve"], ["eve"])
    pool.fail("eve", "500")
    events = data(gateway.ask("how many?", EVE, stream=True).text.splitlines())
    assert text_of(events) == "7"
    assert "reference_unavailable" in events[-1]["racer"]["certificate"]["reasons"]
