"""Text completions of evaluators, with the log-probabilities of the first token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from app.errors import UpstreamError
from app.wire import parsing


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The model to call, its name in messages, and its time limit."""

    name: str  # in errors and metrics
    target: str  # name of a candidate, or of an evaluator with a server of its own
    timeout_s: float  # of all attempts, from when the first one has its slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's continuation of a prompt."""

    text: str
    # Log-probabilities of the likeliest first tokens; None when the server sent none.
    top: Mapping[str, float] | None
    usage: dict[str, int]  # tokens as the server counted them


def completion(name: str, data: bytes) -> Completion:
    """Parse a text completion's first choice. Raises UpstreamError where it is invalid."""
    body = parsing.json_object(name, data)
    choices = parsing.as_objects(name, body.get("choices"))
    if not choices:
        raise UpstreamError(f"{name} sent no choice", kind="upstream_empty")
    text = choices[0].get("text")
    if not isinstance(text, str):
        raise parsing.invalid(name)
    return Completion(
        text=text,
        top=_top_logprobs(name, choices[0]),
        usage=parsing.counts(body.get("usage"), parsing.CHAT_USAGE),
    )


def _top_logprobs(name: str, choice: Mapping[str, Any]) -> dict[str, float] | None:
    """``{"top_logprobs": [{token: logprob, ...}, ...]}``, of which only the first token's."""
    logprobs = choice.get("logprobs")
    top = parsing.as_object(name, logprobs).get("top_logprobs") if logprobs is not None else None
    if not isinstance(top, list) or not top:
        return None
    values = parsing.as_object(name, cast("list[object]", top)[0])
    if not all(isinstance(each, int | float) and -1e5 < each < 0.01 for each in values.values()):
        raise parsing.invalid(name)  # 0 may be rounded up a little; -9999 is vLLM's minus infinity
    return values
