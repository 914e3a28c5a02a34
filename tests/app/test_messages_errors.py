"""Errors below ``/v1/messages`` in Anthropic's envelope, at whatever stage they are made."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import pytest

from app.errors import STATUS
from app.wire.messages.errors import ERROR_TYPES, PATH, concerns
from tests.kit.case import Shared
from tests.kit.connections import told
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ONE, POOL, Gateway, user
from tests.kit.upstream import FakePool


@pytest.fixture
def small(shared: Shared) -> Gateway:
    """A gateway with small limits."""
    limits = {"body_bytes": 2_000, "max_tokens": 100, "tools": 1, "in_flight": 1}
    return shared(calibrated=False, limits=limits).gateway


BODY = {"model": "auto", "messages": user(ONE)}
PATHS = pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])


def checked(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The error: status, exact envelope, the id in both headers, advice on retries."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert body["request_id"] == response.headers["x-request-id"]
    error = body["error"]
    assert error.keys() == {"type", "message", "details"}
    assert error["details"].keys() == {"error_code", "param"}
    assert error["details"]["error_code"] == code
    usual = "api_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == ERROR_TYPES.get(status, usual)
    advice = "retry-after" if status in (429, 502, 503, 504) else "x-should-retry"
    assert response.headers[advice] in ("1", "false")
    return error


# Before the handler.


@PATHS
def test_keys_come_in_either_header(gateway: Gateway, pool: FakePool, path: str) -> None:
    """Both of Anthropic's; where both are sent, `authorization` counts."""
    pool.tokens |= dict.fromkeys(POOL, 7)
    cases: list[tuple[list[tuple[str, str]], int]] = [
        ([("x-api-key", DATA_KEY)], 200),
        ([("authorization", f"Bearer {DATA_KEY}")], 200),
        ([("authorization", f"Bearer {DATA_KEY}"), ("x-api-key", "another")], 200),
        ([("x-api-key", DATA_KEY), ("authorization", "Bearer another")], 401),
        ([("x-api-key", DATA_KEY), ("x-api-key", DATA_KEY)], 401),
        ([("x-api-key", "another")], 401),
        ([], 401),
    ]
    with gateway.http(None) as client:
        for headers, status in cases:
            response = client.post(path, json=BODY, headers=headers)
            if status == 200:
                assert response.status_code == 200, response.text
            else:
                error = checked(response, 401, "invalid_api_key")
                assert "x-api-key" in error["message"]


def test_an_api_key_header_opens_every_endpoint(gateway: Gateway) -> None:
    """Also those of an administrator, with that key alone."""
    with gateway.http(None) as client:
        for key, status in ((ADMIN_KEY, 200), (DATA_KEY, 403), ("another", 401)):
            found = client.get("/calibrations", headers={"x-api-key": key}).status_code
            assert found == status


def test_other_paths_keep_openais_envelope(gateway: Gateway) -> None:
    """Also one that only begins with the same letters."""
    for path in ("/v1/messages2", "/v1/message", "/v1/chat/messages"):
        assert not concerns(path)
        assert gateway.post(path, json=BODY).json().keys() == {"error"}


def test_each_stage_answers_in_the_envelope(gateway: Gateway, small: Gateway) -> None:
    """Paths, hosts, sites and bodies: what is refused before its handler, or within it."""
    plain, json_ = {"content-type": "text/plain"}, {"content-type": "application/json"}
    data = json.dumps(BODY).encode()
    packed = gzip.compress(data), {**json_, "content-encoding": "gzip"}
    cases: list[tuple[Gateway, str, str, bytes, dict[str, str], int, str]] = [
        (gateway, "GET", PATH, b"", {}, 405, "method_not_allowed"),
        (gateway, "PUT", f"{PATH}/count_tokens", b"", {}, 405, "method_not_allowed"),
        (gateway, "POST", f"{PATH}/batches", b"", {}, 404, "not_found"),
        (gateway, "GET", f"{PATH}/batches/b1", b"", {}, 404, "not_found"),
        (gateway, "POST", PATH, data, {"host": "elsewhere.example"}, 400, "invalid_host"),
        (gateway, "POST", PATH, data, {"sec-fetch-site": "cross-site"}, 403, "cross_site"),
    ]
    for path in (PATH, f"{PATH}/count_tokens"):
        cases += [
            (small, "POST", path, b'{"a": "%s"}' % (b"a" * 3_000), json_, 413, "too_large"),
            (small, "POST", path, *packed, 415, "unsupported_body"),
            (small, "POST", path, data, plain, 415, "unsupported_body"),
            (small, "POST", path, b"{", json_, 400, "invalid_request"),
        ]
    for to, method, path, content, headers, status, code in cases:
        with to.http() as client:
            checked(client.request(method, path, content=content, headers=headers), status, code)


