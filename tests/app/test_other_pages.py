"""Requests of browsers: no page but the gateway's own changes or spends anything."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.api.routes import ROUTES
from app.http import access_control
from tests.kit.connections import told
from tests.kit.gateway import ADMIN_KEY, ONE, Gateway, Serve, user
from tests.kit.upstream import FakePool

READS = ("GET", "HEAD")
CHANGES = [(each.method, each.path) for each in ROUTES if each.method not in READS]
EVERY_CHANGE = pytest.mark.parametrize(
    ("method", "path"), CHANGES, ids=[f"{method} {path}" for method, path in CHANGES]
)
WITH_JSON = [each for each in ROUTES if each.body is not None]
ASKS = {"model": "auto", "messages": user(ONE)}


def address(path: str) -> str:
    """A path of this template."""
    return re.sub(r"\{.*?\}", "x", path)


def head(
    host: str, *more: str, method: str = "POST", path: str = "/route", body: str = ""
) -> bytes:
    """A request with an admin key and further headers."""
    own = [f"{method} {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {ADMIN_KEY}"]
    size = f"content-length: {len(body)}"
    return ("\r\n".join((*own, *more, size, "", "")) + body).encode()


def foreign_headers(host: str) -> list[tuple[str, ...]]:
    """What a browser sends from another page, as sets of headers."""
    name, port = host.rsplit(":", 1)
    return [
        (f"origin: http://{name}:{int(port) + 1}",),
        (f"origin: http://{name}",),
        (f"origin: https://{name}",),
        ("origin: https://evil.example",),
        (f"origin: http://{host}.evil.example",),
        (f"origin: http://evil.example#{host}",),
        (f"origin: file://{host}",),
        (f"origin: {host}",),
        ("origin: null",),
        ("origin:",),
        (f"origin: http://{host}", "origin: http://evil.example"),
        (f"origin: http://evil.example http://{host}",),
        ("sec-fetch-site: cross-site",),
        ("sec-fetch-site: same-site",),
        ("sec-fetch-site: a-word-of-tomorrow",),
        ("sec-fetch-site: same-origin", "sec-fetch-site: cross-site"),
        (f"origin: http://{host}", "sec-fetch-site: cross-site"),
    ]


@EVERY_CHANGE
def test_no_other_page_changes_or_spends(
    gateway: Gateway, pool: FakePool, method: str, path: str
) -> None:
    """Another port of the same machine is another page; red if one route is left out."""
    host = gateway.url.removeprefix("http://")
    for headers in foreign_headers(host):
        status, body = told(gateway, head(host, *headers, method=method, path=address(path)))
        assert (status, body["error"].get("code")) in ((403, "cross_site"), (403, None)), headers
    assert pool.models_called() == []


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/calibrations"])
def test_other_pages_may_send_reads(gateway: Gateway, path: str) -> None:
    """Without CORS a page cannot see the answer, and nothing comes of the request."""
    host = gateway.url.removeprefix("http://")
    for headers in foreign_headers(host):
        assert told(gateway, head(host, *headers, method="GET", path=path))[0] == 200


def test_the_gateways_own_page_and_programs_are_served(gateway: Gateway) -> None:
    """The page of the same host, under whatever name it was opened; a program has no origin."""
    port = gateway.url.rsplit(":", 1)[1]
    body = json.dumps({"query": ONE})
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        for headers in (
            (f"origin: http://{name.lower()}:{port}", "sec-fetch-site: same-origin"),
            (f"origin: https://{name.lower()}:{port}",),  # a proxy before it speaks TLS
            ("sec-fetch-site: none",),
            (),
        ):
            json_ = ("content-type: application/json",)
            request = head(f"{name}:{port}", *headers, *json_, body=body)
            assert told(gateway, request)[0] == 200, (name, headers)


def test_a_keyless_gateway_spends_for_no_page(serve: Serve, pool: FakePool) -> None:
    """The attack: a Blob without a type is a simple request, which a browser sends unasked."""
    gateway = serve(environment={}, calibrated=False)
    host = gateway.url.removeprefix("http://")
    body = json.dumps(ASKS)
    for headers in (("origin: http://localhost:3000",), ("sec-fetch-site: same-site",)):
        request = head(host, *headers, path="/v1/chat/completions", body=body)
        assert told(gateway, request)[0] == 403
    request = head(host, path="/v1/chat/completions", body=body)
    assert told(gateway, request)[0] == 415
    assert pool.models_called() == []


@pytest.mark.parametrize("route", WITH_JSON, ids=lambda each: f"{each.method} {each.path}")
@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "json", ";"]
)
def test_a_body_without_the_type_of_json_is_refused(
    gateway: Gateway, pool: FakePool, route: Any, kind: str | None
) -> None:
    """Absence is no consent; where a body may be left out, it may be left out with its type."""
    headers = {} if kind is None else {"content-type": kind}
    path, is_upload = address(route.path), route.is_upload
    response = gateway.post(path, ADMIN_KEY, content=json.dumps(ASKS).encode(), headers=headers)
    error = response.json()["error"]
    assert response.status_code == 415
    assert is_upload or "application/json" in error["message"]
    if not route.body.is_required and kind is None:
        assert gateway.post(path, ADMIN_KEY).status_code != 415
    assert pool.models_called() == []


# Any origin -------------------------------------------------------------------------------------

_hosts = st.sampled_from(
    ["a.example", "b.example", "localhost", "127.0.0.1", "[::1]", "[fe80::80]", "a.example.b"]
)
_ports = st.sampled_from([None, 80, 443, 8080, 8])


def place(name: str, port: int | None) -> str:
    """A host with its port, or without one."""
    return name if port is None else f"{name}:{port}"


@given(
    scheme=st.sampled_from(["http", "https"]),
    origin=st.tuples(_hosts, _ports),
    host=st.tuples(_hosts, _ports),
)
@example(scheme="http", origin=("localhost", None), host=("localhost", 80))
@example(scheme="https", origin=("localhost", 80), host=("localhost", None))
def test_an_origin_is_ours_if_it_has_our_host_and_port(
    scheme: str, origin: tuple[str, int | None], host: tuple[str, int | None]
) -> None:
    """A missing port is the usual one of the scheme, on both sides."""
    usual = {"http": 80, "https": 443}[scheme]
    same = origin[0] == host[0] and (origin[1] or usual) == (host[1] or usual)
    given_origin = f"{scheme}://{place(*origin)}".encode()
    assert access_control.is_foreign(given_origin, place(*host).upper().encode()) is not same


@given(origin=st.binary(max_size=30), host=st.sampled_from([b"localhost:8080", b"a.example"]))
@example(origin=b"http://localhost:8080/", host=b"localhost:8080")
@example(origin=b"http://x@localhost:8080", host=b"localhost:8080")
def test_any_other_origin_is_foreign(origin: bytes, host: bytes) -> None:
    """Only the one spelling that browsers use."""
    ours = {b"http://" + host, b"https://" + host}
    assert access_control.is_foreign(origin, host) is not (origin.strip().lower() in ours)
