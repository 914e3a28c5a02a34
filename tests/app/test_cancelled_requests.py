"""Cancelled requests: every end stores one decision and charges the cost."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest

from app.answering.token_usage import TokenMeter, prompt_tokens
from app.routing.service import RoutingService
from app.settings import key_format
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.format import ApiFormat
from app.wire.messages.format import Messages
from app.wire.responses import Responses
from tests.kit.accounts import series
from tests.kit.case import Metrics, Shared
from tests.kit.connections import CHAT, LONG, left, opened
from tests.kit.gateway import ADMIN_KEY, ONE, POOL, TWO, UNANSWERABLE, Gateway, Serve, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

KEYS = [f"key-number-{number}-of-the-tests" for number in range(12)]
Kept = list[dict[str, Any]]


def stored_decisions(gateway: Gateway, key: str) -> Kept:
    """What is remembered of a key's decisions, once something is."""
    path = gateway.settings.store.removeprefix("sqlite:///")

    def documents() -> Kept:
        with closing(sqlite3.connect(path)) as store:
            found = store.execute("SELECT document FROM decisions WHERE key = ?", [key])
            return [json.loads(document) for (document,) in found]

    wait_until(lambda: bool(documents()))
    return documents()


def answers_of_speller(gateway: Gateway) -> float:
    """As many as the gateway has read to their end, which is later than they were sent."""
    counted = series(gateway.get("/metrics", ADMIN_KEY).text)
    labels = [("candidate", "speller"), ("outcome", "ok")]
    return counted.get(f"racer_candidate_calls_total{labels}", 0.0)


def spent(gateway: Gateway, key: str) -> bool:
    """Whether the key has used its tokens."""
    return gateway.get("/v1/models", key).status_code == 429


@pytest.fixture
def limited(shared: Shared) -> Gateway:
    """A gateway with keys that may use five tokens a minute: less than a prompt has."""
    salt = key_format.new_salt()
    keys = [
        {"name": key, "hash": key_format.format_hash(key, salt), "tokens_per_minute": 5}
        for key in KEYS
    ]
    return shared(access={"keys": keys}).gateway


LEFT: list[tuple[str, dict[str, Any], list[str], bool]] = [  # path, body, called, in mid-stream
    (CHAT, {"messages": user(ONE)}, ["adder"], False),
    (CHAT, {"messages": user(TWO)}, ["adder", "speller"], False),
    (CHAT, {"messages": user(TWO), "stream": True}, ["adder", "speller"], False),
    (CHAT, {"messages": user(ONE), "stream": True}, ["adder"], False),
    (CHAT, {"messages": user(ONE), "stream": True}, ["adder"], True),
    ("/v1/responses", {"input": ONE, "stream": True}, ["adder"], True),
    (CHAT, {"model": "adder", "messages": user(ONE), "stream": True}, ["adder"], True),
]


@pytest.mark.parametrize("number", range(len(LEFT)))
def test_a_request_that_its_client_leaves_is_charged_and_recorded(
    limited: Gateway, pool: FakePool, number: int
) -> None:
    """The prompt at least; and the decision, so that patience is not what is measured."""
    path, body, names, has_begun = LEFT[number]
    key = KEYS[number]
    for name in names:
        if has_begun:
            pool.say(name, LONG, pause_s=0.05)
        else:
            pool.say(name, "7", delay_s=30)
    assert not spent(limited, key)
    connection = opened(limited, path, {"model": "auto", **body}, key)
    assert not has_begun or connection.recv(12).startswith(b"HTTP/1.1 200")
    assert left(pool, connection, names)
    wait_until(lambda: spent(limited, key))
    if "model" not in body:
        [note] = stored_decisions(limited, key)
        assert (note["outcome"], note["selected"]) == ("cancelled", names)
        assert (note["served_by"], note["answered"]) == (None, [])


def test_answers_that_were_there_are_charged_too(limited: Gateway, pool: FakePool) -> None:
    """One of two had answered when the client left."""
    pool.say("adder", "7", delay_s=30)
    before = answers_of_speller(limited)
    connection = opened(limited, CHAT, {"model": "auto", "messages": user(TWO)}, KEYS[7])
    wait_until(lambda: answers_of_speller(limited) == before + 1)
    assert left(pool, connection, ["adder"])
    [note] = stored_decisions(limited, KEYS[7])
    assert (note["outcome"], note["answered"]) == ("cancelled", ["speller"])


