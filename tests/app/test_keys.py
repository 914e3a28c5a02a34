"""Roles of keys: data and admin routes, and routes closed by default."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import settings
from app.api.routes import ROUTES
from app.errors import SettingsError
from tests.kit.collector import collector
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    Gateway,
    Serve,
    as_json,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

openai = LazyModule("openai")

DESCRIPTION = {"/docs", "/docs/oauth2-redirect", "/openapi.json"}
PUBLIC = {"/healthz", "/readyz", *DESCRIPTION, "/ui", "/ui/{name}"}
ADMIN = {
    ("POST", "/admin/reload"),
    ("POST", "/calibrate"),
    ("POST", "/v1/calibrate"),
    ("GET", "/calibrations"),
    ("GET", "/calibrations/{calibration_id}"),
    ("POST", "/calibrations/{calibration_id}/activate"),
    ("GET", "/calibrations/jobs"),
    ("GET", "/calibrations/jobs/{job_id}"),
    ("GET", "/calibrations/jobs/{job_id}/events"),
    ("DELETE", "/calibrations/jobs/{job_id}"),
    ("POST", "/decisions/{decision_id}/verify"),
    ("GET", "/drift"),
    ("POST", "/drift/reset"),
    ("POST", "/feedback/accept"),
    ("GET", "/same-answer"),
    ("POST", "/same-answer/calibrate"),
    ("POST", "/same-answer/{calibration_id}/activate"),
    ("GET", "/shadow/rows"),
    ("GET", "/shadow/waiting"),
    ("POST", "/shadow/judgements"),
}
WRONG_KEYS = [
    "Bearer wrong-key-of-the-tests",
    f"Bearer {DATA_KEY}x",
    f"Bearer {DATA_KEY[:-1]}",
    f"Basic {DATA_KEY}",
    DATA_KEY,
    "Bearer",
    "",
    "Bearer ' OR 1=1 --",
    "Bearer " + "x" * 10_000,
    "Bearer \xe9",
]


@pytest.fixture
def routes(serve: Serve) -> tuple[Gateway, set[tuple[str, str]]]:
    """A gateway, and the (method, path) of every route, HEAD aside."""
    return serve(calibrated=False), {(route.method, route.path) for route in ROUTES}


def filled(path: str) -> str:
    """A path with something in the place of each parameter."""
    return re.sub(r"\{[^}]*\}", "adder", path)


def test_every_route_but_the_public_ones_needs_a_key(
    routes: tuple[Gateway, set[tuple[str, str]]],
) -> None:
    """Every new route without a key check fails this test."""
    gateway, found = routes
    assert found > ADMIN
    with gateway.http(None) as client:
        for method, path in sorted(found):
            status = client.request(method, filled(path)).status_code
            if path in PUBLIC:
                # /readyz: not calibrated; /ui/{name}: no file is named like a candidate
                assert status in (200, 503, 404), (method, path)
            else:
                assert status == 401, (method, path)


def test_admin_routes_refuse_the_data_key(routes: tuple[Gateway, set[tuple[str, str]]]) -> None:
    """403 on exactly the admin routes; the data key opens the rest."""
    gateway, found = routes
    with gateway.http(DATA_KEY) as client:
        refused = {
            (method, path)
            for method, path in found
            if client.request(method, filled(path)).status_code == 403
        }
    assert refused == ADMIN


def test_other_methods_never_get_in(gateway: Gateway) -> None:
    """HEAD, OPTIONS, TRACE and the rest have no effect and no side door on any path."""
    with gateway.http(None) as client:
        for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"):
            for path in ("/calibrate", "/calibrations", "/route", "/v1/chat/completions"):
                assert client.request(method, path).status_code in (401, 403, 405), (method, path)


@pytest.mark.parametrize(
    "path", ["//calibrations", "/calibrations/", "/%2e%2e/calibrations", "/./calibrations",
             "/calibrations%2f", "/CALIBRATIONS"]
)  # fmt: skip
def test_no_spelling_of_a_path_gets_past_the_key(gateway: Gateway, path: str) -> None:
    """What is routed is what is authorised."""
    with gateway.http(None) as client:
        for headers in ({}, {"x-original-url": "/healthz"}, {"x-forwarded-prefix": "/healthz"}):
            assert client.get(path, headers=headers).status_code in (401, 403, 404, 307)


@pytest.fixture(scope="module")
def patient(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """A gateway that bears more wrong keys than these tests send."""
    access = {"failures_per_minute": 1_000}
    path = configure(tmp_path_factory.mktemp("patient"), artifact, shared_pool.url, access=access)
    with running(path, ENVIRONMENT) as gateway:
        yield gateway


@pytest.mark.parametrize("header", WRONG_KEYS, ids=lambda header: header[:24])
def test_a_wrong_key_is_unauthorized(patient: Gateway, pool: FakePool, header: str) -> None:
    """401 with the envelope and the scheme, on data and on admin routes; no candidate is called."""
    with patient.http(None) as client:
        for path in ("/v1/chat/completions", "/calibrate"):
            headers = {"authorization": header.encode("latin-1")}
            response = client.post(path, json={}, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-should-retry"] == "false"
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "wrong-key" not in response.text
    assert pool.models_called() == []


def test_the_key_is_checked_before_the_body(gateway: Gateway) -> None:
    """A client without a key learns nothing about how bodies are read."""
    for body in (b"{", b"\xff", b"[" * 100_000):
        assert gateway.post("/route", None, content=body).status_code == 401


def test_keys_through_the_official_client(gateway: Gateway) -> None:
    """A wrong key is AuthenticationError; both real keys may ask."""
    with pytest.raises(openai.AuthenticationError):
        gateway.openai("wrong-key-of-the-tests").models.list()
    for key in (DATA_KEY, ADMIN_KEY):
        assert gateway.openai(key).models.list().data
    with gateway.http(None) as client:
        headers = {"authorization": f"bearer   {DATA_KEY}"}
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_keys_are_compared_in_constant_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is sent, digests of one length meet in ``compare_digest``, never the keys."""
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("app.access.api_keys.hmac.compare_digest", compare_digest)
    assert gateway.get("/v1/models", DATA_KEY).status_code == 200
    assert gateway.get("/v1/models", "x").status_code == 401
    assert {len(each) for pair in compared for each in pair} == {32}
    assert len(compared) == 1  # only with a digest that begins alike


