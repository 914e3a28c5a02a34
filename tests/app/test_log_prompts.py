"""Prompts and answers in the log: only if the operator enables them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from app.telemetry import logs
from tests.kit.gateway import ONE, TWO, UNANSWERABLE, Gateway, Serve, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until


@pytest.fixture
def talking(serve: Serve) -> Gateway:
    """A gateway with the setting enabled."""
    return serve(telemetry={"log_prompts": True})


def written(gateway: Gateway, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The access line of one request."""
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        assert gateway.post(path, json=body).status_code == 200
        # A stream's line comes after its last byte.
        wait_until(lambda: '"app.access"' in stream.getvalue())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    [line] = [line for line in lines if line["logger"] == "app.access"]
    return line


CHAT = "/v1/chat/completions"
REQUESTS = [
    pytest.param(CHAT, {"model": "auto", "messages": user(TWO)}, TWO, "7", id="chat"),
    pytest.param(CHAT, {"model": "poet", "messages": user(ONE)}, ONE, "7", id="named"),
    pytest.param("/v1/completions", {"model": "auto", "prompt": ONE}, ONE, "7", id="completions"),
    pytest.param("/v1/responses", {"model": "auto", "input": ONE}, ONE, "7", id="responses"),
    pytest.param("/route", {"query": ONE}, ONE, None, id="decision"),
    pytest.param("/route", {"query": ONE, "execute": True}, ONE, "7", id="executed"),
    pytest.param(
        CHAT, {"model": "auto", "messages": user(ONE), "stream": True}, ONE, None, id="stream"
    ),
]


@pytest.mark.parametrize(("path", "body", "prompt", "answer"), REQUESTS)
def test_prompts_are_written_where_they_are_wanted(
    talking: Gateway,
    pool: FakePool,
    path: str,
    body: dict[str, Any],
    prompt: str,
    answer: str | None,
) -> None:
    """What the router reads, and what is answered; streams and decisions have no answer."""
    for name in ("adder", "speller", "poet"):
        pool.say(name, "7")
    line = written(talking, path, body)
    assert (line["prompt"], line.get("answer")) == (prompt, answer)
    if body.get("model") != "poet":
        assert line["decision_id"]
        assert line["selected"]


@pytest.mark.parametrize(("path", "body", "prompt", "answer"), REQUESTS)
def test_prompts_are_not_written_otherwise(
    gateway: Gateway, path: str, body: dict[str, Any], prompt: str, answer: str | None
) -> None:
    """The line says the rest."""
    del prompt, answer
    line = written(gateway, path, body)
    assert "prompt" not in line
    assert "answer" not in line


def test_a_refusal_is_an_answer(talking: Gateway, pool: FakePool) -> None:
    """No candidate was called, and the answer is the sentence that the client got."""
    line = written(talking, CHAT, {"model": "auto", "messages": user(UNANSWERABLE)})
    assert line["answer"].startswith("No model of the pool")
    assert line["selected"] == ""


def test_a_request_that_cannot_be_routed_has_no_prompt(talking: Gateway, pool: FakePool) -> None:
    """A named candidate is called all the same."""
    body = {"model": "poet", "messages": [{"role": "assistant", "content": "I speak."}]}
    line = written(talking, CHAT, body)
    assert "prompt" not in line
    assert line["answer"] == "42"


def test_an_answer_is_cut_as_prompts_are(serve: Serve, pool: FakePool) -> None:
    """A candidate that goes on and on does not fill the disk with one line."""
    gateway = serve(telemetry={"log_prompts": True}, limits={"query_chars": 50})
    pool.say("poet", "7" * 1_000)
    line = written(gateway, CHAT, {"model": "poet", "messages": user("9" * 1_000)})
    assert line["answer"] == "7" * 50
    assert line["prompt"] == "9" * 50
