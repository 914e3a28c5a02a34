"""A gateway without an artifact: candidates answer; endpoints that need a router are refused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app import settings
from app.errors import SettingsError
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    POOL,
    Command,
    Gateway,
    configuration,
    running,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

MOST_MB = 150  # resident, once it has answered
HEAVY = ("torch", "transformers", "tokenizers")
# `racer serve`, which says in the end whether it looks for garbage, and what it had imported.
SERVE = f"""
import atexit, gc, sys
from app.cli.main import main
atexit.register(lambda: print(gc.isenabled(), *(x for x in {HEAVY} if x in sys.modules)))
main()
"""
ROWS = [{"query": "What is 1 plus 2?", "correct": dict.fromkeys(POOL, True)}]
VERDICT = {"decision_id": "chatcmpl-1", "correct": {"adder": True}}
ASKS: dict[str, Any] = {
    "/calibrate": {"rows": ROWS},
    "/calibrations/cal-1/activate": {},
    "/feedback": VERDICT,
    "/calibrations": None,
    "/calibrations/jobs": None,
    "/decisions/chatcmpl-1": None,
    "/drift": None,
    "/shadow/rows": None,
    "/shadow/waiting": None,
    "/shadow/judgements": {**VERDICT, "judge": "j"},
}

EVALUATED = {"method": "weighted", "weight": "p_true", "evaluator": {"candidate": POOL[0]}}


@pytest.fixture
def unrouted(tmp_path: Path, pool: FakePool) -> Iterator[Gateway]:
    """Served without an artifact."""
    with running(configuration(tmp_path, pool.url), ENVIRONMENT) as gateway:
        yield gateway


def test_a_candidate_answers_by_its_name(unrouted: Gateway, pool: FakePool) -> None:
    """Whole and streaming, in each API format; a header names it, and no other one is called."""
    pool.say("poet", "a rose")
    chat = unrouted.ask("a poem?", model="poet")
    assert chat.status_code == 200
    assert chat.headers["x-racer-served-by"] == "poet"
    assert chat.json()["choices"][0]["message"]["content"] == "a rose"
    stream = unrouted.openai().chat.completions.create(
        model="poet", messages=user("a poem?"), stream=True
    )
    assert "".join(event.choices[0].delta.content or "" for event in stream) == "a rose"
    completion = unrouted.post("/v1/completions", json={"model": "poet", "prompt": "a poem?"})
    assert completion.json()["choices"][0]["text"] == "a rose"
    assert set(pool.models_called()) == {"poet"}


@pytest.mark.parametrize("path", ASKS)
def test_an_endpoint_that_needs_a_router_says_what_to_configure(
    unrouted: Gateway, pool: FakePool, path: str
) -> None:
    """One sentence, and no advice to try again: nothing but the configuration can cure it."""
    method = "GET" if ASKS[path] is None else "POST"
    with unrouted.http(ADMIN_KEY) as client:
        response = client.request(method, path, json=ASKS[path])
    assert response.status_code == 503, response.text
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("api_error", "no_router")
    assert "`racer train`" in error["message"]
    assert "`artifact`" in error["message"]
    assert pool.models_called() == []


def test_it_is_ready_for_what_is_configured(unrouted: Gateway, tmp_path: Path) -> None:
    """Balancers may send it traffic; people read what is missing. No store is made."""
    ready = unrouted.get("/readyz", None)
    assert ready.status_code == 200
    status = ready.json()
    assert (status["status"], status["calibration"]) == ("ready", None)
    assert [each["part"] for each in status["missing"]] == ["artifact", "calibration"]
    assert "set `artifact`" in status["missing"][0]["next"]
    assert unrouted.chat("one?")["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    listed = unrouted.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["auto", *POOL]
    assert unrouted.get("/v1/models/auto").status_code == 200
    assert unrouted.ask("one?", model="unknown").json()["error"]["code"] == "model_not_found"
    assert unrouted.get("/metrics").status_code == 200
    assert [each.name for each in tmp_path.iterdir()] == ["racer.yaml"]


def test_the_configuration_is_valid_and_says_what_it_lacks(
    racer: Command, tmp_path: Path, pool: FakePool
) -> None:
    """`racer validate` names no router; `racer tune`, which needs one, is refused."""
    path = configuration(tmp_path, pool.url)
    code, out, _ = racer("validate", "--config", path, "--json")
    assert code == 0
    assert json.loads(out) == {"config": str(path), "pool": list(POOL), "router": None}
    (rows := tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    code, _, stderr = racer("tune", "--config", path, "--validation", rows)
    assert code == 2
    assert "no artifact is loaded" in stderr


def test_a_served_request_imports_no_torch(
    tmp_path: Path, pool: FakePool, record_property: Any
) -> None:
    """Of the command itself, once a candidate has answered; what it holds then is bounded, too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = configuration(tmp_path, pool.url, port=port)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
    )
    try:
        gateway = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {DATA_KEY}"},
            trust_env=False,
        )
        with gateway:
            assert until(lambda: _answers(gateway), 60)
            body = {"model": "adder", "messages": user("What is 3 plus 4?")}
            assert gateway.post("/v1/chat/completions", json=body).status_code == 200
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        megabytes = int(found[1]) * 1024 / 1e6
        record_property("resident_mb", megabytes)
        process.send_signal(signal.SIGTERM)
        out, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, stderr
    assert out.split() == ["True"], "garbage is looked for once the start is over, and no torch"
    assert "Missing: artifact" in stderr, "an artifact that was forgotten is noticed"
    assert megabytes <= MOST_MB


def _answers(gateway: httpx2.Client) -> bool:
    try:
        return gateway.get("/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def test_a_sampling_rate_is_refused_without_a_router(tmp_path: Path) -> None:
    """A setting without effect must not look as if it had one."""
    path = configuration(tmp_path, "http://127.0.0.1:1/v1", watching={"shadow_rate": 0.1})
    with pytest.raises(SettingsError, match=r"watching\.shadow_rate needs a store: set `artifact`"):
        settings.load(path, ENVIRONMENT)


def test_an_evaluator_weighs_the_votes_of_the_fallback(tmp_path: Path, pool: FakePool) -> None:
    """It needs candidates, not a router."""
    pool.rate(POOL[0], {"right": 0.9, "wrong": 0.1})
    for name, text in zip(POOL, ("wrong", "right", "wrong"), strict=True):
        pool.say(name, text)
    path = configuration(
        tmp_path,
        pool.url,
        routing={"fallback": "whole_pool"},
        aggregation=EVALUATED | {"equality": "exact", "temperature": 0.1},
    )
    with running(path, ENVIRONMENT) as gateway:
        answer = gateway.chat("one?")
    assert answer["choices"][0]["message"]["content"] == "right"
    assert answer["racer"]["evaluation"]["calls"] > 0
