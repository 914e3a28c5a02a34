"""Answers without a known end: a candidate that did not finish has failed, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UpstreamError
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.format import AnswerKind, ApiFormat
from app.wire.messages.format import Messages
from app.wire.responses import Responses
from tests.kit.case import Shared
from tests.kit.gateway import ONE, POOL, TWO, Gateway, candidates, user
from tests.kit.upstream import FakePool

from .formats import EVERY_API, MESSAGES, RESPONSES, STREAMED, WHOLE_POOL, Api

ERROR = {"message": "out of memory", "code": 500}
# Ends of a choice that no client should take for the end of an answer.
ENDS: dict[str, Any] = {
    "null": None,
    "abort": "abort",
    "error": "error",
    "a word of tomorrow": "insufficient_system_resource",
    "a number": 7,
}
# The same of the Responses API: members of the response.
STATES: dict[str, dict[str, Any]] = {
    "null": {"status": None},
    "abort": {"status": "cancelled"},
    "error": {"status": "failed"},
    "a word of tomorrow": {"status": "insufficient_system_resource"},
    "a number": {"status": 7},
}
BESIDE = "an error beside the answer"
INSIDE = "an error in the choice"
FAULTS = [*ENDS, BESIDE, INSIDE]
EVERY_FAULT = pytest.mark.parametrize("fault", FAULTS)


def break_off(pool: FakePool, api: Api, name: str, fault: str) -> None:
    """Let a candidate answer 42, whole and streamed, and end it so."""
    if fault == BESIDE:
        pool.say(name, "42", fields={"error": ERROR}, members={"error": ERROR})
    elif api is RESPONSES:
        pool.say(name, "42", fields=STATES.get(fault, {"error": ERROR}))
    else:
        end = {"finish_reason": ENDS[fault]} if fault in ENDS else {"error": ERROR}
        text = {"text": "42"} if api.path == "completions" else {"message": message("42")}
        whole = {"index": 0, "finish_reason": "stop", **text, **end}
        last = {"index": 0, "finish_reason": "stop", "delta": {}, "text": "", **end}
        pool.say(name, "42", fields={"choices": [whole]}, choices=[last])


def message(text: str) -> dict[str, Any]:
    """What a candidate says in chat."""
    return {"role": "assistant", "content": text}


# What clients get -------------------------------------------------------------------------------


@EVERY_API
@EVERY_FAULT
@pytest.mark.parametrize("model", ["auto", "adder"])
def test_an_answer_that_did_not_finish_is_an_error(
    gateway: Gateway, pool: FakePool, api: Api, model: str, fault: str
) -> None:
    """By name and as a set of one: a status, or the error event that ends a stream."""
    break_off(pool, api, "adder", fault)
    response = api.post(gateway, ONE, model=model)
    says_so = fault in (BESIDE, INSIDE) or (api is RESPONSES and fault == "error")
    code = "upstream_error" if says_so else "upstream_disconnected"
    assert (response.status_code, api.code(response.json()["error"])) == (502, code)
    streamed, events = api.broken(gateway, ONE, model=model)
    if fault == BESIDE:  # in its first event, before anything was sent
        assert streamed.status_code == 502
        return
    assert "".join(map(api.delta, events[:-1])) == "42"
    assert api.code(events[-1]["error"]) == code
    assert not streamed.headers.get("x-racer-guarantee", "").startswith("holds")


@EVERY_API
@STREAMED
@EVERY_FAULT
def test_an_unfinished_answer_has_no_vote_and_no_certificate(
    gateway: Gateway, pool: FakePool, api: Api, stream: bool, fault: str
) -> None:
    """The other of two answers alone; the certificate names who failed. Red: "42" had a vote."""
    break_off(pool, api, "adder", fault)
    pool.say("speller", "seven")
    reply = api.ask(gateway, TWO, racer={"explain": True}, stream=stream)
    assert (reply.text, reply.racer["served_by"]) == ("seven", "speller")
    assert reply.racer["votes"] == {"seven": 1}
    assert "candidate_failed:adder" in reply.reasons
    assert not reply.racer["certificate"]["holds"]


@EVERY_API
@EVERY_FAULT
def test_a_whole_pool_that_did_not_finish_is_no_answer(
    gateway: Gateway, pool: FakePool, api: Api, fault: str
) -> None:
    """One error for all."""
    for name in POOL:
        break_off(pool, api, name, fault)
    response = api.post(gateway, ONE, racer=WHOLE_POOL)
    assert response.status_code == 502
    assert "racer" not in response.json()


@EVERY_API
@STREAMED
@EVERY_FAULT
def test_an_unfinished_answer_is_not_cached(
    shared: Shared, pool: FakePool, api: Api, stream: bool, fault: str
) -> None:
    """Without a router the fallback answers; what came of the first call is not sent again."""
    gateway = shared(
        candidates=candidates(pool.url, parameters={"temperature": 0}),
        artifact=Path("absent"),
        calibrated=False,
        answer_cache={},
    ).gateway
    for name in POOL:
        break_off(pool, api, name, fault)
    fields: dict[str, Any] = {"temperature": 0, "top_p": 1 / (2 + FAULTS.index(fault))}
    if stream:
        api.broken(gateway, ONE, **fields)
    else:
        assert api.post(gateway, ONE, **fields).status_code == 502
    for name in POOL:
        pool.say(name, "seven")
    found = [api.ask(gateway, ONE, stream=stream, **fields) for _ in range(2)]
    assert [each.text for each in found] == ["seven"] * 2
    assert [each.headers["x-racer-cache"] for each in found] == ["miss", "hit"]


def test_embeddings_beside_an_error_are_none(gateway: Gateway, pool: FakePool) -> None:
    """They are passed on as they are, unless the candidate says that it failed."""
    pool.say("adder", "", members={"error": ERROR})
    response = gateway.post("/v1/embeddings", json={"model": "adder", "input": "one"})
    assert response.status_code == 502


# Ends that servers spell otherwise --------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "read"),
    [
        ("eos", "stop"),
        ("eos_token", "stop"),
        ("STOP", "stop"),
        ("stop_sequence", "stop"),
        ("tool_calls", "tool_calls"),
        ("function_call", "function_call"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("content_filter", "content_filter"),
    ],
)
@STREAMED
def test_known_ends_are_spelt_as_clients_know_them(
    gateway: Gateway, pool: FakePool, finish: str, read: str, stream: bool
) -> None:
    """Words of servers that speak almost the same protocol."""
    whole = {"index": 0, "message": message("42"), "finish_reason": finish}
    last = {"index": 0, "delta": {}, "finish_reason": finish}
    pool.say("adder", "42", fields={"choices": [whole]}, choices=[last])
    body = {"model": "adder", "messages": user(ONE), "stream": stream}
    response = gateway.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert f'"finish_reason":"{read}"' in response.text
    assert response.text.count('"finish_reason":"') == 1


def test_an_empty_finish_reason_in_mid_stream_is_no_end(gateway: Gateway, pool: FakePool) -> None:
    """Some servers write "" where others write null."""
    parts = [
        {"index": 0, "delta": {"content": "4"}, "finish_reason": ""},
        {"index": 0, "delta": {"content": "2"}, "finish_reason": ""},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    pool.say("adder", "", choices=parts)
    response = gateway.post(
        "/v1/chat/completions", json={"model": "adder", "messages": user(ONE), "stream": True}
    )
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    ends = [json.loads(each)["choices"][0]["finish_reason"] for each in data]
    assert [each or None for each in ends] == [None, None, "stop"]


# Any end ----------------------------------------------------------------------------------------

WORDS = ("stop", "tool_calls", "function_call", "length", "content_filter")
SPELT = ("eos", "eos_token", "stop_sequence", "max_tokens", "model_length")
FORMATS: list[ApiFormat] = [Chat(), Completions(), Messages()]
_ends = st.one_of(
    st.sampled_from([*WORDS, *SPELT, *ENDS.values()]),
    st.text(max_size=8),
    st.integers(),
    st.lists(st.sampled_from(WORDS), max_size=1),
)


def is_known(end: object) -> bool:
    """Whether an answer may end so."""
    return isinstance(end, str) and end.lower() in (*WORDS, *SPELT)


@pytest.mark.parametrize("api_format", FORMATS, ids=lambda each: type(each).__name__)
@given(end=_ends)
@example(end="abort")
@example(end="")
def test_only_known_ends_are_read(api_format: ApiFormat, end: Any) -> None:
    """A whole answer has one of them; a choice is whole for the cache if it ended well."""
    both = {"text": "42", "message": message("42"), "delta": {"content": "42"}}
    data = json.dumps({"choices": [{"index": 0, "finish_reason": end, **both}]})
    if not is_known(end):
        with pytest.raises(UpstreamError):
            api_format.body("qwen", data.encode())
        if end:
            with pytest.raises(UpstreamError):
                api_format.piece("qwen", data)
        else:
            assert api_format.ends(api_format.piece("qwen", data)) == {0: False}
        return
    (choice,) = api_format.choices(api_format.body("qwen", data.encode()))
    assert choice.finish_reason in WORDS
    assert choice.is_whole is (choice.finish_reason not in ("length", "content_filter"))
    assert api_format.ends(api_format.piece("qwen", data)) == {0: True}


@given(
    status=st.one_of(
        st.sampled_from(["completed", "incomplete", "failed", "in_progress", "queued", None, 7]),
        st.text(max_size=6),
    ),
    reason=st.one_of(
        st.sampled_from(["max_output_tokens", "content_filter", None, 7]), st.text(max_size=6)
    ),
)
@example(status="completed", reason=None)
@example(status="incomplete", reason="content_filter")
def test_only_known_states_of_a_response_are_read(status: Any, reason: Any) -> None:
    """The same of the Responses API."""
    content = [{"type": "output_text", "text": "42"}]
    body = {
        "status": status,
        "incomplete_details": {"reason": reason},
        "output": [{"type": "message", "content": content}],
    }
    event = json.dumps({"type": "response.completed", "response": body})
    is_cut = status == "incomplete" and reason in ("max_output_tokens", "content_filter")
    if status != "completed" and not is_cut:
        with pytest.raises(UpstreamError):
            Responses().body("qwen", json.dumps(body).encode())
        with pytest.raises(UpstreamError):
            Responses().piece("qwen", event)
        return
    (choice,) = Responses().choices(Responses().body("qwen", json.dumps(body).encode()))
    assert choice.is_whole is (status == "completed")
    assert Responses().ends(Responses().piece("qwen", event)) == {0: True}


@pytest.mark.parametrize(
    ("kind", "is_answer"),
    [("function_call", True), ("web_search_call", True), ("mcp_approval_request", True),
     ("mcp_list_tools", False), ("error", False), ("a_type_of_tomorrow", False), (7, False)],
)  # fmt: skip
def test_an_output_item_is_an_answer_only_if_its_type_is_known(
    kind: object, is_answer: bool
) -> None:
    """Alone in a response: another type than a call or a message says nothing."""
    body = {"status": "completed", "output": [{"type": kind}]}
    (choice,) = Responses().choices(Responses().body("qwen", json.dumps(body).encode()))
    assert (choice.kind is AnswerKind.ANSWER) is is_answer
    added = {"type": "response.output_item.added", "item": {"type": kind}}
    assert (Responses().kind(added) is AnswerKind.ANSWER) is is_answer


def test_messages_end_as_the_chat_did(gateway: Gateway, pool: FakePool) -> None:
    """A spelling of another server is one of Anthropic's words, too."""
    whole = {"index": 0, "message": message("42"), "finish_reason": "eos_token"}
    pool.say("adder", "42", fields={"choices": [whole]})
    assert MESSAGES.answer(gateway, ONE, model="adder")["stop_reason"] == "end_turn"
