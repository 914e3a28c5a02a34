"""Contract tests with Anthropic's client, and requests as Claude Code sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import STATUS
from app.wire.messages.errors import ERROR_TYPES
from tests.support.gateway import (
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    candidates,
    configure,
    running,
    user,
)
from tests.support.lazy import LazyModule
from tests.upstreams.scripted import FakePool

from .test_clients import CASES, POOR_KEY, TEAM_KEY, Case, hash_of

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


@pytest.mark.parametrize("query", [ONE, TWO, UNANSWERABLE])
def test_its_helper_follows_every_stream(gateway: Gateway, pool: FakePool, query: str) -> None:
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
    assert message.usage.output_tokens == plain.usage.output_tokens
    assert message.stop_reason == ("refusal" if query is UNANSWERABLE else "end_turn")
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
            "tool_calls": [
                call(1, arguments='{"a":3}'),
                call(2, arguments='{"a":4}'),
            ],
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


def test_tokens_are_counted(gateway: Gateway, pool: FakePool) -> None:
    """By the candidates' servers; where none can, the client says why."""
    pool.tokens |= dict.fromkeys(POOL, 12)
    counted = gateway.anthropic().messages.count_tokens(model="auto", messages=user(ONE))
    assert counted.input_tokens == 12
    pool.tokens.clear()
    with pytest.raises(anthropic.NotFoundError) as caught:
        gateway.anthropic().messages.count_tokens(model="auto", messages=user(ONE))
    assert caught.value.error_code == "no_tokenizer"


@pytest.mark.parametrize("query", [ONE, TWO])
def test_a_broken_stream_raises(gateway: Gateway, pool: FakePool, query: str) -> None:
    """An exception with the message, and never a text that looks whole."""
    for name in POOL:
        pool.say(name, "42", fault="cut" if query is ONE else "400", delay_s=0.4)
    with (
        pytest.raises(anthropic.APIStatusError, match="adder") as caught,
        gateway.anthropic().messages.stream(
            model="auto", max_tokens=64, messages=user(query)
        ) as stream,
    ):
        stream.get_final_message()
    assert caught.value.body["request_id"] == caught.value.response.headers["request-id"]


# Errors -----------------------------------------------------------------------------------------

CLASSES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    413: "ContentTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    502: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


@pytest.fixture(scope="module")
def _strict(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """A gateway that refuses what another would answer."""
    path = configure(
        tmp_path_factory.mktemp("strict"),
        artifact,
        shared_pool.url,
        candidates=candidates(shared_pool.url, timeout_s=0.5),
        routing={"on_infeasible": "reject"},
        fleet={"attempts": 1, "failures": 1000},
        limits={"body_bytes": 20_000},
        access={
            "keys": [
                {"name": "team", "hash": hash_of(TEAM_KEY), "max_alpha": 0.05},
                {"name": "poor", "hash": hash_of(POOR_KEY), "tokens_per_minute": 1},
            ]
        },
    )
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate()
        yield gateway


@pytest.fixture
def strict(_strict: Gateway, pool: FakePool) -> Gateway:
    """The same, with candidates that behave."""
    return _strict


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_anthropics_own(
    strict: Gateway, pool: FakePool, case: Case, stream: bool
) -> None:
    """Its class by status, its type, our code, and the id that the log has."""
    if case.fault is not None:
        for name in POOL:
            pool.fail(name, case.fault)
    if case.key == POOR_KEY:
        strict.post("/v1/messages", POOR_KEY, json={"model": "auto", "messages": user(ONE)})
    with pytest.raises(anthropic.APIStatusError) as caught:
        strict.anthropic(case.key).messages.create(
            model=case.model,
            max_tokens=64,
            messages=user(case.text),
            stream=stream,
            extra_body={"racer": case.racer},
        )
    found = caught.value
    assert type(found).__name__ == CLASSES[case.status]
    assert (found.status_code, found.error_code) == (case.status, case.code)
    usual = "api_error" if case.status >= 500 else "invalid_request_error"
    assert found.type == ERROR_TYPES.get(case.status, usual)
    assert found.request_id == found.response.headers["x-request-id"]
    assert found.body["request_id"] == found.request_id


def test_no_code_of_ours_means_something_else_to_the_client() -> None:
    """It has classes of its own for some codes."""
    theirs = {code for _, code in error_classes.ERROR_CLASSES if code is not None}
    ours = {code for _, _, code in STATUS.values()} | {"model_not_found", "no_tokenizer"}
    assert ours & theirs == set()


# Claude Code ------------------------------------------------------------------------------------

CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
NAMES = (
    "Task", "Bash", "Glob", "Grep", "LS", "Read", "Edit", "MultiEdit", "Write", "NotebookRead",
    "NotebookEdit", "WebFetch", "TodoRead", "TodoWrite", "WebSearch", "BashOutput", "KillShell",
    "ExitPlanMode", "SlashCommand", "Skill",
)  # fmt: skip
HEADERS = {
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.0.1 (external, cli)",
}
REMINDER = "<system-reminder>\nAs you answer, use the following context.\n</system-reminder>"


def harness_request() -> dict[str, Any]:
    """A later step of a task, as the harness sends it: prompt, tools, calls and their results."""
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "An absolute path."}},
        "required": ["path"],
        "additionalProperties": False,
        "$schema": "http://json-schema.org/draft-07/schema#",
    }
    return {
        "model": "auto",
        "max_tokens": 32_000,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0.1; cch=5f1a2;"},
            {"type": "text", "text": "You are a coding agent.", **CACHED},
            {"type": "text", "text": "# Rules\n" + "Be careful with files.\n" * 700, **CACHED},
        ],
        "tools": [
            {"name": name, "description": f"{name}. " * 40, "input_schema": schema}
            for name in NAMES
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": REMINDER},
                    {"type": "text", "text": ONE, **CACHED},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": "EqQBCg=="},
                    {"type": "text", "text": "I look at both files."},
                    *[
                        {
                            "type": "tool_use",
                            "id": f"toolu_{n}",
                            "name": "Read",
                            "input": {"path": f"/a/{n}"},
                        }
                        for n in (1, 2)
                    ],
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "1\tx = 3"}],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": "<tool_use_error>File does not exist.</tool_use_error>",
                        "is_error": True,
                        **CACHED,
                    },
                    {"type": "text", "text": REMINDER},
                ],
            },
        ],
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "metadata": {"user_id": "user_1_account__session_2"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stream": True,
    }


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
