"""Words of candidates' rejections: every server's form, the prompt that does not fit, cleaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire.rejections import CONTEXT_EXCEEDED, MODEL_MISSING, Rejection, read_rejection


def read(document: Any, status: int = 400, **names: str) -> Rejection:
    """What is read of a JSON document."""
    return read_rejection(status, json.dumps(document).encode(), names)


def openai(message: str, **fields: Any) -> dict[str, Any]:
    """OpenAI's envelope, which most servers have."""
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


# As servers word it, with the tokens that fit and that were given; None: the words name none.
PROMPTS_THAT_DO_NOT_FIT = {
    "vllm": (
        openai(
            "This model's maximum context length is 4096 tokens. However, your request has 5120 "
            "input tokens. Please reduce the length of the input messages.",
            code=400,
        ),
        4096,
        5120,
    ),
    "vllm of 2024": (
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested "
            "5220 tokens (5120 in the messages, 100 in the completion). Please reduce the length.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        4096,
        5120,
    ),
    "vllm's engine": (
        openai("The decoder prompt (length 5120) is longer than the maximum model length of 4096."),
        4096,
        5120,
    ),
    "sglang": (
        openai("The input (5120 tokens) is longer than the model's context length (4096 tokens)."),
        4096,
        5120,
    ),
    "sglang in all": (
        openai(
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
            "requested a total of 5120 tokens: 5000 tokens from the input messages."
        ),
        4096,
        5120,
    ),
    "llama.cpp": (
        openai(
            "the request exceeds the available context size, try increasing it",
            type="exceed_context_size_error",
            n_prompt_tokens=5120,
            n_ctx=4096,
        ),
        4096,
        5120,
    ),
    "llama.cpp in words": (
        openai(
            "request (5120 tokens) exceeds the available context size (4096 tokens), try "
            "increasing it"
        ),
        4096,
        5120,
    ),
    "ollama": ({"error": "the input length exceeds the context length"}, None, None),
    "openai": (
        openai(
            "Input tokens exceed the configured limit of 4096 tokens. Your messages resulted in "
            "5,120 tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
        4096,
        5120,
    ),
    "openai's responses": (
        openai("Your input exceeds the context window of this model. Please adjust your input."),
        None,
        None,
    ),
    "tgi": (
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 5120 `inputs` tokens and 100 `max_new_tokens`",
            "error_type": "validation",
        },
        4096,
        5120,
    ),
    "anthropic": (
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 5120 tokens > 4096 maximum",
            },
        },
        4096,
        5120,
    ),
}


@pytest.mark.parametrize(
    ("document", "limit", "tokens"),
    PROMPTS_THAT_DO_NOT_FIT.values(),
    ids=PROMPTS_THAT_DO_NOT_FIT.keys(),
)
def test_a_prompt_that_does_not_fit_is_said_in_words_that_clients_act_on(
    document: Any, limit: int | None, tokens: int | None
) -> None:
    """LiteLLM, codex, Claude Code and opencode shorten on these and on nothing else."""
    found = read(document)
    assert (found.code, found.param) == (CONTEXT_EXCEEDED, "messages")
    assert found.message is not None
    if limit is None:
        assert "prompt is too long" in found.message
        assert "maximum context length" in found.message
    else:
        assert f"prompt is too long: {tokens} tokens > {limit} maximum" in found.message
        assert f"maximum context length is {limit} tokens" in found.message


@pytest.mark.parametrize(
    "message",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "temperature must be non-negative, got -1",
        "The image is too large",
        "At most 1 image(s) may be provided in one prompt.",
        "logprobs exceed the maximum of 20",
    ],
)
def test_other_faults_keep_their_words(message: str) -> None:
    """The cure is in them: a flag of the server, for example."""
    found = read(openai(message, code=400, param="temperature"))
    assert found == Rejection(message=message, param="temperature", code=None)


def test_an_answer_that_does_not_fit_keeps_its_words_and_the_code() -> None:
    """Prompt and answer together are too long; a shorter prompt does not help at once."""
    words = (
        "This model's maximum context length is 4096 tokens. However, you requested 5020 tokens "
        "(20 in the messages, 5000 in the completion)."
    )
    assert read(openai(words)) == Rejection(message=words, param="messages", code=CONTEXT_EXCEEDED)


@pytest.mark.parametrize(
    "document",
    [
        openai("The model `qwen` does not exist.", type="NotFoundError", param="model", code=404),
        {"error": "model 'qwen' not found"},
        openai("The model 'qwen' does not exist", code="model_not_found"),
    ],
)
def test_a_missing_model_has_one_code(document: Any) -> None:
    """vLLM, Ollama, OpenAI. Another 404 is no missing model: the endpoint may not be served."""
    assert read(document, 404).code == MODEL_MISSING
    assert read({"detail": "Not Found"}, 404) == Rejection(message="Not Found")


@pytest.mark.parametrize(
    "document",
    [
        {"detail": [{"loc": ["body", "top_k"], "msg": "must be positive", "type": "value"}]},
        openai("must be positive", param="top_k"),
        {"object": "error", "message": "must be positive", "param": "top_k", "code": 40001},
    ],
)
def test_every_form_of_an_envelope_is_read(document: Any) -> None:
    """FastAPI's list of faults, OpenAI's, vLLM's old one."""
    assert read(document) == Rejection(message="must be positive", param="top_k")


@pytest.mark.parametrize(
    "document", [b"", b"<html>no</html>", b"[]", b'{"error": 4}', b'{"error": {"message": 7}}']
)
def test_no_words_are_no_words(document: bytes) -> None:
    """Nothing is invented."""
    assert read_rejection(400, document, {}) == Rejection()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("see http://10.0.0.3:8000/v1/models", "see [address]"),
        ("upstream 10.0.0.3:8000 and [fd00::1]:80", "upstream [address] and [address]"),
        ("host gpu-7.internal, vllm-0.vllm.svc:8000", "host [address], [address]"),
        ("bad key sk-abcdef0123456789", "bad key [key]"),
        ("Authorization: Bearer abc.def", "Authorization: [key]"),
        ("id 0123456789abcdef0123456789abcdef", "id [key]"),
        ("cannot read /models/qwen/config.json", "cannot read [path]"),
        ("other-model says, Qwen/Qwen3-8B too", "[model] says, mine too"),
        ("two\nlines \u202e and\x00 more", "two lines and more"),
    ],
)
def test_keys_addresses_and_foreign_names_are_cut_out(said: str, shown: str) -> None:
    """A server's own words name what no client may know."""
    found = read_rejection(
        400, json.dumps(openai(said)).encode(), {"other-model": "[model]", "Qwen/Qwen3-8B": "mine"}
    )
    assert found.message == shown


@given(st.text(max_size=3000), st.integers(), st.text(max_size=80))
def test_words_are_short_and_printable_whatever_is_sent(
    message: str, code: int, param: str
) -> None:
    """Also for numbers of any size in the places of numbers."""
    for fields in ({"n_ctx": code, "n_prompt_tokens": code}, {"code": code}, {"type": [code]}):
        found = read(openai(message, param=param) | {"x": 1})
        found = read({"error": {"message": message, "param": param} | fields})
        assert found.message is None or (
            len(found.message) <= 300 and found.message.isprintable() and found.message.strip()
        )
        assert found.param is None or found.param.isascii() or len(found.param) <= 64