def test_limits_of_keys_and_of_the_process(small: Gateway, pool: FakePool) -> None:
    """The only place is taken by a stream that is still open."""
    for name in POOL:
        pool.say(name, "42" * 50, pause_s=0.2)
    body = {**BODY, "model": "adder", "stream": True}
    with small.http() as client, client.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()  # kept: dropping it would close the connection
        next(lines)
        checked(small.post(PATH, json=BODY), 429, "rate_limited")


# Within it.


@PATHS
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_schema", "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "invalid_schema", "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "invalid_schema", None),
        ({"system": 7}, "invalid_schema", None),
        ({"tools": [7]}, "invalid_schema", "tools.0"),
        ({"racer": {"alpha": "x"}}, "invalid_schema", "racer.alpha"),
        ({"mcp_servers": [{"url": "https://example.org"}]}, "invalid_request", "mcp_servers"),
        ({"guided_json": {}}, "invalid_request", "guided_json"),
        ({"tools": [{"name": "a", "input_schema": {}}] * 2}, "invalid_schema", "tools"),
        ({"model": "gpt-4o"}, "model_not_found", "model"),
        ({"max_tokens": 101}, "invalid_schema", "max_tokens"),
    ],
    ids=str,
)
def test_bodies_of_another_shape(
    small: Gateway, path: str, fields: dict[str, Any], code: str, param: str | None
) -> None:
    """The error names the field; fields that reach into servers are refused here, too."""
    status = 404 if code == "model_not_found" else 400
    error = checked(small.post(path, json=BODY | fields), status, code)
    assert param is None or error["details"]["param"] == param


VERSIONS = {
    200: (None, "2023-06-01", "2026-10-21", "2099-01-01"),
    400: ("2023-01-01", "2024-01-01", "x", "9"),
}


@PATHS
@pytest.mark.parametrize(
    ("version", "status"), [(each, status) for status, them in VERSIONS.items() for each in them]
)
def test_versions(
    gateway: Gateway, pool: FakePool, path: str, version: str | None, status: int
) -> None:
    """Without a header it is that of today, as with a later one; earlier ones had other events."""
    pool.tokens |= dict.fromkeys(POOL, 7)
    headers = {} if version is None else {"anthropic-version": version}
    with gateway.http() as client:
        response = client.post(path, json=BODY, headers=headers)
    if status == 200:
        assert response.status_code == 200
    else:
        error = checked(response, 400, "invalid_request")
        assert "2026-10-21" in error["message"]


def test_every_status_has_a_type_of_anthropics() -> None:
    """Those of the table of errors; a client reads any other type as a general error."""
    known = {
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "conflict_error", "request_too_large", "rate_limit_error", "api_error", "overloaded_error",
        "timeout_error", "billing_error",
    }  # fmt: skip
    assert set(ERROR_TYPES.values()) <= known
    assert {status for status, _, _ in STATUS.values()} & set(ERROR_TYPES) >= {401, 403, 404, 429}


# Before there is a request.


LINE = f"POST {PATH}?beta=true HTTP/1.1\r\n".encode()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (LINE + b"a: b\r\n" * 101 + b"\r\n", 431, "headers_too_large"),
        (f"POST {PATH}?{'a' * 9_000} HTTP/1.1\r\n\r\n".encode(), 414, "uri_too_long"),
        (LINE + b"host: a\r\n b\x00\r\n\r\n", 400, "invalid_http"),
    ],
    ids=["headers", "line", "head"],
)
def test_what_the_server_refuses_itself(
    gateway: Gateway, data: bytes, status: int, code: str
) -> None:
    """There is no request yet, hence no id; the path is known."""
    found, body = told(gateway, data)
    assert found == status
    assert body["error"]["details"]["error_code"] == code
    assert body.keys() == {"type", "error", "request_id"}
    assert body["request_id"] is None
