"""Access control: host, origin, key and limits, checked before a body is read."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import given
from hypothesis import strategies as st

from app.access.allowed_hosts import HostCheck
from app.access.failed_logins import FailedLogins
from app.access.quotas import Quotas
from app.api.routes import ROUTES
from app.errors import InvalidHost, RateLimited
from app.route_table import Route, Routes, RouteTable
from app.services import Services
from app.settings.access import Key
from tests.kit.accounts import configured_key
from tests.kit.connections import dialled, told
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ONE, Gateway, Serve, candidates, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until


def code(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    """Status and code of an error."""
    return answer[0], answer[1]["error"]["code"]


# Hosts.


def head(*hosts: str, path: str = "/v1/models") -> bytes:
    """A request with these Host headers."""
    lines = [f"GET {path} HTTP/1.1", *(f"host: {each}" for each in hosts)]
    return "\r\n".join((*lines, f"authorization: Bearer {DATA_KEY}", "", "")).encode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8080", "[::1]:80"])
def test_the_gateway_answers_to_its_own_names(gateway: Gateway, host: str) -> None:
    """Bound to loopback, every name of this machine with any port is right."""
    assert told(gateway, head(host))[0] == 200


@pytest.mark.parametrize(
    "hosts",
    [(), ("localhost", "localhost"), ("localhost", "evil.example"), ("evil.example",),
     ("localhost.evil.example",), ("127.0.0.1/healthz?",), ("a/b?c",), ("localhost#",),
     ("user@localhost",), ("localhost\\x",), ("localhost:port",), ("localhost:",), ("",),
     ("local host",), ("[::1",), ("localhost,evil.example",), ("xn--é",)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/calibrations", "/docs", "/nothing"])
def test_another_host_is_refused(gateway: Gateway, hosts: tuple[str, ...], path: str) -> None:
    """None, two, another client's, or one that could be read as something else: 400."""
    assert code(told(gateway, head(*hosts, path=path))) == (400, "invalid_host")


def test_probes_may_use_any_well_formed_name(gateway: Gateway) -> None:
    """A balancer asks by address and a page learns nothing from it; a bad form stays bad."""
    assert told(gateway, head("10.1.2.3:8080", path="/healthz"))[0] == 200
    assert code(told(gateway, head("a/b?c", path="/healthz"))) == (400, "invalid_host")


def test_configured_names_are_ours_too(serve: Serve) -> None:
    """`access.hosts` adds names, without a port."""
    gateway = serve(access={"hosts": ["Gateway.example"]}, calibrated=False)
    for host, status in (("gateway.EXAMPLE:443", 200), ("localhost", 200), ("other.example", 400)):
        assert told(gateway, head(host))[0] == status


@pytest.mark.parametrize(
    ("bound", "names", "right", "wrong"),
    [
        ("0.0.0.0", [], ["anything.example", "10.1.2.3"], ["a b", "a/b"]),
        ("::", [], ["anything.example", "[fe80::1]"], ["[fe80::1"]),
        ("0.0.0.0", ["a.example"], ["a.example", "localhost", "127.0.0.1"], ["b.example"]),
        ("10.1.2.3", [], ["10.1.2.3"], ["localhost", "10.1.2.4"]),
        ("::1", ["fd00::7"], ["[::1]", "localhost", "[fd00::7]"], ["::1", "[fd00::8]"]),
        ("127.8.8.8", [], ["127.8.8.8", "localhost"], ["127.8.8.9"]),
    ],
)
def test_which_hosts_are_ours(
    bound: str, names: list[str], right: list[str], wrong: list[str]
) -> None:
    """The address that it is bound to, loopback's names if that reaches it, and `access.hosts`."""
    check = HostCheck([bound], names)
    for host in right:
        check.check([(b"host", host.encode())])
    for host in wrong:
        with pytest.raises(InvalidHost):
            check.check([(b"host", host.encode())])


# Routes and their roles.


async def handler(_: Request, __: Services) -> Response:
    """Of routes that are only matched."""
    raise AssertionError("not called")


def row(method: str, path: str, **columns: Any) -> Route:
    """A public route."""
    return Route(method=method, path=path, role="public", handler=handler, **columns)