def test_admin_is_off_until_its_key_is_set(serve: Serve) -> None:
    """Without an admin key every admin route is 403 for all callers, on loopback too."""
    gateway = serve(environment={"RACER_DATA_KEY": DATA_KEY}, calibrated=False)
    for key in (None, DATA_KEY, ADMIN_KEY, ""):
        response = gateway.post("/calibrate", key, json={"rows": as_json(labelled(0, 4))})
        assert response.status_code == 403
        assert "RACER_ADMIN_KEY" in response.json()["error"]["message"]
        assert gateway.get("/calibrations", key).status_code == 403
    assert gateway.get("/v1/models", DATA_KEY).status_code == 200


def test_without_a_data_key_loopback_is_open(serve: Serve, pool: FakePool) -> None:
    """The first try needs no key, but calibrating still does."""
    gateway = serve(environment={"RACER_ADMIN_KEY": ADMIN_KEY})
    assert gateway.openai("unused").chat.completions.create(model="auto", messages=user(ONE))
    assert gateway.get("/metrics", None).status_code == 200
    assert gateway.post("/calibrate", None, json={}).status_code == 401
    assert gateway.post("/calibrate", "wrong", json={}).status_code == 401


def load(tmp_path: Path, artifact: Path, environment: dict[str, str], **changes: object) -> None:
    """Read a configuration with these keys."""
    settings.load(configure(tmp_path, artifact, "http://127.0.0.1:1/v1", **changes), environment)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gateway.example", "127.0.0.1.nip"])
