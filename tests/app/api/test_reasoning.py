"""Reasoning text in answers: no part of votes, ratings and rows; the client gets it as it came."""

from __future__ import annotations

from typing import Any

import pytest

from app.settings.aggregation import Aggregation
from tests.kit.gateway import TWO, Gateway, Serve
from tests.kit.upstream import FakePool, proposed


def test_markers_are_a_setting(serve: Serve, pool: FakePool) -> None:
    """Those of another model; the usual ones then are text."""
    gateway = serve(aggregation={"reasoning_markers": [["[THINK]", "[/THINK]"]]})
    pool.say("adder", "[THINK]3 + 4[/THINK]7")
    pool.say("speller", "<think>4 + 3</think>7")
    racer = gateway.chat(TWO, {"explain": True})["racer"]
    assert racer["votes"] == {"7": 1, "<think>4 + 3</think>7": 1}
    assert racer["answers"]["adder"] == "7"


@pytest.mark.parametrize(
    ("markers", "words"),
    [
        ([["|", "|"]], "both open and close"),
        ([["a", "b"], ["a", "c"]], "open twice"),
        ([["", "b"]], "blank"),
    ],
)
def test_markers_that_cannot_be_told_apart_are_refused(
    serve: Serve, markers: list[Any], words: str
) -> None:
    """Before the gateway serves."""
    with pytest.raises(Exception, match=words):
        serve(aggregation={"reasoning_markers": markers})


def test_fields_of_reasoning_are_no_part_of_the_answer(gateway: Gateway, pool: FakePool) -> None:
    """VLLM's `reasoning_content`, and `reasoning` of its newer versions."""
    for name, field in (("adder", "reasoning_content"), ("speller", "reasoning")):
        pool.say(name, "", message={"role": "assistant", "content": "7", field: f"{name}'s"})
    answer = gateway.chat(TWO, {"explain": True})
    assert answer["racer"]["votes"] == {"7": 2}
    assert answer["choices"][0]["message"]["reasoning_content"] == "adder's"


def test_evaluators_rate_answers_as_rows_record_them(serve: Serve, pool: FakePool) -> None:
    """Without thoughts, which argue for themselves; tool calls as canonical JSON."""
    evaluator = {"base_url": pool.url, "model": "judge"}
    gateway = serve(aggregation={"method": "weighted", "weight": "p_true", "evaluator": evaluator})
    pool.rated.clear()
    function = {"name": "add", "arguments": '{"b": 2, "a": 1}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    pool.say("adder", "", message={"role": "assistant", "content": None, "tool_calls": calls})
    pool.say("speller", "<think>3 + 5</think>8")
    gateway.chat(TWO, {"explain": True}, tools=[{"type": "function", "function": {"name": "add"}}])
    rated = {proposed(body) for body in pool.rated}
    assert rated == {'[{"arguments":{"a":1,"b":2},"name":"add"}]', "8"}


def test_a_vote_without_thoughts_is_another_than_one_with_them() -> None:
    """A limit on answers that was tested with other markers does not hold for their vote."""
    before = Aggregation(reasoning_markers=()).rule
    assert before == "majority auto router 1.0 10 ()"
    assert Aggregation().rule != before
    assert Aggregation(reasoning_markers=(("[", "]"),)).rule not in (before, Aggregation().rule)
