"""Error responses to bad input: one clear error in OpenAI's envelope, without the input's text."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import pytest

import app.store  # noqa: F401 - defines an error of its own
from app.errors import STATUS
from app.routing.service import RoutingService
from racer_core.errors import RacerError
from tests.kit.case import Metrics, Shared
from tests.kit.gateway import ADMIN_KEY, ONE, Gateway, Serve, user
from tests.kit.upstream import FakePool

CANARY = "CANARY-7f3a91"  # stands in every bad request; no response may hold it
JSON = {"content-type": "application/json"}
ENDPOINTS = ("/v1/chat/completions", "/route", "/calibrate")


def checked(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of a response: status, exact envelope, advice on retries, and no canary."""
    assert response.status_code == status, response.text
    assert CANARY not in response.text
    assert CANARY not in str(response.headers)
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) < 1_000
    assert "\n" not in error["message"]
    assert all(isinstance(error[field], str) for field in ("type", "code"))
    assert error["param"] is None or isinstance(error["param"], str)
    advice = "retry-after" if status in (429, 502, 503, 504) else "x-should-retry"
    assert response.headers[advice] in ("1", "false")
    return error


def send(gateway: Gateway, path: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    """Post bytes as they are; the admin key opens every endpoint."""
    return gateway.post(path, ADMIN_KEY, content=body, headers=headers)


NOT_STRICT_JSON = {
    "half": b'{"query": "%s' % CANARY.encode(),
    "empty": b"",
    "text": CANARY.encode(),
    "list": b'["%s"]' % CANARY.encode(),
    "number": b"42",
    "null": b"null",
    "trailing": b'{"query": "%s"} {}' % CANARY.encode(),
    "duplicate_key": b'{"query": "%s", "query": "b"}' % CANARY.encode(),
    "deep_duplicate_key": b'{"x": [{"%s": 1, "%s": 2}]}' % ((CANARY.encode(),) * 2),
    "nan": b'{"query": "%s", "alpha": NaN}' % CANARY.encode(),
    "infinity": b'{"query": "%s", "alpha": -Infinity}' % CANARY.encode(),
    "overflow": b'{"query": "%s", "alpha": 1e400}' % CANARY.encode(),
    "digits": b'{"query": "%s", "alpha": %s}' % (CANARY.encode(), b"1" * 5_000),
    "surrogate": b'{"query": "%s \\ud800"}' % CANARY.encode(),
    "upper_case_surrogate": b'{"query": "%s \\uDFFF"}' % CANARY.encode(),
    "surrogate_in_a_key": b'{"%s \\udc00": 1}' % CANARY.encode(),
    "raw_surrogate": b'{"query": "%s \xed\xa0\x80"}' % CANARY.encode(),
    "latin1": b'{"query": "%s \xe9"}' % CANARY.encode(),
    "utf16": json.dumps({"query": CANARY}).encode("utf-16"),
    "deep": b'{"x": %s"%s"%s}' % (b"[" * 100, CANARY.encode(), b"]" * 100),
    "very_deep": b'{"x": %s' % (b"[" * 200_000),
    "deep_objects": b'{"x":' * 100_000,
    "control_character": b'{"query": "%s \x01"}' % CANARY.encode(),
    "single_quotes": b"{'query': '%s'}" % CANARY.encode(),
}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("case", NOT_STRICT_JSON)
def test_only_strict_json_is_read(gateway: Gateway, pool: FakePool, path: str, case: str) -> None:
    """Every endpoint answers 400 to what is not strict JSON; no candidate is called."""
    rows = path == "/calibrate" and case == "list"  # a list is a document, but of rows
    error = checked(send(gateway, path, NOT_STRICT_JSON[case], JSON), 422 if rows else 400)
    assert error["type"] == "invalid_request_error"
    assert pool.models_called() == []


WRONG_TYPES: dict[str, list[Any]] = {  # 400
    "messages": [
        [], CANARY, [CANARY], None, [{"content": CANARY}], [{"role": 7, "content": CANARY}],
        *([{"role": "user", "content": each}] for each in ({"text": CANARY}, [CANARY])),
    ],
    "model": [7, "", None],
    "stream": ["yes"],
    "stream_options": ["yes"],
    "racer": [
        CANARY, {"alhpa": 0.1}, {"alpha": 0.1, "query": CANARY}, {"score": "best"},
        {"on_abstain": "guess"}, {"usage": True}, {"candidates": []}, {"candidates": "adder"},
    ],
}  # fmt: skip
NO_QUESTION: list[list[dict[str, Any]]] = [  # 400
    *([{"role": "user", "content": each}] for each in ("", " \n\t", None, [])),
    [{"role": "user"}],
    [{"role": "assistant", "content": CANARY}],
    [{"role": "system", "content": " "}],
    [{"role": role, "content": CANARY} for role in ("system", "assistant")],
]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        *(({name: each}, 400) for name, values in WRONG_TYPES.items() for each in values),
        *(({"messages": each}, 400) for each in NO_QUESTION),
        ({"racer": {"candidates": ["adder", "unknown"]}}, 404),
    ],
    ids=str,
)
def test_a_chat_body_of_another_shape(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], status: int
) -> None:
    """The error names the field and repeats no value."""
    body = {"model": "auto", "messages": user(CANARY), **fields}
    error = checked(gateway.post("/v1/chat/completions", json=body), status)
    assert error["param"], error
    assert error["param"].partition(".")[0] in (*fields, *dict.fromkeys(fields.get("racer", ())))
    assert pool.models_called() == []