def test_a_route_cannot_be_declared_without_a_role() -> None:
    """Neither without one, nor with an unknown one; an alias has that of the first path."""
    routes = Routes()
    routes.add("POST", "/a", role="admin", alias="/b", summary="One", is_upload=True)(handler)
    assert [(each.path, each.summary) for each in routes] == [("/a", "One"), ("/b", None)]
    assert {(each.role, each.handler, each.is_upload) for each in routes} == {
        ("admin", handler, True)
    }
    assert RouteTable(routes).upload_paths == {"/a", "/b"}
    declare: Any = Routes().add
    with pytest.raises(TypeError, match="role"):
        declare("GET", "/new")
    with pytest.raises(ValueError, match="GET /new: role None is none of"):
        declare("GET", "/new", role=None)(handler)
    with pytest.raises(ValueError, match="role 'anyone' is none of"):
        declare("GET", "/new", role="anyone")(handler)


def test_a_route_that_is_not_in_the_table_is_shut() -> None:
    """Only rows have handlers: another path, or another method of a path, leads to none."""
    table = RouteTable([row("GET", "/healthz", allows_head=True), row("POST", "/a/{b}/c/{d}")])
    for path in ("/new", "/healthz/x", "/a/1/2/c/3"):
        assert table.match("GET", path).template is None
    for method in ("GET", "HEAD"):
        found = table.match(method, "/healthz").route
        assert found is not None
        assert found.name == "GET /healthz"
    for method, path in (("DELETE", "/healthz"), ("get", "/healthz"), ("GET", "/a/b/c/d")):
        match = table.match(method, path)
        assert match.route is None
        assert match.template is not None
    assert table.match("DELETE", "/healthz").methods == {"GET", "HEAD"}
    assert table.match("POST", "/a/1/c/2").path_params == {"b": "1", "d": "2"}


def test_a_route_is_declared_once() -> None:
    """Two rows for one method and path: the second would never be reached."""
    with pytest.raises(ValueError, match="declared twice: GET /a"):
        RouteTable([row("GET", "/a"), row("POST", "/a"), row("GET", "/a")])


