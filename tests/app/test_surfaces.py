"""Chat, completions, responses and embeddings: the same promises on each way of asking."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.gateway import NOBODY, ONE, POOL, TWO, Gateway, Serve, candidates, user
from tests.upstreams.scripted import UPSTREAM_WORDS, FakePool, usage_of

EVERYONE = {"alpha": 0.001, "explain": True}  # the whole pool is called, and waited for
KEPT = {"kept": True}


@dataclass(frozen=True)
class Way:
    """How one interface is asked and read."""

    path: str
    prefix: str
    asks: Callable[[str], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]  # of a whole answer
    delta: Callable[[dict[str, Any]], str]  # of one event
    inner: Callable[[dict[str, Any]], dict[str, Any]]  # where an event says id and model
    counts: tuple[str, str, str]
    ends: bool  # its streams end with [DONE]
    guarantee: str = "holds"  # the header of a plain request

    def post(self, gateway: Gateway, text: str, /, **fields: Any) -> Any:
        """A whole answer, whatever its status."""
        body = {"model": "auto", **self.asks(text), **fields}
        return gateway.post(f"/v1/{self.path}", json=body)

    def answer(self, gateway: Gateway, text: str, /, **fields: Any) -> dict[str, Any]:
        """A whole answer."""
        response = self.post(gateway, text, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(
        self, gateway: Gateway, text: str, /, **fields: Any
    ) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Headers and events; that the stream ends as it should is checked."""
        body = {"model": "auto", **self.asks(text), "stream": True, **fields}
        with (
            gateway.http() as client,
            client.stream("POST", f"/v1/{self.path}", json=body) as response,
        ):
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert response.status_code == 200, lines
        events = [line.removeprefix("data: ") for line in lines]
        assert (events[-1] == "[DONE]") is self.ends
        told = [json.loads(each) for each in events if each != "[DONE]"]
        assert len(told) == len(events) - self.ends
        return dict(response.headers), told

    def is_finished(self, event: dict[str, Any]) -> bool:
        """Whether an event says that the answer is complete."""
        if self.ends:
            return [choice["finish_reason"] for choice in event["choices"]] == ["stop"]
        return event["type"] == "response.completed"

    def usage(self, body: dict[str, Any]) -> tuple[int, ...]:
        """Prompt, completion and total tokens."""
        return tuple(body["usage"][name] for name in self.counts)


def _choice_text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def _itself(event: dict[str, Any]) -> dict[str, Any]:
    return event


CHAT_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
CHAT = Way(
    path="chat/completions",
    prefix="chatcmpl-",
    asks=lambda text: {"messages": user(text)},
    text=lambda body: body["choices"][0]["message"]["content"],
    delta=lambda event: "".join(_choice_text(each) for each in event["choices"]),
    inner=_itself,
    counts=CHAT_COUNTS,
    ends=True,
)
COMPLETIONS = Way(
    path="completions",
    prefix="cmpl-",
    asks=lambda text: {"prompt": text},
    text=lambda body: body["choices"][0]["text"],
    delta=CHAT.delta,
    inner=_itself,
    counts=CHAT_COUNTS,
    ends=True,
    guarantee="void; reason=conditions_differ",  # rows were asked through the chat template
)
RESPONSES = Way(
    path="responses",
    prefix="resp_",
    asks=lambda text: {"input": text},
    text=lambda body: body["output"][0]["content"][0]["text"],
    delta=lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    inner=lambda event: event.get("response", {}),
    counts=("input_tokens", "output_tokens", "total_tokens"),
    ends=False,
)
WAYS = pytest.mark.parametrize("way", [CHAT, COMPLETIONS, RESPONSES], ids=lambda way: way.path)
CHUNKED = pytest.mark.parametrize("way", [CHAT, COMPLETIONS], ids=lambda way: way.path)


