"""Contract tests with OpenAI's, LangChain's and LiteLLM's clients."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from tests.kit.case import Shared
from tests.kit.gateway import DATA_KEY, ONE, POOL, TWO, UNANSWERABLE, Gateway, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

openai = LazyModule("openai")
langchain_openai = LazyModule("langchain_openai")
messages = LazyModule("langchain_core.messages")

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    """LiteLLM, which would fetch a list of prices when it is imported."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pydantic
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield importlib.import_module("litellm")


def langchain(gateway: Gateway, **options: Any) -> Any:
    """LangChain's client of a gateway, without retries of its own."""
    options = {"model": "auto", "max_retries": 0, "timeout": 30, **options}
    key = SecretStr(options.pop("key", DATA_KEY))
    return langchain_openai.ChatOpenAI(base_url=f"{gateway.url}/v1", api_key=key, **options)


def asked_by_litellm(litellm: Any, gateway: Gateway, text: str = ONE, **options: Any) -> Any:
    """A completion as LiteLLM's users ask for one."""
    options = {"model": "auto", "messages": user(text), "api_key": DATA_KEY, **options}
    options["model"] = f"openai/{options['model']}"
    return litellm.completion(api_base=f"{gateway.url}/v1", max_retries=0, timeout=30, **options)


# OpenAI -----------------------------------------------------------------------------------------


def test_openai_reads_an_answer_and_what_is_beside_it(gateway: Gateway, pool: FakePool) -> None:
    """Text, model, tokens, and the racer object as a field that the client keeps."""
    pool.say("adder", "seven")
    raw = gateway.openai().chat.completions.with_raw_response.create(
        model="auto", messages=user(ONE), extra_body={"racer": {"alpha": 0.1}}
    )
    completion = raw.parse()
    assert completion.choices[0].message.content == "seven"
    assert (completion.model, completion.usage.total_tokens) == ("adder", 15)
    assert completion.racer["certificate"]["holds"] is True  # type: ignore[attr-defined]
    assert raw.headers["x-racer-guarantee"] == "holds"