PIECES = st.sampled_from(
    ["/", "//", "v1", "models", "calibrate", "calibrations", "activate", "jobs", "x", "healthz",
     "route", ".", "..", "%2f", "%2e", "%0a", "\n", " ", "?", "CALIBRATE", "{calibration_id}"]
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway_app() -> FastAPI:
    """Every route of the gateway with an endpoint that only says which one it is."""

    async def endpoint() -> None:
        return None

    app = FastAPI(openapi_url=None, redirect_slashes=False)
    for route in ROUTES:
        app.add_api_route(route.path, endpoint, methods=[*route.methods])
    return app


REAL = [re.sub(r"\{.*?\}", "x", route.path) for route in ROUTES]
ODD = st.lists(PIECES, max_size=4).map("".join)
METHODS = ["GET", "POST", "DELETE", "HEAD"]


def see_the_same(app: FastAPI, method: str, path: str) -> bool:
    """Whether the table and Starlette's router find the same route and parameters, or none."""
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    served = [
        (route.path, child["path_params"])  # type: ignore[attr-defined]
        for route in app.router.routes
        for found, child in [route.matches(dict(scope))]
        if found.name == "FULL"
    ]
    match = ROUTES.match(method, path)
    found = None if match.route is None else (match.route.path, match.path_params)
    return found == (served[0] if served else None)


@given(
    path=st.builds("/{}".format, ODD) | st.builds("{}{}".format, st.sampled_from(REAL), ODD),
    method=st.sampled_from(METHODS),
)
def test_access_control_and_the_router_see_the_same_route(
    gateway_app: FastAPI, path: str, method: str
) -> None:
    """Whatever the path looks like, the table matches it as Starlette does."""
    assert see_the_same(gateway_app, method, path)


def test_every_route_is_seen_with_every_method(gateway_app: FastAPI) -> None:
    """Routes are distinguished by method, even if they share a path."""
    for path in REAL:
        for method in METHODS:
            assert see_the_same(gateway_app, method, path), (method, path)


def test_a_page_of_another_site_changes_nothing(gateway: Gateway, pool: FakePool) -> None:
    """A browser says where a request comes from; reading and our own pages go on."""
    with gateway.http() as client:
        for path in ("/route", "/v1/chat/completions", "/calibrate"):
            response = client.post(path, json={}, headers={"sec-fetch-site": "cross-site"})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_site")
        assert client.get("/v1/models", headers={"sec-fetch-site": "cross-site"}).status_code == 200
        same = client.post("/route", json={"query": ONE}, headers={"sec-fetch-site": "same-origin"})
        assert same.status_code == 200
    assert pool.models_called() == []


# Keys.


def test_configured_keys_have_their_roles(serve: Serve) -> None:
    """A data key asks, an admin key calibrates, and no key is needed in the environment."""
    data, data_entry = configured_key("team-a")
    admin, admin_entry = configured_key("ops", role="admin")
    gateway = serve(access={"keys": [data_entry, admin_entry]}, environment={}, calibrated=False)
    for key, models, calibrations in ((data, 200, 403), (admin, 200, 200), ("x", 401, 401)):
        assert gateway.get("/v1/models", key).status_code == models
        assert gateway.get("/calibrations", key).status_code == calibrations
    assert gateway.get("/v1/models", None).status_code == 401
    assert gateway.get("/v1/models", data_entry["hash"]).status_code == 401


def test_two_authorization_headers_are_refused(gateway: Gateway) -> None:
    """Two Authorization headers could be read differently by two programs."""
    both = head("localhost").replace(
        b"host:", f"authorization: Bearer {DATA_KEY}\r\nhost:".encode()
    )
    assert code(told(gateway, both)) == (401, "invalid_api_key")


def test_wrong_keys_are_counted_and_right_ones_are_not(serve: Serve) -> None:
    """After five wrong keys the address gets 429; requests with a right key are still served."""
    gateway = serve(access={"failures_per_minute": 5}, calibrated=False)
    statuses = [gateway.get("/v1/models", "wrong").status_code for _ in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    refused = gateway.get("/calibrations", "wrong")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    with gateway.http("wrong") as client:
        elsewhere = client.get("/v1/models", headers={"x-forwarded-for": "10.0.0.9"})
    assert elsewhere.status_code == 429  # the address is the socket's
    assert gateway.get("/v1/models", None).status_code == 401  # no key is not a wrong key
    assert gateway.get("/v1/models", DATA_KEY).status_code == 200


def test_failures_are_counted_by_address_for_a_minute_in_bounded_memory() -> None:
    """IPv6 neighbours of one /64 count as one; the oldest of too many addresses is forgotten."""
    now = [0.0]
    failures = FailedLogins(2, clock=lambda: now[0])
    for address in ("2001:db8::1", "2001:db8::2"):
        failures.record(address)
    with pytest.raises(RateLimited) as caught:
        failures.record("2001:db8::3")
    assert caught.value.retry_after_s == 60
    failures.record("2001:db8:0:1::1")
    now[0] = 60.0
    failures.record("2001:db8::1")
    failures = FailedLogins(2, clock=lambda: 0.0, max_addresses=3)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"):
        with contextlib.suppress(RateLimited):
            failures.record(address)
    failures.record("10.0.0.4")  # 10.0.0.2 is forgotten
    with pytest.raises(RateLimited):
        failures.record("10.0.0.1")
    failures.record("10.0.0.2")


# The second listener.


def test_admin_can_have_a_socket_of_its_own(serve: Serve) -> None:
    """On the main one its routes are then not found, for any key; probes and data stay."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = serve(access={"admin": {"port": port}}, calibrated=False)
    inside = Gateway(f"http://127.0.0.1:{port}", gateway.settings)
    try:
        for key in (ADMIN_KEY, DATA_KEY, None):
            assert gateway.get("/calibrations", key).status_code == 404
            assert gateway.post("/calibrate", key, json={}).status_code == 404
        assert gateway.get("/v1/models").status_code == 200
        assert inside.get("/calibrations", ADMIN_KEY).status_code == 200
        assert inside.get("/calibrations", DATA_KEY).status_code == 403
        assert inside.get("/healthz", None).status_code == 200
    finally:
        inside.close()


# Quotas.


def limited(now: list[float], in_flight: int = 100, **fields: Any) -> Quotas:
    """One key `a` with limits; other keys have no limits of their own."""
    key = Key.model_validate(configured_key("a", **fields)[1])
    return Quotas([key], in_flight=in_flight, body_bytes=1_000, clock=lambda: now[0])


@pytest.mark.parametrize(
    ("limit", "tokens", "requests", "wait_s"),
    [("requests_per_minute", 2, 2, 30), ("tokens_per_minute", 600, 1, 31)],
)
def test_requests_and_tokens_of_a_minute_are_counted_per_key(
    limit: str, tokens: int, requests: int, wait_s: int
) -> None:
    """One too many waits; an answer may go over its tokens, which then are a debt."""
    now = [0.0]
    quotas = limited(now, **{limit: tokens})
    for _ in range(requests):
        with quotas.admit("a", is_work=True) as ticket:
            ticket.spend(900)
    with pytest.raises(RateLimited, match=f"{limit.partition('_')[0]} of the minute") as caught:
        quotas.admit("a", is_work=True)
    assert caught.value.retry_after_s == wait_s
    quotas.admit("b", is_work=True)
    now[0] = wait_s
    quotas.admit("a", is_work=True)


def test_a_debt_of_tokens_is_an_hour_s_at_most() -> None:
    """A candidate's absurd count blocks a key no longer than that."""
    now = [0.0]
    quotas = limited(now, tokens_per_minute=600)
    with quotas.admit("a", is_work=True) as ticket:
        ticket.spend(10**400)
    with pytest.raises(RateLimited, match="tokens of the minute") as caught:
        quotas.admit("a", is_work=True)
    now[0] = caught.value.retry_after_s
    assert 3_500 < now[0] < 3_660
    quotas.admit("a", is_work=True)


def test_refused_requests_come_back_one_after_the_other() -> None:
    """Over five seconds: all at once they would be refused again."""
    quotas = limited([0.0], in_flight=1)
    waits: list[int] = []
    with quotas.admit("team", is_work=True):
        for _ in range(6):
            with pytest.raises(RateLimited) as caught:
                quotas.admit("team", is_work=True)
            waits.append(caught.value.retry_after_s)
    assert waits == [1, 2, 3, 4, 5, 1]


def test_a_refused_request_uses_nothing() -> None:
    """Neither a place nor a request of the minute."""
    quotas = limited([0.0], concurrency=1, requests_per_minute=2, in_flight=2)
    with quotas.admit("a", is_work=True):
        for _ in range(5):
            with pytest.raises(RateLimited, match="running"):
                quotas.admit("a", is_work=True)
        with quotas.admit("b", is_work=True):
            with pytest.raises(RateLimited, match="gateway"):
                quotas.admit("b", is_work=True)
            with quotas.admit("b", is_work=False):  # looking is not working
                assert quotas.in_flight == 2
    assert quotas.in_flight == 0
    quotas.admit("a", is_work=True)


def test_large_bodies_share_one_budget_of_memory(serve: Serve, pool: FakePool) -> None:
    """Two fit until they are answered: the third is 429, for now; small ones always go in."""
    patient = candidates(pool.url, timeout_s=60)
    gateway = serve(candidates=patient, limits={"body_buffer_bytes": 250_000})
    large = "x " * 80_000  # all but the first 64 KiB count
    gate = threading.Event()
    pool.say("adder", "42", gate=gate)

    def ask() -> int:
        body = {"model": "adder", "messages": user(large)}
        return gateway.post("/v1/chat/completions", json=body).status_code

    with ThreadPoolExecutor(2) as both:
        under_way = [both.submit(ask) for _ in range(2)]
        wait_until(lambda: len(pool.models_called()) == 2)
        refused = gateway.ask(large)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert gateway.post("/route", json={"query": ONE}).status_code == 200
        gate.set()
        assert [each.result() for each in under_way] == [200, 200]
    pool.say("adder", "42")
    assert ask() == 200


def test_a_body_that_does_not_fit_takes_no_memory_from_others(serve: Serve) -> None:
    """It is refused by its announced length, for good if the memory of all is less.

    Red if half of it took its part before it was refused.
    """
    gateway = serve(calibrated=False, limits={"body_buffer_bytes": 200_000})

    def announced(size: int) -> tuple[int, str]:
        return code(
            told(
                gateway,
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\n"
                + f"content-length: {size}\r\nauthorization: Bearer {DATA_KEY}\r\n\r\n".encode(),
            )
        )

    body = json.dumps({"model": "adder", "messages": user("x" * 400_000)}).encode()
    assert announced(len(body)) == (413, "too_large")
    parts = (part for part in (body[:100_000], body[100_000:]))
    headers = {"content-type": "application/json"}
    chunked = gateway.post("/v1/chat/completions", content=parts, headers=headers)
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "too_large")
    with dialled(gateway) as holder:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            "content-type: application/json\r\ncontent-length: 220000\r\n"
            f"authorization: Bearer {DATA_KEY}\r\n\r\n"
        ).encode()
        holder.sendall(head + body[:180_000])
        wait_until(lambda: announced(200_000) == (429, "overloaded"))


