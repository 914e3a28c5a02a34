"""The scripted pool: one test never sees the requests of another."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.kit import upstream as scripted
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until


@pytest.fixture
def pool() -> Iterator[FakePool]:
    """A pool of this file."""
    with FakePool() as fake:
        yield fake


def request(pool: FakePool) -> socket.socket:
    """Send a whole request and read nothing."""
    body = json.dumps({"model": "adder", "messages": []}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: fake\r\ncontent-length: {len(body)}"
    port = int(pool.url.removesuffix("/v1").rpartition(":")[2])
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(head.encode() + b"\r\n\r\n" + body)
    return client


@pytest.mark.parametrize("leaves", [True, False])
def test_reset_forgets_what_is_still_in_the_socket(pool: FakePool, leaves: bool) -> None:
    """Also of a caller that has hung up, as the gateway does once it has an answer."""
    pool.delay(0.05)  # the server reads the request only afterwards
    with request(pool) as client:
        if leaves:
            client.close()
        pool.reset()
        assert pool.seen == pool.requests == pool.running == []
        time.sleep(0.1)
        assert pool.requests == []


def test_reset_waits_for_running_requests(pool: FakePool) -> None:
    """Else their end is recorded among the next test's."""
    pool.say("adder", "42", delay_s=0.1)
    with request(pool):
        pool.reset()
        assert pool.seen == pool.running == []
        time.sleep(0.2)
        assert pool.seen == []


def test_reset_does_not_wait_for_a_hanging_request(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for ``SETTLE_S`` only."""
    monkeypatch.setattr(scripted, "SETTLE_S", 0.05)
    pool.fail("adder", "hang")
    with request(pool):
        wait_until(lambda: pool.running == ["adder"])
        pool.reset()
        assert pool.running == ["adder"]
        assert pool.requests == []
