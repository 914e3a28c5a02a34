"""Text completions and embeddings: prompts, names of limits, and who embeds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.gateway import ONE, Gateway, Serve, candidates
from tests.kit.upstream import FakePool

from .formats import CHAT, COMPLETIONS, RESPONSES


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [1, 2, 3], [[1, 2], [3]], [], ["", "b"], ""], ids=str
)
def test_only_one_text_can_be_routed(gateway: Gateway, pool: FakePool, prompt: Any) -> None:
    """Several prompts, tokens and nothing at all are 400, and name the field."""
    response = gateway.post("/v1/completions", json={"model": "auto", "prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert pool.models_called() == []


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


def test_one_limit_of_tokens_has_the_name_that_each_interface_gives_it(
    serve: Serve, pool: FakePool
) -> None:
    """A candidate labelled with one name of it is not sent another interface's."""
    own = {"max_completion_tokens": 32, "temperature": 0}
    gateway = serve(candidates=candidates(pool.url, parameters=own))
    for api in (CHAT, COMPLETIONS, RESPONSES):
        api.answer(gateway, ONE)
    names = [name for body in pool.requests for name in body if name.endswith("_tokens")]
    assert names == ["max_completion_tokens", "max_tokens", "max_output_tokens"]
    RESPONSES.answer(gateway, ONE, max_output_tokens=5)
    assert pool.requests[-1]["max_output_tokens"] == 5


# Embeddings --------------------------------------------------------------------------------------


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
    named = gateway.post("/v1/embeddings", json={"model": "poet", "input": "a"}).json()
    assert named["model"] == "poet"


@pytest.mark.parametrize("model", ["auto", "gpt-4o", "auto/fast"])
def test_embeddings_of_an_unknown_model_are_not_found(
    gateway: Gateway, pool: FakePool, model: str
) -> None:
    """The error names the model; no candidate is called."""
    response = gateway.post("/v1/embeddings", json={"model": model, "input": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert pool.models_called() == []
