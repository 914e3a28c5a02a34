"""Requests that no candidate can take: one error each, in the sample, in questions and in rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    Command,
    Gateway,
    Serve,
    as_json,
    candidates,
    configure,
    error_message,
    labelled,
    user,
)
from tests.kit.monitored import KEY, sampled, shadow_rows
from tests.kit.upstream import FakePool

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
NO_TOOLS: dict[str, Any] = {"capabilities": {"tools": False}}
REQUEST = {"messages": user(ONE), "tools": [TOOL]}


@pytest.fixture
def sampling(serve: Serve, pool: FakePool) -> Gateway:
    """A gateway that samples everything, before candidates without tools."""
    return serve(
        watching={"shadow_rate": 1.0, "store_requests": True},
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
        candidates=candidates(pool.url, **NO_TOOLS),
    )


def test_a_sampling_gateway_refuses_it_and_goes_on(sampling: Gateway, pool: FakePool) -> None:
    """It is no decision, so no row; the next request is served and sampled."""
    response = sampling.ask(ONE, tools=[TOOL])
    assert "no candidate" in error_message(response, 400)
    assert pool.models_called() == []
    assert sampling.chat(ONE)["choices"][0]["message"]["content"] == "42"
    assert sampled(sampling, 1) == {"whole": 1}
    assert len(shadow_rows(sampling)) == 1


def test_a_request_that_every_server_refuses_is_a_row_without_a_right_answer(
    sampling: Gateway, pool: FakePool
) -> None:
    """Left out, the rows would be drawn by what can be answered. The client gets one error."""
    for name in ("adder", "speller", "poet"):
        pool.fail(name, "400")
    assert sampling.ask(ONE).status_code == 400
    assert sampled(sampling, 1) == {"whole": 1}
    (row,) = shadow_rows(sampling)
    assert row["correct"] == {"adder": False, "speller": False, "poet": False}


def test_label_says_which_question_and_calls_nothing(
    racer: Command, tmp_path: Path, pool: FakePool
) -> None:
    """No file of rows is written."""
    config = configure(
        tmp_path, tmp_path / "none", pool.url, candidates=candidates(pool.url, **NO_TOOLS)
    )
    file, out = tmp_path / "questions.jsonl", tmp_path / "rows.jsonl"
    questions = [{"query": ONE, "reference": "42"}, {"request": REQUEST, "reference": "42"}]
    file.write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")
    code, _, error = racer("label", file, "--config", config, "--out", out, "--grade", "exact")
    assert code == 1
    assert "line 2" in error, error
    assert "no candidate can serve" in " ".join(error.split())
    assert pool.models_called() == []
    assert not out.exists()


def test_a_row_of_such_a_request_is_named_and_nothing_is_stored(sampling: Gateway) -> None:
    """The active calibration stays."""
    before = sampling.ready()
    rows = as_json(labelled(10_000, 30))
    rows[4] = {"request": REQUEST, "correct": rows[4]["correct"]}
    message = error_message(sampling.post("/calibrate", ADMIN_KEY, json={"rows": rows}), 422)
    assert "row 5" in message, message
    assert sampling.ready() == before
