"""Text completions: prompts, and limits of tokens under the name of each format."""

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


def test_a_bare_prompt_was_never_labelled(gateway: Gateway) -> None:
    """Rows were labelled through the chat template: the certificate names the difference."""
    result = COMPLETIONS.answer(gateway, ONE)["racer"]["certificate"]
    assert (result["holds"], result["reasons"]) == (False, ["conditions_differ:endpoint"])


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
