"""Worst cases of calls: no call within its limits costs more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.answering.spending import WorstCase
from app.settings import Settings
from app.wire.token_bounds import MEDIA_TOKENS, TEMPLATE_TOKENS, input_tokens
from racer_core.prices import PICO, Usage

CHAT = "chat/completions"
TEXTS = st.text(max_size=40)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=8,
)
RATES = st.sampled_from([0.0, 0.000001, 0.15, 2.5, 75.0])


def configured(**changes: Any) -> Settings:
    """A pool of one, with a price."""
    candidate: dict[str, Any] = {
        "name": "a",
        "base_url": "http://127.0.0.1:9/v1",
        "price": {"output": 1e6},  # a unit a token
        "timeout_s": 20,
    }
    return Settings.model_validate(
        {
            "schema_version": 1,
            "candidates": [candidate | changes.pop("candidate", {})],
            "fleet": {"attempts": 1},
            **changes,
        }
    )


def bound(settings: Settings, path: str = CHAT, **fields: Any) -> int:
    """Of a call to its only candidate."""
    worst_case = WorstCase(settings)
    return worst_case.amounts(worst_case.usage_of_calls(("a",), fields, path))["a"]


def written(settings: Settings, path: str = CHAT, **fields: Any) -> float:
    """The same in tokens of the output, where only these cost something."""
    return bound(settings, path, **fields) / PICO


@given(MESSAGES)
def test_no_chat_template_makes_more_tokens(messages: list[dict[str, str]]) -> None:
    """ChatML and Llama 3, with a token for each byte and each special token."""
    size = sum(len(each["content"].encode()) + len(each["role"]) for each in messages)
    chatml = size + len(messages) * len(("<|im_start|>", "\n", "<|im_end|>", "\n"))
    llama = size + 1 + len(messages) * len(("<|start_header_id|>", "<|end_header_id|>", "\n\n", ""))
    assert input_tokens({"messages": messages}) >= max(chatml, llama) + TEMPLATE_TOKENS


@given(MESSAGES, st.integers(1, 400), st.integers(1, 4), RATES, RATES, RATES, RATES, st.data())
def test_no_call_within_its_limits_costs_more(
    messages: list[dict[str, str]],
    max_tokens: int,
    n: int,
    rate: float,
    output: float,
    call: float,
    gpu_second: float,
    data: st.DataObject,
) -> None:
    """With all of its retries, whatever was read from a cache."""
    price = {"input": rate, "output": output, "call": call + 1e-9, "gpu_second": gpu_second}
    settings = configured(candidate={"price": price}, fleet={"attempts": 3})
    fields: dict[str, Any] = {"messages": messages, "max_tokens": max_tokens, "n": n}
    most = bound(settings, **fields)
    exact = settings.exact_prices["a"]
    tokens = sum(len(each["content"].encode()) for each in messages)
    usages = [
        Usage(
            input_tokens=data.draw(st.integers(0, tokens)),
            output_tokens=data.draw(st.integers(0, n * max_tokens)),
            microseconds=data.draw(st.integers(0, 20_000_000)),
        )
        for _ in range(3)
    ]
    assert sum(map(exact.cost, usages)) <= most


def test_the_answer_is_bounded_by_the_first_limit_that_is_named() -> None:
    """The request's, the candidate's, the gateway's; of two names the larger."""
    plain = configured(limits={"max_tokens": 700})
    own = configured(limits={"max_tokens": 700}, candidate={"parameters": {"max_tokens": 50}})
    assert written(plain) == 700
    assert written(own) == 50
    assert written(own, max_tokens=60) == 60
    assert written(own, max_tokens=None) == 50
    assert written(own, max_tokens=60, max_completion_tokens=80) == 80
    assert written(plain, max_output_tokens=9) == 700  # another API's name
    assert written(plain, "responses", max_output_tokens=9) == 9
    assert written(plain, "embeddings", max_tokens=9) == 0


def test_a_limit_under_another_name_counts() -> None:
    """As the candidate is sent it: of another API's parameter, and by its server's own name."""
    gateway = {"limits": {"max_tokens": 700}}
    own = configured(candidate={"parameters": {"max_tokens": 50}}, **gateway)
    assert written(own, "responses") == 50
    assert written(own, "responses", max_output_tokens=9) == 9
    renamed = configured(candidate={"renames": {"max_tokens": "max_new_tokens"}}, **gateway)
    assert written(renamed, max_tokens=60) == 60
    assert written(renamed, max_tokens=60, max_new_tokens=600) == 600


def test_every_choice_of_every_prompt_is_written() -> None:
    """Also those that are not returned, and those that the candidate's parameters want."""
    plain = configured()
    assert written(plain, max_tokens=10, n=3) == 30
    assert written(plain, "completions", prompt=["a", "b"], max_tokens=10, n=3) == 60
    assert written(plain, "completions", prompt=[1, 2, 3], max_tokens=10) == 10
    assert written(plain, "completions", prompt="a", max_tokens=10, n=2, best_of=5) == 50
    assert written(configured(candidate={"parameters": {"n": 4}}), max_tokens=10) == 40


def test_images_count_by_their_number_and_not_by_their_bytes() -> None:
    """Of a URL as of data."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    text = {"type": "text", "text": "What is this?"}
    one, two = (
        input_tokens({"messages": [{"role": "user", "content": [text, *[picture] * count]}]})
        for count in (1, 2)
    )
    assert MEDIA_TOKENS <= two - one < MEDIA_TOKENS + 60
    assert one < MEDIA_TOKENS + TEMPLATE_TOKENS + 200


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "type": "file", "content": "x" * 10**6},
        {"role": "user", "content": [{"type": "file", "text": "x" * 10**6}]},
        {"role": "user", "content": [{"type": "file", "file": {"filename": "x" * 10**6}}]},
        {"type": "file_search_call", "results": [{"text": "x" * 10**6}]},
    ],
)
def test_a_text_beside_a_medium_counts(message: dict[str, Any]) -> None:
    """Whatever the request calls its type."""
    assert input_tokens({"messages": [message]}) >= 10**6


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "A" * 10**6, "format": "wav"}},
        {"type": "file", "file": {"file_data": "A" * 10**6}},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 10**6},
        {"type": "image", "source": {"type": "base64", "data": "A" * 10**6}},
    ],
)
def test_data_of_a_medium_does_not_count(part: dict[str, Any]) -> None:
    """In each API's form."""
    tokens = input_tokens({"messages": [{"role": "user", "content": [part]}]})
    assert MEDIA_TOKENS < tokens < MEDIA_TOKENS + TEMPLATE_TOKENS + 200


def test_what_the_configuration_adds_counts() -> None:
    """Parameters of the candidate are sent, too."""
    tools = [{"type": "function", "function": {"name": "f" * 100}}]
    price = {"input": 1e6}
    plain = configured(candidate={"price": price})
    own = configured(candidate={"price": price, "parameters": {"tools": tools}})
    assert written(own) - written(plain) >= 100


def test_an_evaluator_of_the_pool_counts_for_each_answer() -> None:
    """One call for each of two answers or more, of its longest prompt."""
    rule = {
        "method": "weighted",
        "weight": "verbal",
        "evaluator": {"candidate": "a", "prompt_chars": 1000},
    }
    own = WorstCase(configured(candidate={"price": {"input": 1e6}}, aggregation=rule))
    assert own.of_ratings(1) == 0
    assert own.of_ratings(3) == 3 * (4 * 1000 + TEMPLATE_TOKENS) * PICO
    assert WorstCase(configured()).of_ratings(3) == 0