@WAYS
def test_one_selected_answers_under_its_own_name(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """The set's only member is asked on the same path; its text, name, tokens and fields return."""
    pool.say("adder", "seven")
    response = way.post(gateway, ONE)
    answer = response.json()
    assert (pool.paths, pool.asked()) == ([f"/v1/{way.path}"], ["adder"])
    assert (way.text(answer), answer["model"]) == ("seven", "adder")
    assert way.usage(answer) == (10, 5, 15)
    assert answer["a_field_of_tomorrow"] == KEPT
    assert answer["id"] == answer["racer"]["decision_id"]
    assert answer["id"] == response.headers["x-racer-decision-id"]
    assert answer["id"].startswith(way.prefix)
    assert answer["racer"]["selected"] == ["adder"]
    assert response.headers["x-racer-served-by"] == "adder"


@WAYS
def test_several_selected_vote_and_their_tokens_add_up(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """The majority's text comes back whole, with one sum of tokens and every call's own."""
    pool.say("adder", "seven")
    pool.say("speller", "8")
    pool.say("poet", "8")
    answer = way.answer(gateway, ONE, racer=EVERYONE)
    assert way.text(answer) == "8"
    assert answer["model"] == answer["racer"]["served_by"]
    assert answer["model"] in ("speller", "poet")  # not the best router score, the adder
    assert answer["racer"]["votes"] == {"seven": 1, "8": 2}
    assert way.usage(answer) == (30, 7, 37)
    assert answer["racer"]["usage"] == [
        {"candidate": "adder", **usage_of("seven")},
        {"candidate": "speller", **usage_of("8")},
        {"candidate": "poet", **usage_of("8")},
    ]
    assert answer["a_field_of_tomorrow"] == KEPT
    assert sorted(pool.asked()) == sorted(POOL)


@WAYS
def test_the_winners_own_usage_can_be_asked_for(gateway: Gateway, pool: FakePool, way: Way) -> None:
    """``usage: winner`` leaves it as the candidate sent it."""
    pool.say("adder", "seven")
    answer = way.answer(gateway, ONE, racer={**EVERYONE, "usage": "winner"})
    assert answer["model"] != "adder"
    assert way.usage(answer) == (10, 2, 12)


@WAYS
def test_one_selected_streams_its_own_events(gateway: Gateway, pool: FakePool, way: Way) -> None:
    """One id, one name, every delta, fields of tomorrow; the racer object on the last event."""
    pool.say("adder", "The sum is 7 – naturally")
    headers, events = way.stream(gateway, ONE)
    assert [delta for event in events if (delta := way.delta(event))] == list(
        "The sum is 7 – naturally"
    )
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-racer-served-by"] == "adder"
    assert headers["x-racer-guarantee"] == way.guarantee
    named = [way.inner(event) for event in events if way.inner(event)]
    assert {event["model"] for event in named} == {"adder"}
    assert {event["id"] for event in named} == {headers["x-racer-decision-id"]}
    assert all(event["a_field_of_tomorrow"] == KEPT for event in named)
    last = way.inner(events[-1])
    assert way.is_finished(events[-1])
    assert last["racer"]["selected"] == ["adder"]
    assert last["racer"]["served_by"] == "adder"
    assert last["racer"]["decision_id"] == last["id"]
    assert last["racer"]["certificate"]["holds"] is (way.guarantee == "holds")
    assert last["racer"]["usage"] == [
        {"candidate": "adder", **usage_of("The sum is 7 – naturally")}
    ]
    assert [call["candidate"] for call in last["racer"]["calls"]] == ["adder"]
    assert [event for event in events if "racer" in way.inner(event)] == [events[-1]]
    assert pool.requests[0]["stream"] is True


@WAYS
def test_a_streamed_answer_arrives_while_it_is_written(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """The first event is there long before the candidate has finished."""
    pool.say("adder", "seven", pause_s=0.3)
    body = {"model": "auto", **way.asks(ONE), "stream": True}
    with (
        gateway.http() as client,
        client.stream("POST", f"/v1/{way.path}", json=body) as response,
    ):
        lines = response.iter_lines()  # kept: dropping it would close the connection
        first = next(lines)
        assert pool.running == ["adder"]
        data = [line.removeprefix("data: ") for line in [first, *lines] if '{"' in line]
    assert "".join(way.delta(json.loads(each)) for each in data) == "seven"


@WAYS
def test_several_selected_stream_the_winner(gateway: Gateway, pool: FakePool, way: Way) -> None:
    """The vote comes first; then the winner's text in one name, with the votes at the end."""
    pool.say("adder", "seven")
    pool.say("speller", "It is 8")
    pool.say("poet", "it is 8.")
    headers, events = way.stream(gateway, ONE, racer=EVERYONE)
    last = way.inner(events[-1])
    winner = last["racer"]["served_by"]
    assert winner in ("speller", "poet")
    said = {"speller": "It is 8", "poet": "it is 8."}
    assert "".join(map(way.delta, events)) == said[winner]
    named = [way.inner(event) for event in events if way.inner(event)]
    assert {event["model"] for event in named} == {winner}
    assert {event["id"] for event in named} == {headers["x-racer-decision-id"]}
    assert last["racer"]["votes"] == {"seven": 1, "it is 8": 2}
    assert way.is_finished(events[-1])
    assert [event for event in events if "racer" in way.inner(event)] == [events[-1]]


@CHUNKED
@pytest.mark.parametrize(("text", "total"), [(ONE, 12), (TWO, 24)])
def test_a_stream_counts_its_tokens_where_asked(
    gateway: Gateway, way: Way, text: str, total: int
) -> None:
    """``include_usage`` adds one last chunk without a choice; without it no chunk has counts."""
    _, events = way.stream(
        gateway, text, stream_options={"include_usage": True}, racer={"explain": True}
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == total
    assert len(events[-1]["racer"]["usage"]) == total // 12
    assert "".join(map(way.delta, events)) == "42"
    assert not any("usage" in event for event in events[:-1])
    assert not any("usage" in event for event in way.stream(gateway, text)[1])


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
    """Created, each item added, told and done, completed; numbered without a gap."""
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


@WAYS
def test_a_refusal_has_the_shape_of_its_interface(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """Nobody is asked; the sentence is where clients look for a text, plain and streamed."""
    answer = way.answer(gateway, NOBODY)
    assert "No model of the pool" in way.text(answer)
    assert (answer["model"], way.usage(answer)) == ("auto", (0, 0, 0))
    assert answer["racer"]["abstained"] is True
    assert answer["id"].startswith(way.prefix)
    headers, events = way.stream(gateway, NOBODY)
    assert "".join(map(way.delta, events)) == way.text(answer)
    assert way.inner(events[-1])["racer"]["abstained"] is True
    assert headers["x-racer-abstained"] == "true"
    assert pool.asked() == []


@WAYS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["auto", "adder"])
def test_what_the_gateway_does_not_know_reaches_the_candidate(
    gateway: Gateway, pool: FakePool, way: Way, stream: bool, model: str
) -> None:
    """Every field arrives as it was sent, but for those that are the gateway's own."""
    unknown = {"a_field_of_tomorrow": {"deep": [1, 2.5, None, "é"]}, "user": "ann", "seed": 3}
    fields = {**way.asks(ONE), **unknown, "store": False}
    ours = {"model": model, "stream": stream, "racer": {"alpha": 0.1}}
    response = gateway.post(f"/v1/{way.path}", json=fields | ours)
    assert response.status_code == 200
    asked = {"stream_options": {"include_usage": True}} if stream and way.ends else {}
    assert pool.requests == [{**fields, **asked, "model": "adder", "stream": stream}]


@WAYS
@pytest.mark.parametrize("fault", ["cut", "stream_no_end", "stream_error", "stream_not_json"])
@pytest.mark.parametrize("model", ["auto", "adder"])
def test_a_broken_stream_ends_in_the_envelope(
    gateway: Gateway, pool: FakePool, way: Way, fault: str, model: str
) -> None:
    """What had arrived is sent; the last event is an error that names the candidate."""
    pool.say("adder", "42", fault=fault)
    body = {"model": model, **way.asks(ONE), "stream": True}
    with (
        gateway.http() as client,
        client.stream("POST", f"/v1/{way.path}", json=body) as response,
    ):
        data = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert response.status_code == 200
    assert "data: [DONE]" not in data
    *events, last = [json.loads(each.removeprefix("data: ")) for each in data]
    assert "".join(map(way.delta, events)) == "42"
    assert not any("error" in event for event in events)
    error = last["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "upstream_error"
    assert (error["code"] == "upstream_disconnected") is (fault in ("cut", "stream_no_end"))
    assert "adder" in error["message"]
    assert UPSTREAM_WORDS not in error["message"]


# A candidate by its name ------------------------------------------------------------------------


@WAYS
def test_a_named_candidate_is_asked_without_routing(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """Its answer as it is, but for the name; nothing is certified."""
    pool.say("poet", "Roses")
    response = way.post(gateway, ONE, model="poet")
    answer = response.json()
    assert (way.text(answer), answer["model"], pool.asked()) == ("Roses", "poet", ["poet"])
    assert answer["id"].endswith(("upstream-1", "upstream-2", "upstream"))
    assert "racer" not in answer
    assert answer["a_field_of_tomorrow"] == KEPT
    assert response.headers["x-racer-served-by"] == "poet"
    assert "x-racer-guarantee" not in response.headers


@WAYS
def test_a_named_candidate_streams_without_routing(
    gateway: Gateway, pool: FakePool, way: Way
) -> None:
    """Its events as they are, but for the name; a count that only we wanted stays here."""
    pool.say("poet", "Roses")
    headers, events = way.stream(gateway, ONE, model="poet")
    assert "".join(map(way.delta, events)) == "Roses"
    named = [way.inner(event) for event in events if way.inner(event)]
    assert {event["model"] for event in named} == {"poet"}
    assert not any("racer" in event for event in named)
    assert all(event["choices"] for event in events if way.ends)
    assert headers["x-racer-served-by"] == "poet"


@WAYS
def test_a_name_that_nobody_has_is_not_found(gateway: Gateway, pool: FakePool, way: Way) -> None:
    """Nor are pools that are not configured."""
    for name in ("gpt-4o", "auto/", "auto/fast", "automatic"):
        response = way.post(gateway, ONE, model=name)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert response.json()["error"]["param"] == "model"
    assert pool.asked() == []


# Chat -------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    """A tool call as a candidate makes it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    """A message of tool calls alone."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def test_parallel_tool_calls_are_one_answer_whatever_their_order(
    gateway: Gateway, pool: FakePool
) -> None:
    """Ids, order and the spelling of arguments do not count; the winner's own calls come back."""
    first = [call("add", '{"a": 1, "b": 2.0}'), call("spell", '{"n": 3}', 2)]
    second = [call("spell", '{"n":3}', 7), call("add", '{"b":2,"a":1}', 8)]
    pool.say("adder", "", message=calling(call("add", '{"a": 9}')))
    pool.say("speller", "", message=calling(*first))
    pool.say("poet", "", message=calling(*second))
    answer = gateway.chat(ONE, EVERYONE, tools=TOOLS)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["choices"][0]["message"]["tool_calls"] in (first, second)
    assert answer["racer"]["answers"]["speller"] == first


def test_a_tool_call_streams_live_as_it_comes(gateway: Gateway, pool: FakePool) -> None:
    """Deltas of a call's arguments pass through one by one."""
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
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
    answer = gateway.chat(ONE, EVERYONE, n=3)
    assert answer["racer"]["votes"] == {"7": 1, "8": 2}
    assert answer["model"] in ("speller", "poet")
    expected = pool.scripts[answer["model"]].fields["choices"]
    assert answer["choices"] == expected


def test_choices_that_nobody_asked_for_are_dropped(gateway: Gateway, pool: FakePool) -> None:
    """A server that sends three of two, or one of them twice."""
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
    said = {(each["index"], each["delta"].get("content")) for each in events[0]["choices"]}
    assert said == {(0, "7"), (1, "eight")}
    assert [each["finish_reason"] for each in events[-1]["choices"]] == ["stop", "stop"]


def test_images_reach_every_candidate_as_they_were_sent(gateway: Gateway, pool: FakePool) -> None:
    """Parts of a turn are nobody's to change."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "x": 1}}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    parts = [{"type": "text", "text": ONE}, image, sound]
    answer = gateway.chat(ONE, EVERYONE, messages=[{"role": "user", "content": parts}])
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
    assert answer["racer"]["certificate"]["reasons"] == ["conditions_differ"]


def test_a_chunk_after_the_finish_is_not_lost(gateway: Gateway, pool: FakePool) -> None:
    """Some servers send an empty one; the racer object rides on whatever comes last."""
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": "7"}, "finish_reason": "stop"},
        {"index": 0, "delta": {"content": ""}, "finish_reason": None},
    ]
    pool.say("adder", "", choices=choices)
    _, events = CHAT.stream(gateway, ONE)
    assert [event["choices"][0] for event in events] == choices
    assert "racer" in events[-1]


# Completions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [1, 2, 3], [[1, 2], [3]], [], ["", "b"], ""], ids=str
)
def test_only_one_text_can_be_routed(gateway: Gateway, pool: FakePool, prompt: Any) -> None:
    """Several prompts, tokens and nothing at all are 400, and name the field."""
    response = gateway.post("/v1/completions", json={"model": "auto", "prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert pool.asked() == []


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2, 3], [[1, 2], [3]]], ids=str)
def test_a_named_candidate_takes_any_prompt(gateway: Gateway, pool: FakePool, prompt: Any) -> None:
    """Whatever its server takes, with as many choices as there are prompts."""
    several = not isinstance(prompt[0], int)
    choices = [
        {"index": i, "text": f"{i}", "logprobs": None, "finish_reason": "stop"}
        for i in range(2 if several else 1)
    ]
    pool.say("adder", "", fields={"choices": choices})
    answer = gateway.post("/v1/completions", json={"model": "adder", "prompt": prompt})
    assert answer.json()["choices"] == choices
    assert pool.requests[0]["prompt"] == prompt


def test_a_list_of_one_prompt_is_one_text(gateway: Gateway, pool: FakePool) -> None:
    """It is routed by that text, and passed on as it was sent."""
    response = gateway.post("/v1/completions", json={"model": "auto", "prompt": [ONE]})
    assert response.json()["racer"]["selected"] == ["adder"]
    assert pool.requests[0]["prompt"] == [ONE]


def test_a_bare_prompt_was_never_labelled(gateway: Gateway) -> None:
    """Rows were asked through the chat template: the certificate says that this was not."""
    told = COMPLETIONS.answer(gateway, ONE)["racer"]["certificate"]
    assert (told["holds"], told["reasons"]) == (False, ["conditions_differ"])


def test_one_limit_of_tokens_has_the_name_that_each_interface_gives_it(
    serve: Serve, pool: FakePool
) -> None:
    """A candidate labelled with one name of it is not sent another interface's."""
    own = {"max_completion_tokens": 32, "temperature": 0}
    gateway = serve(candidates=candidates(pool.url, parameters=own))
    for way in (CHAT, COMPLETIONS, RESPONSES):
        way.answer(gateway, ONE)
    names = [name for body in pool.requests for name in body if name.endswith("_tokens")]
    assert names == ["max_completion_tokens", "max_tokens", "max_output_tokens"]
    RESPONSES.answer(gateway, ONE, max_output_tokens=5)
    assert pool.requests[-1]["max_output_tokens"] == 5


# Responses --------------------------------------------------------------------------------------


def test_a_plain_response_holds(gateway: Gateway, pool: FakePool) -> None:
    """One user turn of plain text is what rows are; the candidate is told to keep nothing."""
    told = RESPONSES.answer(gateway, ONE)["racer"]["certificate"]
    assert (told["holds"], told["reasons"]) == (True, [])
    assert pool.requests[0]["store"] is False


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
def test_what_would_have_to_be_remembered_is_refused(
    gateway: Gateway, pool: FakePool, model: str, field: dict[str, Any]
) -> None:
    """400 names the field and the cure; nobody is asked."""
    response = RESPONSES.post(gateway, ONE, model=model, **field)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, next(iter(field)))
    assert "input" in error["message"]
    assert pool.asked() == []


def test_saying_that_nothing_is_kept_is_fine(gateway: Gateway) -> None:
    """Clients write these out."""
    said = {"store": False, "background": False, "previous_response_id": None}
    assert RESPONSES.answer(gateway, ONE, **said)["racer"]["certificate"]["holds"] is True


def item(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """A turn of typed parts."""
    return {"type": "message", "role": role, "content": list(parts)}


ASKED = item("user", {"type": "input_text", "text": ONE})


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"input": [{"role": "user", "content": ONE}]}, []),
        ({"input": [ASKED]}, []),
        ({"instructions": "Be brief."}, ["conditions_differ"]),
        ({"temperature": 1.5}, ["conditions_differ"]),
        ({"text": {"format": {"type": "text"}}}, []),
        ({"text": {"format": {"type": "json_object"}}}, ["conditions_differ"]),
        (
            {"input": [item("assistant", {"type": "output_text", "text": "Hi"}), ASKED]},
            ["multi_turn_uncalibrated"],
        ),
        (
            {"input": [ASKED, {"type": "function_call", "name": "f", "arguments": "{}"}]},
            ["multi_turn_uncalibrated"],
        ),
        (
            {
                "input": [
                    ASKED,
                    {"type": "function_call_output", "call_id": "c", "output": "7"},
                ]
            },
            ["multi_turn_uncalibrated"],
        ),
        (
            {
                "input": [
                    item(
                        "user",
                        {"type": "input_text", "text": ONE},
                        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
                    )
                ]
            },
            ["unlabelled_request_kind"],
        ),
        ({"tools": [{"type": "function", "name": "f"}]}, ["conditions_differ",
                                                          "unlabelled_request_kind"]),
    ],
    ids=str,
)  # fmt: skip
def test_the_premises_are_read_from_a_response_too(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], reasons: list[str]
) -> None:
    """The same reasons as in chat, and the input reaches the candidate as it was sent."""
    answer = RESPONSES.answer(gateway, ONE, **fields)
    assert answer["racer"]["certificate"]["reasons"] == reasons
    assert "adder" in answer["racer"]["selected"]
    assert all(body["input"] == fields.get("input", ONE) for body in pool.requests)


