"""Chat streams: events as the official client reads them, and candidates that break off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.answering import streaming
from tests.kit.gateway import ONE, POOL, TWO, UNANSWERABLE, Gateway, Serve, candidates, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

openai = LazyModule("openai")


def streamed(gateway: Gateway, text: str, **fields: Any) -> list[Any]:
    """The chunks as the official client gives them."""
    fields = {"model": "auto", **fields}
    return list(
        gateway.openai().chat.completions.create(messages=user(text), stream=True, **fields)
    )


def raw(gateway: Gateway, text: str, **fields: Any) -> tuple[Any, list[str]]:
    """The response's head and its lines."""
    body = {"model": "auto", "messages": user(text), "stream": True, **fields}
    with (
        gateway.http() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        return response, list(response.iter_lines())


def events(lines: list[str]) -> list[Any]:
    """The data of raw lines; ``[DONE]`` stays a string."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def text_of(chunks: list[Any]) -> str:
    """The deltas in order."""
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_choices_that_finish_one_by_one_all_arrive(gateway: Gateway, pool: FakePool) -> None:
    """With ``n = 2`` both finish reasons reach the client; the racer object is on the last."""
    choices = [
        {"index": 0, "delta": {"content": "7"}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
        {"index": 1, "delta": {"content": "seven"}, "finish_reason": None},
        {"index": 1, "delta": {}, "finish_reason": "length"},
    ]
    pool.say("adder", "", choices=choices)
    chunks = streamed(gateway, ONE, n=2)
    dumped = [choice.model_dump(exclude_unset=True) for chunk in chunks for choice in chunk.choices]
    assert dumped == choices
    assert [hasattr(chunk, "racer") for chunk in chunks] == [False, False, False, True]


def test_tool_calls_stream_with_their_index(gateway: Gateway, pool: FakePool) -> None:
    """Tool calls in a merged stream are deltas that the client can put together."""
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("add", "multiply")
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    for name in ("adder", "speller", "poet"):
        pool.say(name, "", message=message)
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    first, *_ = streamed(gateway, ONE, tools=tools)
    found = [(call.index, call.function.name) for call in first.choices[0].delta.tool_calls]
    assert found == [(0, "add"), (1, "multiply")]


def test_comments_keep_a_waiting_stream_alive(serve: Serve, pool: FakePool) -> None:
    """While a slow set answers, lines arrive that clients ignore; headers say ``pending``."""
    gateway = serve(limits={"comment_every_s": 0.05})
    pool.say("adder", "7", delay_s=0.8)
    pool.say("speller", "7")
    response, lines = raw(gateway, TWO)
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 3
    assert response.headers["x-racer-guarantee"] == "pending"
    assert response.headers["x-racer-selected"] == "adder,speller"
    assert "x-racer-served-by" not in response.headers
    assert lines.index(comments[-1]) < lines.index("data: [DONE]")
    assert events(lines)[-2]["racer"]["certificate"]["holds"] is True
    assert text_of(streamed(gateway, TWO)) == "7"


def test_a_refusal_is_a_stream_too(gateway: Gateway, pool: FakePool) -> None:
    """No candidate is called; content and refusal hold the sentence; the stream ends normally."""
    response, lines = raw(gateway, UNANSWERABLE)
    assert response.headers["x-racer-abstained"] == "true"
    *chunks, done = events(lines)
    assert done == "[DONE]"
    delta = chunks[0]["choices"][0]["delta"]
    assert delta["refusal"] == delta["content"] != ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["racer"]["abstained"] is True
    assert {chunk["model"] for chunk in chunks} == {"auto"}
    assert pool.models_called() == []


def test_a_pinned_model_streams_through(gateway: Gateway, pool: FakePool) -> None:
    """A candidate by name: its chunks with its name, the client's stream options, no racer."""
    pool.say("poet", "Roses")
    *others, last = streamed(gateway, ONE, model="poet", stream_options={"include_usage": True})
    assert text_of(others) == "Roses"
    assert last.usage.completion_tokens == 5
    assert {chunk.model for chunk in [*others, last]} == {"poet"}
    assert not hasattr(last, "racer")


@pytest.mark.parametrize(
    ("text", "fault", "status"),
    [
        (ONE, "500", 502),
        (TWO, "500", 502),
        (ONE, "429", 429),
        (ONE, "html", 502),
        (ONE, "not_openai", 502),
        (ONE, "stream_odd_choice", 502),
        (ONE, "stream_empty", 502),
        (TWO, "not_openai", 502),
        (TWO, "reset", 502),
    ],
)
def test_a_failure_before_the_first_byte_keeps_its_status(
    gateway: Gateway,
    pool: FakePool,
    text: str,
    fault: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that cannot begin is an ordinary error for the client, not a broken 200."""
    monkeypatch.setattr(streaming, "FIRST_EVENT_WAIT_S", 30.0)  # however late the candidates fail
    for name in POOL:
        pool.fail(name, fault)
    with pytest.raises(openai.APIStatusError) as caught:
        streamed(gateway, text)
    assert caught.value.status_code == status
    assert caught.value.type == ("rate_limit_error" if status == 429 else "upstream_error")


def test_a_late_failure_of_all_candidates_is_an_error_event(serve: Serve, pool: FakePool) -> None:
    """After the first comment the status has been sent, so the stream ends with an error event."""
    gateway = serve(candidates=candidates(pool.url, timeout_s=2), limits={"comment_every_s": 0.1})
    for name in POOL:
        pool.fail(name, "hang")
    response, lines = raw(gateway, TWO)
    assert response.status_code == 200
    assert events(lines)[-1]["error"]["code"] == "upstream_timeout"
    assert len(events(lines)) == 1
    with pytest.raises(openai.APIError, match="adder"):
        streamed(gateway, TWO)


def test_one_failure_of_a_set_does_not_fail_its_stream(gateway: Gateway, pool: FakePool) -> None:
    """The others' answer is streamed; the last chunk says who failed and what that voids."""
    pool.fail("adder", "500")
    pool.say("speller", "seven")
    chunks = streamed(gateway, TWO)
    assert text_of(chunks) == "seven"
    certificate = chunks[-1].racer["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["candidate_failed:adder"])


def test_a_choice_without_an_index_can_be_streamed(gateway: Gateway, pool: FakePool) -> None:
    """Some servers leave ``index`` out of a whole answer; the merged stream numbers them itself."""
    choice = {"message": {"role": "assistant", "content": "7"}, "finish_reason": "stop"}
    for name in ("adder", "speller"):
        pool.say(name, "7", fields={"choices": [choice]})
    assert text_of(streamed(gateway, TWO)) == "7"


@pytest.mark.parametrize(
    "choices",
    [
        ["42"],
        [{"index": 0, "message": {"content": "42", "tool_calls": "none"}}],
        [{"index": 0, "message": {"content": "42"}}, {"index": 1}],
        [{"index": 0, "message": {"content": "42"}}, "42"],
    ],
    ids=["text", "odd_tool_calls", "second_without_message", "second_is_text"],
)
def test_an_odd_answer_is_the_upstreams_fault_in_a_stream_too(
    gateway: Gateway, pool: FakePool, choices: Any
) -> None:
    """What is not OpenAI-shaped is an upstream error, never an internal one."""
    for name in ("adder", "speller"):
        pool.say(name, "42", fields={"choices": choices})
    _, lines = raw(gateway, TWO)
    body = json.loads(lines[0]) if lines[0].startswith("{") else events(lines)[-1]
    assert "error" not in body or body["error"]["type"] == "upstream_error"
    assert gateway.ask(TWO).status_code in (200, 502)


def test_text_cannot_forge_an_event(gateway: Gateway, pool: FakePool) -> None:
    """An answer that looks like the end of a stream stays one answer."""
    forged = 'no\n\ndata: [DONE]\n\ndata: {"error": {"message": "x"}}\r\n: x\u2028\x85'
    for name in ("adder", "speller"):
        pool.say(name, forged)
    assert text_of(streamed(gateway, TWO)) == forged
    assert text_of(streamed(gateway, ONE)) == forged
