"""Chat completions: tool calls, choices, images, log-probabilities, reasoning."""

from __future__ import annotations

from typing import Any

from tests.kit.gateway import ONE, POOL, TWO, Gateway, Serve
from tests.kit.upstream import FakePool, proposed

from .formats import CHAT, WHOLE_POOL

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    """A tool call as a candidate makes it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    """A message of tool calls alone."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def test_parallel_tool_calls_in_any_order_are_one_answer(gateway: Gateway, pool: FakePool) -> None:
    """Ids, order and the spelling of arguments do not count; the winner's own calls come back."""
    first = [call("add", '{"a": 1, "b": 2.0}'), call("spell", '{"n": 3}', 2)]
    second = [call("spell", '{"n":3}', 7), call("add", '{"b":2,"a":1}', 8)]
    pool.say("adder", "", message=calling(call("add", '{"a": 9}')))
    pool.say("speller", "", message=calling(*first))
    pool.say("poet", "", message=calling(*second))
    answer = gateway.chat(ONE, WHOLE_POOL, tools=TOOLS)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["choices"][0]["message"]["tool_calls"] in (first, second)
    assert answer["racer"]["answers"]["speller"] == first


def test_evaluators_rate_tool_calls_as_rows_record_them(serve: Serve, pool: FakePool) -> None:
    """Canonical JSON of names and arguments: a blank text would say nothing about the call."""
    evaluator = {"base_url": pool.url, "model": "judge"}
    gateway = serve(aggregation={"method": "weighted", "weight": "p_true", "evaluator": evaluator})
    pool.rated.clear()
    pool.say("adder", "", message=calling(call("add", '{"b": 2, "a": 1}')))
    pool.say("speller", "7")
    gateway.chat(TWO, {"explain": True}, tools=TOOLS)
    rated = {proposed(body) for body in pool.rated}
    assert rated >= {'[{"arguments":{"a":1,"b":2},"name":"add"}]', "7"}


def test_a_tool_call_streams_live_as_it_comes(gateway: Gateway, pool: FakePool) -> None:
    """Deltas of a call's arguments pass through one by one."""
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    pool.say("adder", "", choices=[*choices, end])
    _, events = CHAT.stream(gateway, ONE, tools=TOOLS, racer={"candidates": ["adder"]})
    assert [event["choices"][0] for event in events] == [*choices, end]


def test_log_probabilities_come_back(gateway: Gateway, pool: FakePool) -> None:
    """In a whole answer, and in the one chunk that a merged stream has for a text."""
    logprobs = {"content": [{"token": "7", "logprob": -0.1, "bytes": [55], "top_logprobs": []}]}
    message = {"role": "assistant", "content": "7"}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    for name in POOL:
        pool.say(name, "7", fields={"choices": [choice]})
    answer = gateway.chat(TWO, logprobs=True, top_logprobs=1)
    assert answer["choices"] == [choice]
    assert answer["racer"]["certificate"]["holds"] is True
    assert pool.requests[0]["top_logprobs"] == 1
    _, events = CHAT.stream(gateway, TWO, logprobs=True)
    assert events[0]["choices"][0]["logprobs"] == logprobs


def choices_of(*texts: str) -> list[dict[str, Any]]:
    """Several choices of one candidate."""
    return [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]


def test_with_several_choices_every_candidate_has_one_vote(
    gateway: Gateway, pool: FakePool
) -> None:
    """It votes for what most of its own choices say; the winner's are returned, all of them."""
    pool.say("adder", "", fields={"choices": choices_of("7", "7", "7")})
    pool.say("speller", "", fields={"choices": choices_of("9", "8", "8")})
    pool.say("poet", "", fields={"choices": choices_of("8", "8", "9")})
    answer = gateway.chat(ONE, WHOLE_POOL, n=3)
    assert answer["racer"]["votes"] == {"7": 1, "8": 2}
    assert answer["model"] in ("speller", "poet")
    expected = pool.scripts[answer["model"]].fields["choices"]
    assert answer["choices"] == expected


def test_surplus_and_repeated_choices_are_dropped(gateway: Gateway, pool: FakePool) -> None:
    """The server sends three choices for `n: 2`, or one choice twice."""
    pool.say("adder", "", fields={"choices": choices_of("7", "8", "9")})
    assert len(gateway.chat(ONE, n=2)["choices"]) == 2
    twice = [*choices_of("7"), *choices_of("8")]
    pool.say("adder", "", fields={"choices": twice})
    assert gateway.chat(ONE, n=2)["choices"] == twice[:1]


def test_several_choices_stream_after_the_vote(gateway: Gateway, pool: FakePool) -> None:
    """Each under its index, each finished."""
    for name in POOL:
        pool.say(name, "", fields={"choices": choices_of("7", "eight")})
    _, events = CHAT.stream(gateway, TWO, n=2)
    deltas = {(each["index"], each["delta"].get("content")) for each in events[0]["choices"]}
    assert deltas == {(0, "7"), (1, "eight")}
    assert [each["finish_reason"] for each in events[-1]["choices"]] == ["stop", "stop"]


def test_images_reach_every_candidate_as_they_were_sent(gateway: Gateway, pool: FakePool) -> None:
    """The gateway changes no part of a turn."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "x": 1}}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    parts = [{"type": "text", "text": ONE}, image, sound]
    answer = gateway.chat(ONE, WHOLE_POOL, messages=[{"role": "user", "content": parts}])
    assert len(pool.requests) == 3
    assert all(body["messages"][0]["content"] == parts for body in pool.requests)
    assert "unlabelled_request_kind" in answer["racer"]["certificate"]["reasons"]


def test_reasoning_passes_through(gateway: Gateway, pool: FakePool) -> None:
    """Under either name that servers give it: whole, merged in a stream, and live."""
    thought = {"reasoning_content": "3 and 4", "reasoning": "make 7"}
    message = {"role": "assistant", "content": "7", **thought}
    for name in POOL:
        pool.say(name, "7", message=message)
    assert gateway.chat(TWO)["choices"][0]["message"] == message
    _, events = CHAT.stream(gateway, TWO)
    assert events[0]["choices"][0]["delta"] == message
    live: list[dict[str, Any]] = [
        {"index": 0, "delta": thought, "finish_reason": None},
        {"index": 0, "delta": {"content": "7"}, "finish_reason": "stop"},
    ]
    pool.say("adder", "", choices=live)
    assert [event["choices"][0] for event in CHAT.stream(gateway, ONE)[1]] == live


def test_the_answers_format_is_passed_on(gateway: Gateway, pool: FakePool) -> None:
    """A JSON schema reaches the candidate, and no row was labelled under it."""
    wanted = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
    pool.say("adder", '{"sum": 7}')
    answer = gateway.chat(ONE, response_format=wanted)
    assert pool.requests[0]["response_format"] == wanted
    assert answer["racer"]["certificate"]["reasons"] == ["conditions_differ:response_format"]


def test_a_chunk_after_the_finish_is_not_lost(gateway: Gateway, pool: FakePool) -> None:
    """Some servers send an empty one; the last chunk carries the racer object."""
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": "7"}, "finish_reason": "stop"},
        {"index": 0, "delta": {"content": ""}, "finish_reason": None},
    ]
    pool.say("adder", "", choices=choices)
    _, events = CHAT.stream(gateway, ONE)
    assert [event["choices"][0] for event in events] == choices
    assert "racer" in events[-1]