@pytest.mark.parametrize("said", ["", [], [{"role": "assistant", "content": "Hi"}]], ids=str)
def test_a_response_needs_a_question(gateway: Gateway, pool: FakePool, said: Any) -> None:
    """There is nothing to route on."""
    response = gateway.post("/v1/responses", json={"model": "auto", "input": said})
    assert response.status_code == 400
    assert pool.asked() == []


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
    answer = RESPONSES.answer(gateway, ONE, tools=tools, racer=EVERYONE)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["output"][1]["arguments"].replace(" ", "") == '{"a":1}'
    _, events = RESPONSES.stream(gateway, ONE, tools=tools)
    told = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [each["arguments"].replace(" ", "") for each in told] == ['{"a":1}']


@pytest.mark.parametrize(
    "fields",
    [
        {"output": [{"type": "reasoning", "id": "r", "summary": []}]},
        {"output": []},
        {"output": None},
        {"output": ["7"]},
        {"status": "failed", "error": {"message": "no"}},
    ],
    ids=str,
)
def test_a_response_that_says_nothing_is_a_failure(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any]
) -> None:
    """Nothing but thoughts, nothing at all, or another shape: the upstream's fault."""
    for name in POOL:
        pool.say(name, "7", fields=fields)
    response = RESPONSES.post(gateway, ONE)
    assert (response.status_code, response.json()["error"]["type"]) == (502, "upstream_error")


