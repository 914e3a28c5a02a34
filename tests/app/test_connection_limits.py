"""Limit of unauthenticated connections per client address."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.failed_logins import network
from app.http.connection import ConnectionConfig
from app.http.connection_limits import UnauthenticatedConnections
from tests.kit.connections import (
    NO_SLOT_S,
    Bare,
    dialled,
    one,
    open_connections,
    request,
    rest,
    start,
    status_and_code,
)
from tests.kit.gateway import DATA_KEY, ENVIRONMENT, Gateway, Serve
from tests.kit.waiting import wait_until

__all__ = ["start"]  # the fixture

LONG_S = 300.0  # only the deadline of an unauthenticated connection passes in a test
KNOWN = request(path="/known", method="GET")
UNKNOWN = request(path="/", method="GET")


@dataclass(eq=False)
class FakeConnection:
    """A connection without a socket."""

    is_authenticated: bool = False


@given(
    st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.sampled_from("eek-l")), max_size=60)
)
def test_slots_are_for_unauthenticated_connections(most: int, steps: list[tuple[int, str]]) -> None:
    """A new connection gets a slot exactly when fewer unauthenticated ones than slots are open."""
    unauthenticated = UnauthenticatedConnections(most)
    connections: dict[int, list[FakeConnection]] = {address: [] for address in range(3)}
    for address, step in steps:
        here = connections[address]
        if step == "e":
            connection = FakeConnection()
            has_slot = unauthenticated.enter(connection, f"10.0.0.{address}")
            assert has_slot == (sum(not each.is_authenticated for each in here) < most)
            if has_slot:
                here.append(connection)
        elif step == "k" and here:
            here[-1].is_authenticated = True
        elif step == "l" and here:
            unauthenticated.leave(here.pop(0), f"10.0.0.{address}")
    for address, here in connections.items():
        for each in here:
            unauthenticated.leave(each, f"10.0.0.{address}")
    assert len(unauthenticated) == 0


@pytest.mark.parametrize(
    ("address", "whole"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::7", "2001:db8:0:2::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, whole: str) -> None:
    """An IPv4 address is one even on an IPv6 socket; of IPv6 the customer's network is."""
    assert network(address) == whole


def silent(server: Bare, stack: ExitStack, count: int) -> list[socket.socket]:
    """Connections that say nothing, once the server has them all."""
    before = open_connections(server)
    made = [stack.enter_context(server.connect()) for _ in range(count)]
    wait_until(lambda: open_connections(server) == before + count)
    return made


def test_an_unauthenticated_connection_without_a_slot_is_answered_and_closed(
    start: Callable[..., Bare],
) -> None:
    """After a moment, long before a head is due; other addresses have places of their own."""
    server = start(connections_per_address=3, header_s=LONG_S)
    with ExitStack() as stack:
        first = silent(server, stack, 3)
        begun = time.monotonic()
        with server.connect() as extra:
            answer = rest(extra)
        assert status_and_code(answer) == (503, "overloaded")
        assert b"retry-after" in answer
        assert time.monotonic() - begun > NO_SLOT_S * 0.9
        with server.connect(of="127.0.0.2") as elsewhere:
            time.sleep(1.5 * NO_SLOT_S)
            elsewhere.sendall(UNKNOWN)
            assert one(elsewhere)[0] == 200
        assert server.refusals_by_status() == {503: 1}
        first[0].close()
        wait_until(lambda: open_connections(server) == 2)
        [late] = silent(server, stack, 1)
        time.sleep(1.5 * NO_SLOT_S)
        late.sendall(UNKNOWN)
        assert one(late)[0] == 200


def test_a_right_key_is_served_where_no_slot_is_left(start: Callable[..., Bare]) -> None:
    """A right key is answered at once; without a free place its connection then closes."""
    server = start(connections_per_address=3, header_s=LONG_S)
    with ExitStack() as stack:
        silent(server, stack, 3)
        with server.connect() as extra:
            extra.sendall(KNOWN + UNKNOWN)
            assert one(extra)[0] == 200
            assert rest(extra) == b""
    assert server.refusals_by_status() == {}


def test_an_authenticated_connection_takes_no_slot(start: Callable[..., Bare]) -> None:
    """From its first request on, while that is answered and afterwards."""
    server = start(connections_per_address=2, header_s=LONG_S)
    with ExitStack() as stack:
        for _ in range(6):
            [client] = silent(server, stack, 1)
            for data in (KNOWN, UNKNOWN):
                client.sendall(data)
                assert one(client)[0] == 200
        [busy] = silent(server, stack, 1)
        busy.sendall(request("content-length: 4", path="/known", body=b"12"))
        silent(server, stack, 2)
        with server.connect() as extra:
            assert status_and_code(rest(extra))[0] == 503


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways with a short deadline for connections without a slot."""
    config = partial(ConnectionConfig, no_slot_header_s=NO_SLOT_S)
    monkeypatch.setattr("app.server.ConnectionConfig", config)


def models_status(connection: socket.socket, key: str | None) -> int:
    """The status of one request for the models."""
    keys = [] if key is None else [f"authorization: Bearer {key}"]
    connection.sendall(request(*keys, path="/v1/models", method="GET", host="host: localhost"))
    return one(connection)[0]


def connect_with_key(gateway: Gateway, key: str, status: int) -> socket.socket:
    """A connection on which this key was shown."""
    connection = dialled(gateway)
    assert models_status(connection, key) == status
    return connection


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("most", [2, None])
def test_a_gateway_counts_those_without_a_right_key(serve: Serve, most: int | None) -> None:
    """Wrong keys and none keep a place, right ones give it up; null is no limit."""
    gateway = serve(limits={"connections_per_address": most, "header_s": LONG_S})
    with ExitStack() as stack:
        clients = [stack.enter_context(connect_with_key(gateway, DATA_KEY, 200)) for _ in range(3)]
        wrong = stack.enter_context(
            connect_with_key(gateway, "a-wrong-key-that-is-in-no-list", 401)
        )
        silent = stack.enter_context(dialled(gateway))
        connect_with_key(gateway, DATA_KEY, 200).close()  # by now the silent one is in
        extra = stack.enter_context(dialled(gateway))
        if most is None:
            time.sleep(1.5 * NO_SLOT_S)
            assert models_status(extra, None) == 401
        else:
            assert status_and_code(rest(extra)) == (503, "overloaded")
        with dialled(gateway) as late:
            assert models_status(late, DATA_KEY) == 200
        assert [models_status(each, DATA_KEY) for each in (*clients, wrong, silent)] == [200] * 5


@pytest.mark.usefixtures("hurried")
def test_without_a_data_key_no_connection_is_counted(serve: Serve) -> None:
    """Without a configured data key every connection is unauthenticated, so none is limited."""
    admin_alone = {name: key for name, key in ENVIRONMENT.items() if "ADMIN" in name}
    gateway = serve(
        environment=admin_alone, limits={"connections_per_address": 1}, calibrated=False
    )
    with ExitStack() as stack:
        unauthenticated = [stack.enter_context(dialled(gateway)) for _ in range(5)]
        time.sleep(1.5 * NO_SLOT_S)
        assert [models_status(each, None) for each in unauthenticated] == [200] * 5
