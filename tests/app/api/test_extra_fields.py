"""Fields of vLLM that the setting `limits.extra_fields` allows."""

from __future__ import annotations

from typing import Any

import pytest

from app.settings.limits import ExtraField
from app.wire.candidate_payload import passed_through
from racer_core.errors import InputError
from tests.kit.case import Shared
from tests.kit.gateway import ONE, candidates
from tests.kit.upstream import FakePool

ALLOWED: list[ExtraField] = ["chat_template_kwargs", "guided_*", "priority", "structured_outputs"]
THINKING = {"enable_thinking": False, "effort": "low", "budget": 0.5, "style": None}


@pytest.mark.parametrize("model", ["auto", "adder"])
@pytest.mark.parametrize("stream", [False, True])
def test_fields_that_the_operator_allows_reach_the_candidate(
    shared: Shared, pool: FakePool, model: str, stream: bool
) -> None:
    """Routed and named, plain and streaming; those that may change an answer void."""
    gateway = shared(limits={"extra_fields": ALLOWED}).gateway
    for fields in (
        {"chat_template_kwargs": THINKING},
        {"guided_regex": "[0-9]+"},
        {"structured_outputs": {"choice": ["7", "8"]}},
        {"priority": 3},
    ):
        response = gateway.ask(ONE, model=model, stream=stream, **fields)
        assert response.status_code == 200
        assert pool.requests.pop().items() >= fields.items()
        if model == "auto":
            void = f"void; conditions_differ:{next(iter(fields))}"
            expected = "holds" if "priority" in fields else void
            assert response.headers["x-racer-guarantee"] in (expected, "pending")


def test_each_extra_field_is_allowed_by_itself(shared: Shared, pool: FakePool) -> None:
    """One in the list opens no other; no candidate is called."""
    gateway = shared(limits={"extra_fields": ["guided_*"]}).gateway
    assert gateway.ask(ONE, guided_json={}).status_code == 200
    pool.requests.clear()
    for field in ("chat_template_kwargs", "structured_outputs", "priority", "chat_template"):
        response = gateway.ask(ONE, **{field: 1})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert pool.requests == []


@pytest.mark.parametrize(
    "field",
    [
        "chat_template", "chat_template_kwargs", "prompt_embeds", "guided_regex", "guided_json",
        "structured_outputs", "api_base",
        "base_url", "api_key", "url", "callback_uri", "headers", "extra_headers",
        "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "priority",
    ],
)  # fmt: skip
def test_fields_of_the_deny_list_are_refused(field: str) -> None:
    """What controls a candidate's server is refused by its name."""
    with pytest.raises(InputError) as caught:
        passed_through({field: "x"}, allowed=[])
    assert caught.value.param == field


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -1},
        {"priority": True},
        {"priority": "1"},
        {"chat_template_kwargs": "x"},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"chat_template_content_format": "string"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"tools": [1] * 9}},
        {"chat_template_kwargs": {"a": {"b": 1}}},
        {"chat_template_kwargs": {"a": "b" * 257}},
        {"chat_template": "{{ 1 }}"},
        {"bootstrap_host": "x"},
        {"guided_url": "x"},
    ],
    ids=str,
)
def test_an_allowed_field_has_a_harmless_value(fields: dict[str, Any]) -> None:
    """No place in front of others, no program as a template."""
    with pytest.raises(InputError) as caught:
        passed_through(fields, allowed=ALLOWED)
    assert caught.value.param == next(iter(fields))


def test_structured_outputs_of_vllm_are_a_capability(shared: Shared, pool: FakePool) -> None:
    """They go to candidates that can, as `response_format` does."""
    able = {name: {"capabilities": {"json_schema": False}} for name in ("adder", "speller")}
    case = shared(limits={"extra_fields": ALLOWED}, candidates=candidates(pool.url, **able))
    for name, value in (("guided_json", "type"), ("structured_outputs", "regex")):
        case.ask(**{name: {value: "object"}})
        assert pool.requests.pop()["model"] == "poet"