@pytest.mark.parametrize(
    ("alpha", "status"),
    [(0, 400), (1, 400), (1.5, 400), (-0.1, 400), (1e-400, 400), (10**30, 400),
     ("0.1", 400), ("x", 400), (True, 400), ([0.1], 400), ({}, 400)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("path", ENDPOINTS)
def test_alpha_is_a_probability(gateway: Gateway, path: str, alpha: Any, status: int) -> None:
    """Outside (0, 1), or of another type; the error names alpha."""
    bodies = {
        "/route": {"query": CANARY, "alpha": alpha},
        "/v1/chat/completions": {
            "model": "auto", "messages": user(CANARY), "racer": {"alpha": alpha}
        },
        "/calibrate": {"rows": [{"query": CANARY, "correct": {}}], "alpha": alpha},
    }  # fmt: skip
    if path == "/calibrate":
        right = {"adder": True, "speller": False, "poet": False}
        bodies[path]["rows"][0]["correct"] = right
    error = checked(gateway.post(path, ADMIN_KEY, json=bodies[path]), status)
    assert error["param"].endswith("alpha")


LONG = "z" * 5_000


ROW = {"query": "?", "correct": []}


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        *(
            (path, {"json": body})
            for path, bodies in {
                "/route": [{"candidates": [LONG]}, {LONG: 1}, {f"{LONG}_url": 1}],
                "/v1/chat/completions": [{"model": LONG}, {"model": "auto", "racer": {LONG: 1}}],
                "/calibrate": [
                    {"rows": [{}], LONG: 1},
                    {"rows": [ROW | {"correct": {LONG: True}}]},
                    {"rows": [ROW | {"candidates": [LONG]}]},
                ],
                "/calibrations/x/activate": [{LONG: 1}],
            }.items()
            for body in bodies
        ),
        ("/calibrate", {"json": {"rows": [{}]}, "params": {LONG: 1}}),
        ("/calibrate", {"files": {"file": (f"{LONG}.jsonl", b"{}")}}),
        (f"/calibrations/{LONG}/activate", {}),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 99 else "",
)
def test_error_messages_have_a_bounded_length(
    gateway: Gateway, path: str, request_: dict[str, Any]
) -> None:
    """Unknown names from a client are shortened, so that they cannot fill a log or a header."""
    asked = {"/route": {"query": ONE}, "/v1/chat/completions": {"messages": user(ONE)}}
    if "json" in request_:
        request_ = {**request_, "json": asked.get(path, {}) | request_["json"]}
    response = gateway.post(path, ADMIN_KEY, **request_)
    checked(response, response.status_code)
    assert 400 <= response.status_code < 500
    assert len(response.text) < 1_500


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"query": ""}, 400, "query"),
        ({"query": "  "}, 400, "query"),
        ({"query": ONE, "alhpa": 0.01}, 400, "alhpa"),  # dropped, it could change what was meant
        ({}, 400, "query"),
        ({"query": CANARY, "messages": user(CANARY)}, 400, "query"),
        ({"query": 7}, 400, "query"),
        ({"query": ["x"]}, 400, "query"),
        ({"messages": []}, 400, "messages"),
        ({"query": CANARY, "execute": "yes"}, 400, "execute"),
    ],
    ids=str,
)
def test_a_route_body_of_another_shape(
    gateway: Gateway, body: dict[str, Any], status: int, word: str
) -> None:
    """Either a query or messages, of the right types; the error names what is wrong."""
    error = checked(gateway.post("/route", json=body), status)
    assert word in f"{error['param']} {error['message']}"
    assert "Value error" not in error["message"]  # pydantic's own words


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"query": "What is 3 plus 4? \\ud83d\\ude00"}', JSON),
        (b'{"query": "What?"}', {"content-type": "Application/JSON; charset=utf-8"}),
        (b'{"query": "What?"}', {**JSON, "content-encoding": "identity"}),
    ],
)
def test_what_is_strict_json_is_read(
    gateway: Gateway, body: bytes, headers: dict[str, str]
) -> None:
    """Surrogates in a pair, a named encoding, and no compression by its name."""
    assert send(gateway, "/route", body, headers).status_code == 200


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
     {"content-type": "application/xml"}, {**JSON, "content-encoding": "gzip"},
     {**JSON, "content-encoding": "br"}, {**JSON, "content-encoding": "identity, gzip"}],
    ids=str,
)  # fmt: skip
def test_other_bodies_than_plain_json_are_refused(
    gateway: Gateway, path: str, headers: dict[str, str]
) -> None:
    """A wrong content type, and any compressed body, is 415."""
    body = json.dumps({"query": CANARY}).encode()
    if "gzip" in headers.get("content-encoding", ""):
        body = gzip.compress(body)
    error = checked(send(gateway, path, body, headers), 415)
    assert error["code"] == "unsupported_body"