def test_openai_streams_one_and_several(gateway: Gateway, pool: FakePool) -> None:
    """Deltas add up to the text; the last chunk has counts and the racer object."""
    for name in ("adder", "speller"):
        pool.say(name, "seven")
    for query in (ONE, TWO):
        stream = gateway.openai().chat.completions.create(
            model="auto", messages=user(query), stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == "seven"
        assert chunks[-1].usage.total_tokens >= 15  # type: ignore[union-attr]
        assert chunks[-1].racer["served_by"] == "adder"  # type: ignore[attr-defined]


@pytest.mark.parametrize("query", [ONE, TWO])
def test_openai_puts_streamed_tool_calls_together(
    gateway: Gateway, pool: FakePool, query: str
) -> None:
    """Its own helper ends with the same calls that the candidate made."""
    for name in POOL:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        pool.say(name, "", message=message)
    with gateway.openai().chat.completions.stream(
        model="auto", messages=user(query), tools=TOOLS
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = message.tool_calls or []
    assert [(each.function.name, each.function.arguments) for each in calls] == [
        ("add", '{"a": 3}')
    ]


class Sum(BaseModel):
    """The structure requested as JSON."""

    value: int


def test_openai_parses_what_it_asked_for_as_json(gateway: Gateway, pool: FakePool) -> None:
    """A schema goes up, an object comes back."""
    pool.say("adder", '{"value": 7}')
    completion = gateway.openai().chat.completions.parse(
        model="auto", messages=user(ONE), response_format=Sum
    )
    assert completion.choices[0].message.parsed == Sum(value=7)


def test_openai_asks_from_a_loop(gateway: Gateway, pool: FakePool) -> None:
    """The asynchronous client, plain and streaming, many at once."""

    async def ask() -> tuple[list[str | None], str]:
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=DATA_KEY, max_retries=0
        ) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(
                *(create(model="auto", messages=user(ONE)) for _ in range(8))
            )
            stream = await create(model="auto", messages=user(TWO), stream=True)
            texts = [
                chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices
            ]
            return [each.choices[0].message.content for each in answers], "".join(texts)

    for name in POOL:
        pool.say(name, "seven")
    assert asyncio.run(ask()) == (["seven"] * 8, "seven")


def test_openai_reads_responses(gateway: Gateway, pool: FakePool) -> None:
    """Text, model, tokens and the racer object; a call of a function is one to the client."""
    pool.say("adder", "seven")
    response = gateway.openai().responses.create(model="auto", input=ONE)
    assert (response.output_text, response.model) == ("seven", "adder")
    assert response.usage is not None
    assert response.usage.total_tokens == 15
    assert response.racer["selected"] == ["adder"]  # type: ignore[attr-defined]
    refusal = gateway.openai().responses.create(model="auto", input=UNANSWERABLE)
    assert "No model of the pool" in refusal.output_text


@pytest.mark.parametrize("query", [ONE, TWO, UNANSWERABLE])
def test_openai_streams_responses(gateway: Gateway, pool: FakePool, query: str) -> None:
    """Its helper follows every event: live, merged, and when no candidate was called."""
    for name in POOL:
        pool.say(name, "seven")
    with gateway.openai().responses.stream(model="auto", input=query) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert final.output_text == (
        "seven"
        if query != UNANSWERABLE
        else gateway.chat(UNANSWERABLE)["choices"][0]["message"]["content"]
    )
    assert final.racer["decision_id"] == final.id  # type: ignore[attr-defined]


def test_openai_continues_prompts_and_embeds_texts(gateway: Gateway, pool: FakePool) -> None:
    """The older interface, and vectors."""
    pool.say("adder", "seven")
    client = gateway.openai()
    assert client.completions.create(model="auto", prompt=ONE).choices[0].text == "seven"
    chunks = client.completions.create(model="auto", prompt=ONE, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "seven"
    vectors = client.embeddings.create(model="poet", input=["a", "bcd"]).data
    assert [each.embedding[0] for each in vectors] == [1.0, 3.0]


# LangChain --------------------------------------------------------------------------------------


def test_langchain_invokes(gateway: Gateway, pool: FakePool) -> None:
    """Text, the candidate's name, and tokens in its own words."""
    pool.say("adder", "seven")
    message = langchain(gateway, extra_body={"racer": {"alpha": 0.1}}).invoke(ONE)
    assert message.text == "seven"
    assert message.response_metadata["model_name"] == "adder"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 15


@pytest.mark.parametrize(
    ("temperature", "said"), [(None, "holds"), (0.7, "void; conditions_differ:temperature")]
)
def test_langchain_is_told_by_a_header_what_is_not_certified(
    gateway: Gateway, temperature: float | None, said: str
) -> None:
    """As docs/quickstart.md reads it; the field is named."""
    model = langchain_openai.ChatOpenAI(
        model="auto",
        base_url=f"{gateway.url}/v1",
        api_key=SecretStr(DATA_KEY),
        include_response_headers=True,
        temperature=temperature,
    )
    answer = model.invoke(ONE)
    assert answer.response_metadata["headers"]["x-racer-guarantee"] == said


@pytest.mark.parametrize("query", [ONE, TWO])
def test_langchain_streams(gateway: Gateway, pool: FakePool, query: str) -> None:
    """Chunks add up to one message, with tokens."""
    for name in POOL:
        pool.say(name, "seven")
    chunks = list(langchain(gateway, stream_usage=True).stream(query))
    whole = sum(chunks[1:], start=chunks[0])
    assert isinstance(whole, messages.AIMessageChunk)
    assert whole.text == "seven"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] >= 5


def test_langchain_asks_from_a_loop(gateway: Gateway, pool: FakePool) -> None:
    """``ainvoke`` and ``astream``."""
    pool.say("adder", "seven")

    async def ask() -> tuple[str, str]:
        # LangChain never closes its own client, whose connections outlive the loop.
        async with openai.DefaultAsyncHttpxClient() as client:
            model = langchain(gateway, http_async_client=client)
            texts = [chunk.text async for chunk in model.astream(ONE)]
            return (await model.ainvoke(ONE)).text, "".join(texts)

    assert asyncio.run(ask()) == ("seven", "seven")


def test_langchain_calls_tools_and_reads_structures(gateway: Gateway, pool: FakePool) -> None:
    """A tool call arrives as a tool call, and a structure as the requested object."""
    for name in POOL:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        pool.say(name, "", message=message)
    calls = langchain(gateway).bind_tools(TOOLS).invoke(ONE).tool_calls
    assert [(each["name"], each["args"]) for each in calls] == [("add", {"a": 3})]
    for name in POOL:
        pool.say(name, '{"value": 7}')
    assert langchain(gateway).with_structured_output(Sum).invoke(ONE) == Sum(value=7)


@pytest.mark.parametrize("query", [ONE, TWO])
def test_langchain_uses_responses(gateway: Gateway, pool: FakePool, query: str) -> None:
    """Plain and streaming."""
    for name in POOL:
        pool.say(name, "seven")
    model = langchain(gateway, use_responses_api=True)
    assert model.invoke(query).text == "seven"
    assert "".join(chunk.text for chunk in model.stream(query)) == "seven"


# LiteLLM ----------------------------------------------------------------------------------------


def test_litellm_completes(litellm: Any, gateway: Gateway, pool: FakePool) -> None:
    """Text, tokens, and the candidate's name; options go into ``extra_body``."""
    pool.say("adder", "seven")
    answer = asked_by_litellm(litellm, gateway, extra_body={"racer": {"alpha": 0.1}})
    assert answer.choices[0].message.content == "seven"
    assert answer.usage.total_tokens == 15
    assert answer.model == "adder"


@pytest.mark.parametrize("query", [ONE, TWO])
def test_litellm_streams(litellm: Any, gateway: Gateway, pool: FakePool, query: str) -> None:
    """Deltas add up to the text."""
    for name in POOL:
        pool.say(name, "seven")
    stream = asked_by_litellm(litellm, gateway, query, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "seven"


def test_litellm_calls_tools(litellm: Any, gateway: Gateway, pool: FakePool) -> None:
    """A tool call arrives as one."""
    for name in POOL:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        pool.say(name, "", message=message)
    answer = asked_by_litellm(litellm, gateway, tools=TOOLS)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 3}')


def test_litellm_asks_from_a_loop(litellm: Any, gateway: Gateway, pool: FakePool) -> None:
    """``acompletion``, streaming."""
    pool.say("adder", "seven")

    async def ask() -> str:
        stream = await litellm.acompletion(
            model="openai/auto",
            messages=user(ONE),
            api_base=f"{gateway.url}/v1",
            api_key=DATA_KEY,
            max_retries=0,
            stream=True,
        )
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return "".join(texts)

    assert asyncio.run(ask()) == "seven"


def test_before_a_calibration_clients_get_the_fallbacks_answer(
    litellm: Any, shared: Shared, pool: FakePool
) -> None:
    """Each of them, from the first candidate."""
    pool.say("adder", "seven")
    gateway = shared(calibrated=False).gateway
    answer = gateway.openai().chat.completions.create(model="auto", messages=user(ONE))
    assert (answer.model, answer.choices[0].message.content) == ("adder", "seven")
    assert langchain(gateway).invoke(ONE).content == "seven"
    assert asked_by_litellm(litellm, gateway).choices[0].message.content == "seven"
