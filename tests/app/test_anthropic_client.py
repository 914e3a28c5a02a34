"""Contract tests with Anthropic's client, and requests as Claude Code sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit.coding_agents import HEADERS, NAMES, REMINDER, harness_request
from tests.kit.gateway import DATA_KEY, ONE, POOL, TWO, UNANSWERABLE, Gateway, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

anthropic = LazyModule("anthropic")
error_classes = LazyModule("anthropic._error_classes")

TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def call(number: int, name: str = "add", arguments: str = '{"a": 3}') -> dict[str, Any]:
    """A call of a tool, as chat has it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def say(pool: FakePool, *calls: dict[str, Any], text: str | None = None, **more: Any) -> None:
    """Let every candidate answer with these calls, as a whole and as a stream."""
    message = {"role": "assistant", "content": text, "tool_calls": list(calls), **more}
    parts = [{"tool_calls": [{"index": place, **each}]} for place, each in enumerate(calls)]
    deltas = [*({name: value} for name, value in more.items()), {"content": text}, *parts]
    chunks = [{"index": 0, "delta": each, "finish_reason": None} for each in deltas]
    finish = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    for name in POOL:
        pool.say(name, "", message=message, choices=[*chunks, finish])


def blocks(message: Any) -> list[tuple[Any, ...]]:
    """What its content says."""
    return [
        (each.type, getattr(each, "text", None), getattr(each, "input", None))
        for each in message.content
    ]


# Answers ----------------------------------------------------------------------------------------


def test_a_message_and_what_is_beside_it(gateway: Gateway, pool: FakePool) -> None:
    """Text, model, tokens, stop reason, the racer object, the headers, the request's id."""
    pool.say("adder", "seven")
    raw = gateway.anthropic().messages.with_raw_response.create(
        model="auto", max_tokens=64, messages=user(ONE), extra_body={"racer": {"alpha": 0.1}}
    )
    message = raw.parse()
    assert [(block.type, block.text) for block in message.content] == [("text", "seven")]
    assert (message.model, message.stop_reason) == ("adder", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (10, 5)
    assert message.racer["selected"] == ["adder"]
    assert message.racer["decision_id"] == message.id == raw.headers["x-racer-decision-id"]
    assert raw.headers["x-racer-served-by"] == "adder"
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


@pytest.mark.parametrize(
    ("query", "counts"),
    [(ONE, {5}), (TWO, {5, 10}), (UNANSWERABLE, {0})],  # the first answer of two may decide
)
def test_its_helper_follows_every_stream(
    gateway: Gateway, pool: FakePool, query: str, counts: set[int]
) -> None:
    """Live, merged, and when no candidate was called."""
    for name in POOL:
        pool.say(name, "seven")
    with gateway.anthropic().messages.stream(
        model="auto", max_tokens=64, messages=user(query)
    ) as stream:
        events = list(stream)
        message = stream.get_final_message()
    plain = gateway.anthropic().messages.create(model="auto", max_tokens=64, messages=user(query))
    assert blocks(message) == blocks(plain)
    assert (message.stop_reason, message.model) == (plain.stop_reason, plain.model)
    for usage in message.usage, plain.usage:
        assert usage.output_tokens in counts
        assert usage.input_tokens == 2 * usage.output_tokens  # each answer counts whole
    assert message.stop_reason == "end_turn"  # a refusal would blame the user
    (delta,) = [event for event in events if event.type == "message_delta"]
    assert delta.racer["decision_id"] == message.id
    assert [event.type for event in events][-1] == "message_stop"


@pytest.mark.parametrize("query", [ONE, TWO])
def test_tools_are_called_and_answered(gateway: Gateway, pool: FakePool, query: str) -> None:
    """Parallel calls, plain and streamed; the results go back with the client's own blocks."""
    say(pool, call(1), call(2, arguments='{"a": 4}'), text="I add.")
    request: dict[str, Any] = {"model": "auto", "max_tokens": 64, "tools": [TOOL]}
    message = gateway.anthropic().messages.create(messages=user(query), **request)
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in message.content[1:]] == [{"a": 3}, {"a": 4}]
    with gateway.anthropic().messages.stream(messages=user(query), **request) as stream:
        assert blocks(stream.get_final_message()) == blocks(message)
    results = [
        {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "call_1", "content": "7"},
    ]
    pool.reset()
    pool.say("adder", "It is 7.")
    turns = [
        *user(query),
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    again = gateway.anthropic().messages.create(messages=turns, **{**request, "model": "adder"})
    assert again.content[0].text == "It is 7."
    assert pool.requests[0]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [call(1, arguments='{"a":3}'), call(2, arguments='{"a":4}')],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]