# Embeddings -------------------------------------------------------------------------------------


def test_embeddings_come_from_the_candidate_that_is_named(gateway: Gateway, pool: FakePool) -> None:
    """Texts go out and vectors come back as they are."""
    sent = {"model": "poet", "input": ["a", "bcd"], "encoding_format": "float", "x": 1}
    response = gateway.post("/v1/embeddings", json=sent)
    answer = response.json()
    assert [each["embedding"] for each in answer["data"]] == [[1.0, 1.0], [3.0, 1.0]]
    assert (answer["model"], response.headers["x-racer-served-by"]) == ("poet", "poet")
    assert pool.requests == [sent]


def test_embeddings_of_auto_come_from_the_configured_candidate(
    serve: Serve, pool: FakePool
) -> None:
    """Without one, `auto` has none: 404 says what to do."""
    embedder = candidates(pool.url, adder={"model": "org/embedder"})
    gateway = serve(embeddings="adder", candidates=embedder, calibrated=False)
    answer = gateway.post("/v1/embeddings", json={"model": "auto", "input": "a"}).json()
    assert (answer["model"], pool.requests[0]["model"]) == ("adder", "org/embedder")


@pytest.mark.parametrize("model", ["auto", "gpt-4o", "auto/fast"])
def test_embeddings_of_nobody_are_not_found(gateway: Gateway, pool: FakePool, model: str) -> None:
    """The error names the model; nobody is asked."""
    response = gateway.post("/v1/embeddings", json={"model": model, "input": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert pool.asked() == []