@pytest.mark.parametrize("path", [*ENDPOINTS, "/calibrations/x/activate"])
def test_a_body_over_the_limit_is_refused(shared: Shared, path: str) -> None:
    """By its announced length, and while counting without one; a form is counted whole."""
    limits = {"body_bytes": 2_000, "upload_bytes": 3_000, "query_chars": 100}
    small = shared(calibrated=False, limits=limits).gateway
    body = json.dumps({"query": CANARY * 300}).encode()
    error = checked(send(small, path, body, JSON), 413)
    assert error["code"] == "too_large"
    pieces = (body[start : start + 500] for start in range(0, len(body), 500))
    checked(small.post(path, ADMIN_KEY, content=pieces, headers=JSON), 413)
    if path == "/calibrate":
        checked(small.post(path, ADMIN_KEY, files={"file": ("rows.jsonl", body)}), 413)


TOO_MANY_VALUES = {
    "values": b'{"metadata": [%s]}' % b",".join([b"1"] * 250_002),
    "keys": b'{"metadata": {%s}}' % b",".join(b'"%d": 1' % i for i in range(50_002)),
    "texts": b'"' * 1_000_002 + b"," * 50_001,
    "fields": b"{%s}" % b",".join(b'"%d": 1' % i for i in range(1_001)),
}


@pytest.mark.parametrize("much", TOO_MANY_VALUES)
def test_a_body_of_too_many_values_is_refused(gateway: Gateway, much: str) -> None:
    """Parsing that many values would delay all other requests."""
    error = checked(send(gateway, "/v1/chat/completions", TOO_MANY_VALUES[much], JSON), 413)
    assert error["code"] == "too_large"


@pytest.mark.parametrize("text", ['{"a": 1, "b": "c"}, ' * 30_000, "1,2:3\\," * 100_000])
def test_a_long_text_may_hold_any_table(gateway: Gateway, text: str) -> None:
    """A string counts as one value, with any commas and braces in it."""
    assert gateway.ask(text).status_code == 200


UNKNOWN = {
    404: "GET /nothing, POST /router, GET /v1/models/nothing, GET /v1, POST /v1/nothing, "
    "GET /calibrations/nothing, POST /calibrations/nothing/activate",
    405: "GET /route, PUT /route, DELETE /calibrations/nothing, PATCH /v1/chat/completions, "
    "POST /healthz",
}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [(*each.split(), status) for status, line in UNKNOWN.items() for each in line.split(", ")],
)
def test_unknown_paths_and_methods_have_the_error_envelope(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    """Unknown paths and methods have the envelope too."""
    with gateway.http(ADMIN_KEY) as client:
        response = client.request(method, path)
    error = checked(response, status)
    assert error["type"] == "invalid_request_error"
    if status == 405:
        assert response.headers["allow"]  # RFC 9110, 15.5.6


def test_uncalibrated_there_is_no_drift_to_report(serve: Serve) -> None:
    """503 with the cure from what is about a calibration; ``/readyz`` says the same."""
    gateway = serve(calibrated=False)
    error = checked(gateway.get("/drift", ADMIN_KEY), 503)
    assert error["code"] == "not_calibrated"
    assert error["message"] == gateway.ready()["missing"][0]["reason"]
    assert "POST /calibrate" in error["message"]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: routing raises an unexpected error with a prompt in its text."""

    async def route(*_: object) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(RoutingService, "route", route)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_an_unexpected_exception_is_a_500_without_its_text(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    """A bug is 500 in the envelope; the text of the exception may hold a prompt."""
    with gateway.http() as client:
        body = {"model": "auto", "messages": user(CANARY), **fields}
        error = checked(client.post("/v1/chat/completions", json=body), 500)
    assert error["type"] == "api_error"


@pytest.mark.usefixtures("broken")
def test_an_unknown_failure_is_counted_and_keeps_the_connection(serve: Serve) -> None:
    """A 500 is in the metrics, and the connection either stays or was announced to close."""
    gateway = serve(calibrated=False)
    with gateway.http(ADMIN_KEY) as client:
        first, second = (client.post("/route", json={"query": "?"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (500, 500)
    metrics = Metrics.parsed(gateway.get("/metrics").text)
    assert metrics.value("racer_requests_total", route="/route", status="500") == 2


def test_every_error_of_ours_has_a_status() -> None:
    """One table: every class below RacerError is found along its MRO; no code stands for two."""

    def below(kind: type[Exception]) -> list[type[Exception]]:
        return [each for sub in kind.__subclasses__() for each in (sub, *below(sub))]

    for kind in (RacerError, *below(RacerError)):
        status, error_type, code = STATUS[next(each for each in kind.__mro__ if each in STATUS)]
        assert 400 <= status < 600
        assert error_type.endswith("_error")
        assert code
    codes = [code for _, _, code in STATUS.values()]
    assert len(set(codes)) == len(codes)
