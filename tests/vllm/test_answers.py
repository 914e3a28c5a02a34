"""Every way of asking, with vLLM behind it: the candidate's own words, certified."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.kit.gateway import Gateway, user
from tests.kit.lazy import LazyModule

from .conftest import GREEDY, POOL, WHOLE_POOL, Servers, rows_of

openai = LazyModule("openai")

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

TOPIC: Final = {
    "type": "object",
    "properties": {"topic": {"type": "string", "enum": ["sums"]}},
    "required": ["topic"],
    "additionalProperties": False,
}

LOOK_UP: Final = {"name": "look_up", "strict": True, "parameters": TOPIC}
ROOM: Final = 160  # tokens, for what a schema adds to an answer
SUM: Final = "What is 17 plus 25?"  # for which the abacus alone is selected


def tool(function: dict[str, Any]) -> list[Any]:
    """One tool of a request."""
    return [{"type": "function", "function": function}]


def streamed(gateway: Gateway, text: str, racer: dict[str, Any]) -> list[Any]:
    """The chunks of a routed answer, as the official client gives them."""
    return list(
        gateway.openai().chat.completions.create(
            model="auto",
            messages=user(text),
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"racer": racer},
        )
    )


def deltas(chunks: list[Any]) -> list[str]:
    """What each chunk says."""
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    return [text for text in texts if text]


def test_a_routed_answer_is_its_candidates_own_and_certified(
    gateway: Gateway, servers: Servers
) -> None:
    """Each question gets what vLLM says without a gateway, and a guarantee that holds."""
    answered = right = 0
    for row in rows_of("test", 20).rows:
        answer = gateway.chat(row.query)
        racer = answer["racer"]
        assert racer["certificate"]["holds"] is True
        if racer["abstained"]:
            continue
        by = servers[racer["served_by"]]
        alone = by.ask("chat/completions", messages=user(row.query), **GREEDY)
        assert answer["model"] == by.name
        assert by.name in racer["selected"]
        assert answer["choices"] == alone["choices"]
        assert answer["system_fingerprint"] == alone["system_fingerprint"]
        answered += 1
        right += by.name in row.correct
    assert answered >= 10
    assert right >= 0.6 * answered


def content(answer: dict[str, Any]) -> str:
    """What an answer says."""
    return answer["choices"][0]["message"]["content"]


def test_one_candidate_streams_token_by_token(gateway: Gateway) -> None:
    """A model of single characters: deltas of them, and an end that vLLM counted as a token."""
    alone = (q for q in rows_of("test", 200).queries if len(gateway.route(q)["selected"]) == 1)
    answers = ((query, gateway.chat(query)) for query in alone)
    text, plain = next(pair for pair in answers if len(content(pair[1])) >= 5)
    *others, last = streamed(gateway, text, {})
    texts = deltas(others)
    assert "".join(texts) == content(plain)
    assert len(texts) > 1
    assert last.choices == []
    assert last.usage.completion_tokens == len("".join(texts)) + 1
    assert (
        last.usage.to_dict().items() >= {"prompt_tokens": plain["usage"]["prompt_tokens"]}.items()
    )
    assert last.racer["certificate"]["holds"] is True
    assert last.racer["served_by"] == last.model == plain["model"]


@pytest.mark.parametrize("model", ["auto", "abacus"])
def test_logprobs_pass_through(gateway: Gateway, model: str) -> None:
    """Each token with its two likeliest, whether routed or not; asking for them changes nothing."""
    answer = gateway.chat(SUM, model=model, logprobs=True, top_logprobs=2)
    [choice] = answer["choices"]
    tokens = choice["logprobs"]["content"]
    assert [each["token"] for each in tokens[:2]] == ["4", "2"]
    assert all(len(each["top_logprobs"]) == 2 for each in tokens)
    assert all(each["logprob"] <= 0 for each in tokens)
    if model == "auto":
        assert answer["racer"]["certificate"]["holds"] is True


@pytest.mark.parametrize("model", ["auto", "abacus"])
def test_several_choices_pass_through(gateway: Gateway, model: str) -> None:
    """Three samples of one candidate; no row was labelled at another temperature."""
    answer = gateway.chat(SUM, model=model, n=3, temperature=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert all(choice["message"]["content"] for choice in answer["choices"])
    if model == "auto":
        assert answer["racer"]["certificate"]["reasons"] == ["conditions_differ:temperature"]


def test_a_tool_call_that_candidates_agree_on_wins_the_vote(gateway: Gateway) -> None:
    """A grammar makes even toy models call the tool; the whole pool is called, uncertified."""
    answer = gateway.chat(
        SUM, WHOLE_POOL, tools=tool(LOOK_UP), tool_choice="required", max_tokens=ROOM
    )
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "look_up"
    assert json.loads(call["function"]["arguments"]) == {"topic": "sums"}
    racer = answer["racer"]
    assert sorted(racer["selected"]) == sorted(POOL)
    assert max(racer["votes"].values()) >= 2
    assert racer["certificate"]["holds"] is False
    assert "unlabelled_request_kind" in racer["certificate"]["reasons"]


def test_a_tool_call_streams_to_the_official_client(gateway: Gateway) -> None:
    """Named, it comes token by token from vLLM; put together it is the same call."""
    calls = [
        call
        for chunk in gateway.openai().chat.completions.create(
            model="abacus",
            messages=user(SUM),
            tools=tool(LOOK_UP),
            tool_choice="required",
            stream=True,
            temperature=0,
            max_tokens=ROOM,
        )
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    assert "".join(call.function.name or "" for call in calls if call.function) == "look_up"
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert json.loads(arguments) == {"topic": "sums"}


@pytest.mark.parametrize("model", ["auto", "abacus"])
def test_a_tool_without_a_function_is_the_clients_error(gateway: Gateway, model: str) -> None:
    """VLLM refuses it, and so does the gateway; no circuit breaker counts a failure."""
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.openai().chat.completions.create(
            model=model,
            messages=user(SUM),
            tools=[{"type": "function"}],  # type: ignore[list-item]
        )
    assert refused.value.code == "upstream_rejected"


def test_an_answer_keeps_to_the_schema_that_was_asked_for(gateway: Gateway) -> None:
    """`response_format` reaches vLLM, which writes nothing else."""
    schema = {"name": "topic", "schema": TOPIC, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    answer = gateway.chat(SUM, model="abacus", response_format=wanted, max_tokens=ROOM)
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"topic": "sums"}


def test_a_prompt_is_continued_without_the_chat_template(
    gateway: Gateway, servers: Servers
) -> None:
    """/v1/completions: as vLLM continues it, streaming or not; no row was labelled so."""
    ask = gateway.openai().completions.create
    alone = servers["abacus"].ask("completions", prompt=SUM, max_tokens=16)
    plain = ask(model="auto", prompt=SUM)
    chunks = list(ask(model="auto", prompt=SUM, stream=True))
    assert plain.model == "abacus"
    assert plain.choices[0].text == alone["choices"][0]["text"] != ""
    assert "".join(c.choices[0].text for c in chunks if c.choices) == plain.choices[0].text
    for message in (plain, chunks[-1]):
        certificate = (message.model_extra or {})["racer"]["certificate"]
        assert certificate["reasons"] == ["conditions_differ:endpoint"]
        assert certificate["holds"] is False


def test_a_response_is_a_certified_answer(gateway: Gateway) -> None:
    """/v1/responses: vLLM's own endpoint; rows were labelled by chat completions."""
    response = gateway.openai().responses.create(model="auto", input=SUM)
    racer = (response.model_extra or {})["racer"]
    assert response.output_text == "42"
    assert response.model == racer["served_by"] == "abacus"
    assert response.usage is not None
    assert response.usage.output_tokens == 3
    assert racer["certificate"]["reasons"] == ["conditions_differ:endpoint"]


@pytest.mark.parametrize("racer", [{}, WHOLE_POOL], ids=["live", "merged"])
def test_a_response_streams(gateway: Gateway, racer: dict[str, Any]) -> None:
    """From created to completed, numbered; one candidate's live, several candidates' merged."""
    stream = gateway.openai().responses.create(
        model="auto", input=SUM, stream=True, extra_body={"racer": racer}
    )
    events: list[Any] = list(stream)
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    whole = events[-1].response
    assert "".join(texts) == whole.output_text != ""
    assert "conditions_differ:endpoint" in whole.racer["certificate"]["reasons"]
    assert whole.racer["served_by"] == whole.model
    assert (len(texts) > 1) == (len(whole.racer["selected"]) == 1)
