"""Roles of keys: data and admin routes, and routes closed by default."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.api.routes import ROUTES
from app.errors import SettingsError
from tests.kit.accounts import configured_key
from tests.kit.case import Shared
from tests.kit.collector import collector
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    Gateway,
    Serve,
    as_json,
    candidates,
    configure,
    labelled,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

openai = LazyModule("openai")

DESCRIPTION = {"/docs", "/docs/oauth2-redirect", "/openapi.json"}
PUBLIC = {"/health", "/healthz", "/readyz", *DESCRIPTION, "/ui", "/ui/{name}"}
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
    ("GET", "/coverage"),
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


@pytest.mark.parametrize("header", WRONG_KEYS, ids=lambda header: header[:24])
def test_a_wrong_key_is_unauthorized(shared: Shared, pool: FakePool, header: str) -> None:
    """401 with the envelope and the scheme, on data and on admin routes; no candidate is called."""
    gateway = shared(access={"failures_per_minute": 1_000}, calibrated=False).gateway
    with gateway.http(None) as client:
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
    headers = {"authorization": f"bearer   {DATA_KEY}"}
    assert gateway.get("/v1/models", None, headers=headers).status_code == 200


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


def candidate_key(key: str) -> dict[str, Any]:
    """The key of every candidate."""
    return {"KEY": key, **ENVIRONMENT}


NEW, ENTRY = configured_key("team-a")
ADMIN_ALONE = {"RACER_ADMIN_KEY": ADMIN_KEY}
PUBLIC_ADMIN = {"access": {"admin": {"host": "0.0.0.0", "port": 9443}}}
OWN_KEYS = {"candidates": candidates("http://127.0.0.1:9/v1", api_key_env="KEY")}
OTHER = "x" if NEW[20] != "x" else "y"
GUESSED = (
    *("sk-1234", "changeme", "x", "fifteen-chars--", "sk-1234" * 4, "changeme-changeme"),
    *("a" * 40, "ab" * 10, "x1" * 150, NEW[:-1], f"{NEW[:20]}{OTHER}{NEW[21:]}"),
)
UNSENDABLE = ("a-good-key-of-24-chars-\n", " a-good-key-of-24-chars", "clé-secrète-123456")
LOOPBACK = ("127.0.0.1", "::1", "localhost", "127.8.8.8")
REACHABLE = ("0.0.0.0", "::", "10.1.2.3", "gateway.example", "127.0.0.1.nip")


def keys(*entries: dict[str, Any]) -> dict[str, Any]:
    """Configured keys."""
    return {"access": {"keys": list(entries)}}


@pytest.mark.parametrize(
    ("environment", "changes", "words"),
    [
        *((ADMIN_ALONE, {"host": host}, r"RACER_DATA_KEY.*127\.0\.0\.1") for host in REACHABLE),
        (ADMIN_ALONE, PUBLIC_ADMIN, "data key is required"),
        *(
            ({name: key}, {}, rf"{name}(?s:.*)(openssl rand|racer key new)")
            for name in ENVIRONMENT
            for key in GUESSED
        ),
        *(({name: key}, {}, name) for name in ENVIRONMENT for key in UNSENDABLE),
        ({name: DATA_KEY for name in ENVIRONMENT}, {}, "must differ"),
        *(
            (candidate_key(key), OWN_KEYS, r"\$KEY must be printable ASCII")
            for key in ("sk-1\n", "sk-1\r\nx: y", "sk 1", "sk-\u0107")
        ),
        (ENVIRONMENT, keys(ENTRY | {"name": "data"}), "reserved"),
        (ENVIRONMENT, keys(ENTRY, configured_key("team-a")[1]), "same name"),
        (ENVIRONMENT, keys(ENTRY | {"hash": "sha256:00:11"}), "hash"),
        ({}, keys(ENTRY, ENTRY | {"name": "team-b"}), "same hash"),
        ({"RACER_ADMIN_KEY": NEW}, keys(ENTRY), r"RACER_ADMIN_KEY.*team-a"),
    ],
)
def test_a_start_with_unsafe_keys_is_refused(
    tmp_path: Path, artifact: Path, environment: dict[str, str], changes: dict[str, Any], words: str
) -> None:
    """An open gateway, a weak, cut or unsendable key, one for two roles; no error repeats a key."""
    with pytest.raises(SettingsError, match=words) as caught:
        load(tmp_path, artifact, environment, **changes)
    assert not [key for key in environment.values() if len(key) > 1 and key in str(caught.value)]


@pytest.mark.parametrize(
    ("environment", "changes"),
    [
        *(({}, {"host": host}) for host in LOOPBACK),
        *((ENVIRONMENT, {"host": host}) for host in REACHABLE),
        (ENVIRONMENT, PUBLIC_ADMIN),
    ],
)
def test_loopback_needs_no_key_and_one_opens_every_address(
    tmp_path: Path, artifact: Path, environment: dict[str, str], changes: dict[str, Any]
) -> None:
    """Every spelling of this machine."""
    load(tmp_path, artifact, environment, **changes)


def load(tmp_path: Path, artifact: Path, environment: dict[str, str], **changes: object) -> None:
    """Read a configuration with these keys."""
    settings.load(configure(tmp_path, artifact, "http://127.0.0.1:1/v1", **changes), environment)


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
            candidates=candidates(pool.url, api_key_env="KEY", timeout_s=0.3),
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
