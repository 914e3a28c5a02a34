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
from app.http.connection_limits import POOL_SHARE, RESERVE_SHARE, ConnectionLimits
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
    is_answering: bool = False
    is_turned_away: bool = False

    def turn_away(self) -> None:
        """Be closed."""
        self.is_turned_away = True


@given(
    st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.sampled_from("eek-l")), max_size=60)
)
def test_slots_are_for_unauthenticated_connections(most: int, steps: list[tuple[int, str]]) -> None:
    """A new connection gets a slot exactly when fewer unauthenticated ones than slots are open."""
    limits = ConnectionLimits(1_000, most)
    connections: dict[int, list[FakeConnection]] = {address: [] for address in range(3)}
    for address, step in steps:
        here = connections[address]
        if step == "e":
            connection = FakeConnection()
            has_slot = limits.take_slot(connection, f"10.0.0.{address}")
            assert has_slot == (sum(not each.is_authenticated for each in here) < most)
            if has_slot:
                here.append(connection)
        elif step == "k" and here:
            here[-1].is_authenticated = True
        elif step == "l" and here:
            limits.leave(here.pop(0), f"10.0.0.{address}")
    for address, here in connections.items():
        for each in here:
            limits.leave(each, f"10.0.0.{address}")
    assert limits.addresses == 0


SIZE = 16  # of the pool


@given(st.lists(st.tuples(st.sampled_from("eeebil"), st.integers(0, SIZE)), max_size=120))
def test_a_newcomer_takes_the_place_of_the_oldest_silent_one(steps: list[tuple[str, int]]) -> None:
    """No other one is closed, and it is refused only where every place is answering."""
    limits = ConnectionLimits(SIZE * POOL_SHARE, 0)
    here: list[FakeConnection] = []
    for step, place in [("e", 0)] * SIZE + steps:  # from a full pool on
        if step == "e":
            newcomer = FakeConnection()
            silent = [each for each in here if not each.is_answering]
            is_full = len(here) == SIZE
            assert not limits.take_slot(newcomer, "10.0.0.1")
            assert limits.take_place(newcomer) == (not is_full or bool(silent))
            if is_full and silent:
                assert silent[0].is_turned_away
                here.remove(silent[0])
            if not is_full or silent:
                here.append(newcomer)
        elif place < len(here):
            match step:
                case "b":
                    here[place].is_answering = True
                case "i":
                    here[place].is_answering = False
                case _:
                    limits.leave(here.pop(place), "10.0.0.1")
        assert not any(each.is_turned_away for each in here)
        busy = sum(each.is_answering for each in here)
        assert limits.has_room_to_answer() == (busy < SIZE - SIZE // RESERVE_SHARE)


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


PROBE = request(path="/healthz", method="GET")


def answered(server: Bare, data: bytes, of: str = "127.0.0.1") -> int:
    """The status of one request on a connection of its own."""
    with server.connect(of=of) as connection:
        connection.sendall(data)
        return one(connection)[0]


def test_idle_connections_keep_no_key_and_no_probe_out(start: Callable[..., Bare]) -> None:
    """Of one address without a key, thirty times as many as there is room for, and none leaves."""
    server = start(
        connections=64, connections_per_address=4, header_s=LONG_S, no_slot_header_s=LONG_S
    )
    slots, pool = 4, 64 // POOL_SHARE
    with ExitStack() as stack:
        for _ in range(10):
            for _ in range(60):
                stack.enter_context(server.connect())
            for of in ("127.0.0.1", "127.0.0.2"):
                assert [answered(server, data, of) for data in (KNOWN, PROBE)] == [200, 200]
            wait_until(lambda: open_connections(server) <= slots + pool)
        assert server.refusals_by_status()[503] >= 600 - slots - pool


def test_probes_are_answered_where_every_other_place_is_busy(start: Callable[..., Bare]) -> None:
    """With all slots taken and the pool at work, of which an eighth is theirs."""
    server = start(connections=64, header_s=LONG_S, body_s=LONG_S, body_window_s=LONG_S)
    busy = request("content-length: 4", "expect: 100-continue", path="/known")
    pool = 64 // POOL_SHARE
    with ExitStack() as stack:
        silent(server, stack, 64)
        clients = [stack.enter_context(server.connect()) for _ in range(pool - pool // 8)]
        for client in clients:
            client.sendall(busy)
            assert client.recv(100).startswith(b"HTTP/1.1 100")  # its body is waited for
        with server.connect() as late:
            late.sendall(KNOWN)
            assert status_and_code(rest(late)) == (503, "overloaded")
        assert answered(server, PROBE) == 200
        clients[0].sendall(b"1234")
        assert one(clients[0])[0] == 200
        wait_until(lambda: answered(server, KNOWN) == 200)


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
