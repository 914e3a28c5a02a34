"""Responses: events, inputs, certificates, calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.gateway import ONE, POOL, TWO, Gateway
from tests.kit.upstream import FakePool

from .formats import RESPONSES, WHOLE_POOL


@pytest.mark.parametrize(("text", "total"), [(ONE, 12), (TWO, 24)])
def test_a_streamed_response_counts_its_tokens(gateway: Gateway, text: str, total: int) -> None:
    """The last event's response has them all; details that one call knew are kept."""
    _, events = RESPONSES.stream(gateway, text, racer={"explain": True})
    usage = events[-1]["response"]["usage"]
    assert usage["total_tokens"] == total
    assert usage["input_tokens_details"] == {"cached_tokens": 4}


def test_a_merged_response_streams_the_events_that_clients_know(
    gateway: Gateway, pool: FakePool
) -> None:
    """Created, each item added, its deltas, done, completed; numbered without a gap."""
    pool.say("adder", "7")
    pool.say("speller", "7")
    _, events = RESPONSES.stream(gateway, TWO)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "7"


@pytest.mark.parametrize("model", ["auto", "adder"])
@pytest.mark.parametrize(
    "field",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"background": True},
        {"store": True},
    ],
    ids=str,
)
def test_fields_that_need_server_side_state_are_refused(
    gateway: Gateway, pool: FakePool, model: str, field: dict[str, Any]
) -> None:
    """400 names the field and the cure; no candidate is called."""
    response = RESPONSES.post(gateway, ONE, model=model, **field)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, next(iter(field)))
    assert "input" in error["message"]
    assert pool.models_called() == []


def test_saying_that_nothing_is_kept_is_fine(gateway: Gateway, pool: FakePool) -> None:
    """Clients write these out."""
    fields = {"store": False, "background": False, "previous_response_id": None}
    assert RESPONSES.answer(gateway, ONE, **fields)["racer"]["certificate"]["reasons"] == [ENDPOINT]
    assert pool.requests[0]["store"] is False


ENDPOINT = "conditions_differ:endpoint"


def item(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """A turn of typed parts."""
    return {"type": "message", "role": role, "content": list(parts)}


ASKED = {"type": "input_text", "text": ONE}
QUESTION = item("user", ASKED)
PIXEL = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
HELLO = item("assistant", {"type": "output_text", "text": "Hi"})
CALLED = {"type": "function_call", "name": "f", "arguments": "{}"}
RETURNED = {"type": "function_call_output", "call_id": "c", "output": "7"}


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"input": [{"role": "user", "content": ONE}]}, ""),
        ({"input": [QUESTION]}, ""),
        ({"instructions": "Be brief."}, "conditions_differ:instructions"),
        ({"prompt": {"id": "pmpt_1"}}, "conditions_differ:prompt"),
        ({"max_tokens": 16}, "conditions_differ:max_tokens"),
        ({"temperature": 1.5}, "conditions_differ:temperature"),
        ({"text": {"format": {"type": "text"}}}, "conditions_differ:text"),
        ({"text": {"format": {"type": "json_object"}}}, "conditions_differ:text"),
        ({"input": [HELLO, QUESTION]}, "multi_turn_uncalibrated"),
        ({"input": [QUESTION, CALLED]}, "conditions_differ:input.other multi_turn_uncalibrated"),
        ({"input": [QUESTION, RETURNED]}, "conditions_differ:input.other multi_turn_uncalibrated"),
        (
            {"input": [item("user", ASKED, PIXEL)]},
            "conditions_differ:input.user unlabelled_request_kind",
        ),
        (
            {"tools": [{"type": "function", "name": "f"}]},
            "conditions_differ:tools unlabelled_request_kind",
        ),
    ],
    ids=str,
)
def test_the_premises_are_read_from_a_response_too(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], reasons: str
) -> None:
    """The same reasons as in chat, and the input reaches the candidate as it was sent."""
    answer = RESPONSES.answer(gateway, ONE, **fields)
    assert answer["racer"]["certificate"]["reasons"] == [ENDPOINT, *reasons.split()]
    assert "adder" in answer["racer"]["selected"]
    assert all(body["input"] == fields.get("input", ONE) for body in pool.requests)


@pytest.mark.parametrize("question", ["", [], [{"role": "assistant", "content": "Hi"}]], ids=str)
def test_a_response_needs_a_question(gateway: Gateway, pool: FakePool, question: Any) -> None:
    """There is nothing to route on."""
    response = gateway.post("/v1/responses", json={"model": "auto", "input": question})
    assert response.status_code == 400
    assert pool.models_called() == []


def test_calls_of_a_response_vote_as_calls(gateway: Gateway, pool: FakePool) -> None:
    """Items of type ``function_call`` are the answer; reasoning is none."""

    def output(arguments: str) -> dict[str, Any]:
        function = {"type": "function_call", "call_id": "c", "id": "f", "name": "add"}
        reasoning = {"type": "reasoning", "id": "r", "summary": [], "content": []}
        return {"output": [reasoning, {**function, "arguments": arguments}]}

    pool.say("adder", "", fields=output('{"a": 9}'))
    pool.say("speller", "", fields=output('{"a": 1}'))
    pool.say("poet", "", fields=output('{"a":1}'))
    tools = [{"type": "function", "name": "add"}]
    answer = RESPONSES.answer(gateway, ONE, tools=tools, racer=WHOLE_POOL)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["output"][1]["arguments"].replace(" ", "") == '{"a":1}'
    _, events = RESPONSES.stream(gateway, ONE, tools=tools, racer=WHOLE_POOL)
    events_read = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [each["arguments"].replace(" ", "") for each in events_read] == ['{"a":1}']


@pytest.mark.parametrize(
    "fields",
    [
        {"output": []},
        {"output": None},
        {"output": ["7"]},
        {"status": "failed", "error": {"message": "no"}},
    ],
    ids=str,
)
def test_an_empty_response_is_a_failure(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any]
) -> None:
    """Nothing at all, or another shape: the upstream's fault."""
    for name in POOL:
        pool.say(name, "7", fields=fields)
    response = RESPONSES.post(gateway, ONE)
    assert (response.status_code, response.json()["error"]["type"]) == (502, "upstream_error")