def test_a_full_gateway_refuses_before_the_body_and_can_be_looked_at(
    serve: Serve, pool: FakePool
) -> None:
    """Two slow answers fill it: the third is 429 with its body unsent, and metrics answer."""
    gateway = serve(candidates=candidates(pool.url, timeout_s=60), limits={"in_flight": 2})
    gate = threading.Event()
    for name in ("adder", "speller", "poet"):
        pool.say(name, "42", gate=gate)
    slow = [threading.Thread(target=gateway.ask, args=(ONE,)) for _ in range(2)]
    for each in slow:
        each.start()
    wait_until(lambda: len(pool.models_called()) >= 2)
    answer = told(
        gateway,
        b"POST /route HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n"
        + f"authorization: Bearer {DATA_KEY}\r\n\r\n".encode(),
    )
    assert code(answer) == (429, "rate_limited")
    assert gateway.get("/metrics").status_code == 200
    gate.set()
    for each in slow:
        each.join()
    assert gateway.ask(ONE).status_code == 200


def test_half_sent_bodies_of_one_key_lock_out_no_other_key(serve: Serve) -> None:
    """They cannot take the last slot; the error names the reason; complete bodies are served."""
    key, entry = configured_key("team-a")
    gateway = serve(access={"keys": [entry]}, limits={"in_flight": 8})
    body = json.dumps({"query": ONE}).encode()
    head = (
        "POST /route HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nauthorization: Bearer {DATA_KEY}\r\n\r\n"
    ).encode()
    with ExitStack() as stack:
        halves = [stack.enter_context(dialled(gateway)) for _ in range(12)]
        for each in halves:
            each.sendall(head + body[:5])
        refused = select.select(halves[7:], [], [], 30)[0]
        assert refused
        wait_until(lambda: len(select.select(halves, [], [], 0)[0]) >= 5)
        waiting = [each for each in halves if not select.select([each], [], [], 0)[0]]
        assert len(waiting) == 7
        assert b"bodies have not arrived" in refused[0].recv(2**16)
        assert gateway.post("/route", key, json={"query": ONE}).status_code == 200
        assert gateway.post("/route", ADMIN_KEY, json={"query": ONE}).status_code == 200
        assert told(gateway, head + body)[0] == 200  # it arrives with its head
        for each in waiting:  # a body that has arrived makes room
            each.sendall(body[5:])
            assert each.recv(2**16).startswith(b"HTTP/1.1 200")
        late = stack.enter_context(dialled(gateway))
        late.sendall(head + body[:5])
        assert not select.select([late], [], [], 0.3)[0]