def test_listening_beyond_loopback_needs_a_data_key(
    tmp_path: Path, artifact: Path, host: str
) -> None:
    """An address that others can reach stops the start without a key, and starts with one."""
    with pytest.raises(SettingsError, match=r"RACER_DATA_KEY.*127\.0\.0\.1"):
        load(tmp_path, artifact, {"RACER_ADMIN_KEY": ADMIN_KEY}, host=host)
    load(tmp_path, artifact, ENVIRONMENT, host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_none(tmp_path: Path, artifact: Path, host: str) -> None:
    """Every spelling of this machine."""
    load(tmp_path, artifact, {}, host=host)


@pytest.mark.parametrize("variable", ["RACER_DATA_KEY", "RACER_ADMIN_KEY"])
@pytest.mark.parametrize("key", ["sk-1234", "changeme", "x", "fifteen-chars--"])
def test_a_weak_key_is_refused(tmp_path: Path, artifact: Path, variable: str, key: str) -> None:
    """The error names the variable and how to make a key, and does not repeat the key."""
    with pytest.raises(SettingsError, match="openssl rand") as caught:
        load(tmp_path, artifact, {variable: key})
    assert variable in str(caught.value)
    assert key == "x" or key not in str(caught.value)


@pytest.mark.parametrize("variable", ["RACER_DATA_KEY", "RACER_ADMIN_KEY"])
@pytest.mark.parametrize(
    "key", ["a-good-key-of-24-chars-\n", " a-good-key-of-24-chars", "clé-secrète-123456"]
)
def test_a_key_that_no_client_can_send_is_refused(
    tmp_path: Path, artifact: Path, variable: str, key: str
) -> None:
    """A line end from a secrets file, or a letter outside ASCII, would never match a header."""
    with pytest.raises(SettingsError, match=variable):
        load(tmp_path, artifact, {variable: key})


def test_one_key_for_both_roles_is_refused(tmp_path: Path, artifact: Path) -> None:
    """Otherwise every data key could calibrate."""
    with pytest.raises(SettingsError, match="must differ") as caught:
        load(tmp_path, artifact, {"RACER_DATA_KEY": DATA_KEY, "RACER_ADMIN_KEY": DATA_KEY})
    assert DATA_KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nx: y", "sk 1", "sk-\u0107"])
def test_a_key_of_a_candidate_must_fit_into_a_header(
    tmp_path: Path, artifact: Path, key: str
) -> None:
    """A line end, usual in mounted files, would end the head of each call."""
    candidates = [
        {"name": name, "base_url": "http://127.0.0.1:9/v1", "api_key_env": "KEY"}
        for name in ("adder", "speller", "poet")
    ]
    with pytest.raises(SettingsError, match=r"\$KEY must be printable ASCII"):
        load(tmp_path, artifact, ENVIRONMENT | {"KEY": key}, candidates=candidates)


def test_keys_can_have_other_names(serve: Serve) -> None:
    """The configuration names the variables; the usual ones then mean nothing."""
    gateway = serve(
        access={"data_key_env": "OURS"},
        environment={"OURS": "our-own-data-key-1", **ENVIRONMENT},
        calibrated=False,
    )
    assert gateway.get("/v1/models", "our-own-data-key-1").status_code == 200
    assert gateway.get("/v1/models", DATA_KEY).status_code == 401


@pytest.mark.parametrize("stored", [False, True])
def test_secrets_and_prompts_are_in_no_log_metric_trace_or_error(
    serve: Serve, pool: FakePool, caplog: pytest.LogCaptureFixture, *, stored: bool
) -> None:
    """Canary keys and a canary prompt go through every kind of answer; nothing repeats them.

    Also where queries are stored: only who may see a decision sees its query.
    """
    upstream_key, prompt = "the-adders-own-key", "CANARY-prompt-41"
    texts: list[str] = []
    servers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "aiohttp", "app")]
    with caplog.at_level(logging.DEBUG), collector() as listening:
        gateway = serve(
            telemetry={"otlp_endpoint": listening.url},
            watching={"store_queries": stored},
            candidates=[
                {"name": n, "base_url": pool.url, "api_key_env": "KEY", "timeout_s": 0.3}
                for n in ("adder", "speller", "poet")
            ],
            environment={**ENVIRONMENT, "KEY": upstream_key},
        )
        for each in servers:
            each.addHandler(caplog.handler)
        try:
            for fault in (None, "500", "not_openai", "reset", "hang"):
                for name in ("adder", "speller", "poet"):
                    pool.say(name, "42", fault=fault)
                for racer in ({}, {"alpha": 0.001}, {"alpha": 7}, {"candidates": ["unknown"]}):
                    response = gateway.ask(f"{prompt} {ONE}", racer)
                    texts += [response.text.replace(response.json().get("id", ""), "")]
                    texts += [str(response.headers)]
            texts.append(gateway.post("/calibrate", ADMIN_KEY, json={"rows": [prompt]}).text)
            texts.append(gateway.post("/calibrate", DATA_KEY, json={"rows": [prompt]}).text)
            texts.append(gateway.get("/metrics").text)
            texts.append(gateway.get("/readyz").text)
            texts.append(gateway.get("/openapi.json").text)
            listening.routes(20)
            texts += [body.decode("latin-1") for body in listening.bodies]
        finally:
            for each in servers:
                each.removeHandler(caplog.handler)
    clients = ("httpx", "httpcore", "openai")
    texts += [
        f"{each.getMessage()} {each.exc_text}"
        for each in caplog.records
        if not each.name.startswith(clients)
    ]
    assert pool.headers[0]["authorization"] == f"Bearer {upstream_key}"
    for secret in (DATA_KEY, ADMIN_KEY, upstream_key, prompt):
        assert not [text for text in texts if secret in text], secret