def test_thinking_comes_and_goes_back(gateway: Gateway, pool: FakePool) -> None:
    """A block of the reasoning, which the client returns with its next request."""
    message = {"role": "assistant", "content": "7", "reasoning_content": "3 + 4"}
    pool.say("adder", "7", message=message)
    request: dict[str, Any] = {
        "model": "adder",
        "max_tokens": 4_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
    }
    found = gateway.anthropic().messages.create(messages=user(ONE), **request)
    assert [(each.type, each.thinking) for each in found.content[:1]] == [("thinking", "3 + 4")]
    turns = [*user(ONE), {"role": "assistant", "content": found.content}, *user("And 5 + 4?")]
    gateway.anthropic().messages.create(messages=turns, **request)
    assert pool.requests[1]["messages"][1] == message
    hidden = gateway.anthropic().messages.create(messages=user(ONE), model="adder", max_tokens=64)
    assert [each.type for each in hidden.content] == ["text"]


def test_images_reach_candidates(gateway: Gateway, pool: FakePool) -> None:
    """By their data and by their address."""
    sources: list[Any] = [
        {"type": "base64", "media_type": "image/png", "data": "AA=="},
        {"type": "url", "url": "https://example.org/a.png"},
    ]
    content: list[Any] = [{"type": "image", "source": each} for each in sources]
    gateway.anthropic().messages.create(
        model="adder", max_tokens=64, messages=[{"role": "user", "content": content}]
    )
    assert [part["image_url"]["url"] for part in pool.requests[0]["messages"][0]["content"]] == [
        "data:image/png;base64,AA==",
        "https://example.org/a.png",
    ]


def test_stop_sequences_and_limits_are_told_apart(gateway: Gateway, pool: FakePool) -> None:
    """As vLLM says which sequence it was."""
    for reason, finish in (("stop_sequence", "stop"), ("max_tokens", "length")):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "sev"},
            "finish_reason": finish,
            "stop_reason": "END" if finish == "stop" else None,
        }
        pool.say("adder", "sev", fields={"choices": [choice]})
        message = gateway.anthropic().messages.create(
            model="adder", max_tokens=64, messages=user(ONE), stop_sequences=["END"]
        )
        assert message.stop_reason == reason
        assert message.stop_sequence == ("END" if reason == "stop_sequence" else None)


# Claude Code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["x-api-key", "authorization"])
def test_a_harness_works_unchanged(gateway: Gateway, pool: FakePool, auth: str) -> None:
    """A large cached prompt, twenty tools, parallel calls with results, beta headers, a stream."""
    say(
        pool,
        call(1, "Read", '{"path": "/a/3"}'),
        call(2, "Grep", '{"path": "/a"}'),
        text="One more.",
        reasoning_content="Hm.",
    )
    key = {auth: DATA_KEY if auth == "x-api-key" else f"Bearer {DATA_KEY}"}
    with (
        gateway.http(None) as plain,
        plain.stream(
            "POST",
            "/v1/messages?beta=true",
            json=harness_request(),
            headers={**HEADERS, "anthropic-version": "2023-06-01", **key},
        ) as response,
    ):
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert response.status_code == 200, events
    starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [each["type"] for each in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [each["name"] for each in starts[2:]] == ["Read", "Grep"]
    assert {each["delta"]["type"] for each in events if each["type"] == "content_block_delta"} == {
        "thinking_delta", "signature_delta", "text_delta", "input_json_delta",
    }  # fmt: skip
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["racer"]["selected"]
    request = pool.requests[0]
    assert "billing" not in json.dumps(request)
    assert "cache_control" not in json.dumps(request)
    assert request.keys() == {
        *("messages", "tools", "max_tokens", "temperature", "user", "model", "stream"),
        *(("stream_options",) if request["stream"] else ()),
    }
    assert [each["function"]["name"] for each in request["tools"]] == list(NAMES)
    assert [each["role"] for each in request["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "user")
    ]
    assert request["messages"][1]["content"] == f"{REMINDER}\n{ONE}"
    assert request["messages"][2]["reasoning_content"] == "I look."
    assert request["messages"][4]["content"].startswith("Error: <tool_use_error>")


def test_its_beta_client_works_unchanged(gateway: Gateway, pool: FakePool) -> None:
    """The same request by the official client, whose path has `?beta=true`."""
    say(pool, call(1, "Read", '{"path": "/a/3"}'), text="One more.")
    later = ("stream", "temperature")  # it sends the one itself, and knows the other no more
    request = {name: value for name, value in harness_request().items() if name not in later}
    betas = HEADERS["anthropic-beta"].split(",")
    with gateway.anthropic().beta.messages.stream(betas=betas, **request) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert message.content[-1].input == {"path": "/a/3"}
    assert pool.headers[0].keys() & {"anthropic-beta", "anthropic-version", "x-app"} == set()