def test_a_request_is_in_receipt_until_its_body_or_its_end() -> None:
    """The last of eight places is closed to a key with two; both ways out give a place back."""
    quotas = limited([0.0], in_flight=8)
    tickets = [quotas.admit("data", is_work=True, is_receiving=True) for _ in range(7)]
    with pytest.raises(RateLimited, match="bodies have not arrived"):
        quotas.admit("data", is_work=True, is_receiving=True)
    for name in ("data", "admin"):  # a whole body, another key
        with quotas.admit(name, is_work=True, is_receiving=name == "admin"):
            assert quotas.in_flight == 8
    for ticket in tickets[:6]:
        ticket.body_received()
        ticket.body_received()
    with quotas.admit("data", is_work=True, is_receiving=True):
        pass
    for ticket in tickets:
        ticket.__exit__(None, None, None)
    assert quotas.in_flight == 0


def test_a_limited_key_gets_retry_after(serve: Serve) -> None:
    """429 in the envelope with `retry-after`; places come back when answers end, badly too."""
    key, entry = configured_key("team-a", requests_per_minute=3, concurrency=1)
    gateway = serve(access={"keys": [entry]})
    for body in ({"query": ONE}, {"query": ""}, {}):
        assert gateway.post("/route", key, json=body).status_code in (200, 400, 422)
    refused = gateway.post("/route", key, json={"query": ONE})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert 2 <= int(refused.headers["retry-after"]) <= 20
    assert gateway.post("/route", DATA_KEY, json={"query": ONE}).status_code == 200


@pytest.mark.parametrize("sent", ["abc-DEF_123", "a" * 64])
def test_a_harmless_request_id_comes_back(gateway: Gateway, sent: str) -> None:
    """What the client may search our log for."""
    for path in ("/healthz", "/v1/models", "/nothing"):
        response = gateway.get(path, headers={"x-request-id": sent})
        assert response.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "a" * 65, "a b", "a\tb", "a;b", "é", 'a"b', "../a"])
def test_another_request_id_is_replaced(gateway: Gateway, sent: str) -> None:
    """What could forge a line or a header is not taken; every answer has an id."""
    ids = [
        gateway.get("/v1/models", headers=headers).headers["x-request-id"]
        for headers in ({"x-request-id": sent.encode("latin-1")}, {})
    ]
    assert [len(each) for each in ids] == [32, 32]
    assert ids[0] != ids[1]
