"""Client disconnects: the gateway cancels the calls, and every candidate sees it."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.kit.connections import CHAT, LONG, left, opened
from tests.kit.gateway import ONE, POOL, TWO, Gateway, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

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
    connection = opened(gateway, path, body | {"stream": stream})
    assert left(pool, connection, names)


@pytest.mark.parametrize(
    ("path", "body", "names"), [each for each in REQUESTS if len(each.values[2]) == 1]
)
def test_a_live_stream_ends_when_its_client_leaves(
    gateway: Gateway, pool: FakePool, path: str, body: dict[str, Any], names: list[str]
) -> None:
    """In the middle of an answer, too."""
    for name in names:
        pool.say(name, LONG, pause_s=0.05)
    connection = opened(gateway, path, body | {"stream": True})
    assert connection.recv(12).startswith(b"HTTP/1.1 200")
    assert left(pool, connection, names)


def test_a_merged_stream_ends_when_its_client_leaves(gateway: Gateway, pool: FakePool) -> None:
    """While the comments still go out and one candidate of two has answered."""
    pool.say("adder", "7", delay_s=30)
    body = {"model": "auto", "messages": user(TWO), "stream": True}
    connection = opened(gateway, CHAT, body)
    assert connection.recv(12).startswith(b"HTTP/1.1 200")
    assert left(pool, connection, ["adder"])


def test_an_executed_decision_ends_when_its_client_leaves(gateway: Gateway, pool: FakePool) -> None:
    """`/route` with ``execute`` calls the set as chat does."""
    for name in POOL:
        pool.say(name, "7", delay_s=30)
    connection = opened(gateway, "/route", {"query": TWO, "execute": True})
    assert left(pool, connection, ["adder", "speller"])


def test_a_client_disconnect_is_no_error(gateway: Gateway, pool: FakePool) -> None:
    """It is counted as a client that closed, and not as a failure of the gateway."""

    def counted(status: int) -> float:
        name = re.escape(f'racer_requests_total{{route="{CHAT}",status="{status}"}}')
        found = re.search(rf"^{name} (\S+)$", gateway.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = counted(499), counted(500)
    pool.say("adder", "7", delay_s=30)
    body = {"model": "auto", "messages": user(ONE)}
    assert left(pool, opened(gateway, CHAT, body), ["adder"])
    wait_until(lambda: counted(499) == before[0] + 1)
    assert counted(500) == before[1]


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