def test_a_disconnect_during_the_surviving_pool_lookup_is_recorded(
    gateway: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer has arrived, and no other candidate has been called."""
    looked = threading.Event()

    async def never(*_: Any) -> tuple[str, ...]:
        looked.set()
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(RoutingService, "without", never)
    pool.fail("adder", "400")
    before = _decisions(gateway)
    body = {"model": "auto", "messages": user(ONE), "stream": True}
    connection = opened(gateway, CHAT, body)
    assert looked.wait(30)
    connection.close()
    assert _more_decisions(gateway, before) == ["cancelled"]


def test_leaving_waits_for_no_store(serve: Serve, pool: FakePool) -> None:
    """Calls are cancelled while the store is locked; the decision is written afterwards."""
    gateway = serve()
    for name in ("adder", "speller"):
        pool.say(name, "7", delay_s=30)
    with closing(sqlite3.connect(gateway.settings.store.removeprefix("sqlite:///"))) as store:
        store.execute("BEGIN EXCLUSIVE")
        connection = opened(gateway, CHAT, {"model": "auto", "messages": user(TWO)})
        assert left(pool, connection, ["adder", "speller"])
    assert [note["outcome"] for note in stored_decisions(gateway, "data")] == ["cancelled"]


ENDS: list[Any] = [
    pytest.param(ONE, {}, None, ["answered"], id="answered"),
    pytest.param(UNANSWERABLE, {}, None, ["answered"], id="refused"),
    pytest.param(UNANSWERABLE, {"on_abstain": "error"}, None, ["failed"], id="error"),
    pytest.param(ONE, {}, "400", ["failed"], id="no answer"),
    pytest.param(ONE, {}, "cut", ["failed"], id="cut"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize(("text", "racer", "fault", "outcomes"), ENDS)
def test_every_outcome_stores_one_decision(
    gateway: Gateway,
    pool: FakePool,
    text: str,
    racer: dict[str, Any],
    fault: str | None,
    outcomes: list[str],
    stream: bool,
) -> None:
    """Failed requests, too: a decision does not depend on whether a candidate could answer."""
    for name in ("adder", "speller", "poet"):
        if fault is not None:
            pool.fail(name, fault if stream or fault != "cut" else "half")
    before = _decisions(gateway)
    gateway.ask(text, racer, stream=stream)
    assert _more_decisions(gateway, before) == outcomes


def _decisions(gateway: Gateway) -> dict[str, str]:
    """How each decision ended, by its id."""
    with closing(sqlite3.connect(gateway.settings.store.removeprefix("sqlite:///"))) as store:
        found = store.execute("SELECT id, document FROM decisions")
        return {name: json.loads(document)["outcome"] for name, document in found}


def _more_decisions(gateway: Gateway, before: dict[str, str]) -> list[str]:
    wait_until(lambda: len(_decisions(gateway)) > len(before))
    return [each for name, each in _decisions(gateway).items() if name not in before]


# Counting -------------------------------------------------------------------------------------


def test_a_prompt_is_a_token_for_every_four_letters() -> None:
    """Of all that is read, tools included; a picture is no text."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}
    text = {"type": "text", "text": "b" * 391}
    parts = {"messages": [{"role": "user", "content": [picture, text]}]}
    assert prompt_tokens(parts) == (len("user") + len("text") + 391 + 3) // 4
    assert prompt_tokens({"prompt": "a" * 9, "user": "b" * 400}) == 3
    assert prompt_tokens({"input": "a" * 8, "instructions": "b" * 4, "temperature": 0}) == 3
    assert prompt_tokens({"prompt": None}) == 0


def _piece(api_format: ApiFormat, text: str) -> dict[str, Any]:
    """An event that says a text."""
    match api_format:
        case Chat():
            return {"choices": [{"index": 0, "delta": {"content": text}}]}
        case Completions():
            return {"choices": [{"index": 0, "text": text}]}
        case _:
            return {"type": "response.output_text.delta", "delta": text}


@pytest.mark.parametrize(
    "api_format",
    [Chat(), Completions(), Responses(), Messages()],
    ids=lambda each: type(each).__name__,
)
def test_a_stream_counts_events_or_letters_until_its_candidate_counts(
    api_format: ApiFormat,
) -> None:
    """A token an event; four letters a token where events are long; the candidate's count wins."""
    counts: list[int] = []
    meter = TokenMeter(api_format, {"prompt": "a" * 40})
    with meter.charging(counts.append):
        for text in ("", "a", "b", "c"):
            meter.count(_piece(api_format, text))
        assert meter.tokens == 10 + 3
        meter.count(_piece(api_format, "d" * 397))
        assert meter.tokens == 10 + 100
        usage: dict[str, Any] = {"usage": {"total_tokens": 77}}
        meter.count({"type": "response.completed", "response": usage, "choices": [], **usage})
    assert counts == [77]


# Calls ------------------------------------------------------------------------------------------


WHOLE_POOL = {"alpha": 0.001}


REQUESTS = [
    pytest.param(CHAT, {"model": "auto", "messages": user(ONE)}, ["adder"], id="one"),
    pytest.param(CHAT, {"model": "auto", "messages": user(TWO)}, ["adder", "speller"], id="two"),
    pytest.param(
        CHAT,
        {"model": "auto", "messages": user(ONE), "racer": WHOLE_POOL},
        sorted(POOL),
        id="whole pool",
    ),
    pytest.param(CHAT, {"model": "poet", "messages": user(ONE)}, ["poet"], id="named"),
    pytest.param("/v1/completions", {"model": "auto", "prompt": ONE}, ["adder"], id="completions"),
    pytest.param("/v1/responses", {"model": "auto", "input": ONE}, ["adder"], id="responses"),
    pytest.param("/route", {"query": TWO, "execute": True}, ["adder", "speller"], id="executed"),
]


def test_calls_end_where_a_large_body_came_after_its_head(gateway: Gateway, pool: FakePool) -> None:
    """The handler waits for the body already, which is more than is received at once."""
    pool.say("poet", "7", delay_s=30)
    body = {"model": "poet", "messages": user(ONE), "metadata": {"long": "x" * 200_000}}
    assert left(pool, opened(gateway, CHAT, body, pause_s=0.3), ["poet"])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize(("path", "body", "names"), REQUESTS)
def test_calls_end_when_their_client_leaves_before_an_answer(
    gateway: Gateway,
    pool: FakePool,
    path: str,
    body: dict[str, Any],
    names: list[str],
    stream: bool,
) -> None:
    """Plain or streaming, one candidate or several: all are let go within a second."""
    for name in POOL:
        pool.say(name, "7", delay_s=30)
    streamed = {"stream": stream} if "model" in body else {}
    assert left(pool, opened(gateway, path, body | streamed), names)


def test_a_client_disconnect_is_no_error(gateway: Gateway, pool: FakePool) -> None:
    """It is counted as a client that closed, and not as a failure of the gateway."""

    def counted(status: int) -> float:
        metrics = Metrics.parsed(gateway.get("/metrics").text)
        return metrics.value("racer_requests_total", route=CHAT, status=f"{status}")

    def cancelled() -> float:
        return series(gateway.get("/metrics").text)["racer_cancelled_requests_total[]"]

    gateway.chat(ONE)
    pool.reset()
    before, had_left = (counted(499), counted(500)), cancelled()
    pool.say("adder", "7", delay_s=30)
    body = {"model": "auto", "messages": user(ONE)}
    assert left(pool, opened(gateway, CHAT, body), ["adder"])
    wait_until(lambda: counted(499) == before[0] + 1)
    assert (counted(500), cancelled()) == (before[1], had_left + 1)


def test_other_requests_are_answered_when_one_client_disconnects(
    gateway: Gateway, pool: FakePool
) -> None:
    """A disconnect cancels only that client's calls."""
    gate = threading.Event()
    pool.say("adder", "7", gate=gate)
    body = {"model": "auto", "messages": user(ONE)}
    stays = opened(gateway, CHAT, body)
    wait_until(lambda: pool.running == ["adder"])
    goes = opened(gateway, CHAT, body)
    wait_until(lambda: pool.running == ["adder", "adder"])
    goes.close()
    wait_until(lambda: pool.cancelled == ["adder"])
    gate.set()
    assert stays.recv(12) == b"HTTP/1.1 200"
    stays.close()
