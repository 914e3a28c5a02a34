"""Wire to domain and back. Pure functions, both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.schemas import ChatRequest, Message, RouteRequest
from app.settings import Candidate
from app.upstream import Reply
from racer_core.errors import InputError

# Fields that reach into the candidate's server rather than describe the completion.
_DENIED = frozenset(
    {"prompt_embeds", "api_base", "base_url", "api_key", "api_version", "url", "headers",
     "extra_headers", "structured_outputs"}
)  # fmt: skip
_DENIED_PREFIXES = ("chat_template", "guided_")
# Fields that change what a candidate answers, hence whether it would have been labelled right.
_DECODING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop",
     "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
     "response_format", "reasoning_effort"}
)  # fmt: skip
_OTHER_KIND = ("tools", "functions", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What the router reads of a request, and what it makes of the rest."""

    text: str
    reasons: tuple[str, ...] = ()  # premises of the guarantee that the request breaks
    whole_pool: bool = False  # another kind of request than was labelled: everyone is called


def to_query(messages: Sequence[Message], body: Mapping[str, Any], max_chars: int) -> Query:
    """The last user turn, and why the guarantee may not cover this request.

    Raises:
        InputError: No user message with text.
    """
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InputError("messages hold no user message to route on", param="messages")
    text, only_text = _text_of(users[-1].content)
    reasons: list[str] = []
    if any(message.role in ("system", "developer") for message in messages):
        reasons.append("conditions_differ")
    if len(users) > 1 or any(message.role in ("assistant", "tool") for message in messages):
        reasons.append("multi_turn_uncalibrated")
    other_kind = not only_text or any(body.get(field) for field in _OTHER_KIND)
    if len(text) > max_chars:
        return Query(text=text[:max_chars], reasons=(*reasons, "query_too_long"), whole_pool=True)
    if other_kind:
        reasons.append("unlabelled_request_kind")
        return Query(text=text or " ", reasons=tuple(reasons), whole_pool=True)
    if not text.strip():
        raise InputError("the last user message is empty", param="messages")
    return Query(text=text, reasons=tuple(reasons))


def _text_of(content: str | list[dict[str, Any]] | None) -> tuple[str, bool]:
    """The text of a turn, and whether it holds nothing else."""
    if isinstance(content, str):
        return content, True
    parts = content or []
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "\n".join(texts), len(texts) == len(parts)


def passed_through(body: ChatRequest | RouteRequest) -> dict[str, Any]:
    """The fields of a body that candidates get, as the client sent them.

    Raises:
        InputError: A field is on the deny list.
    """
    fields = body.model_dump(exclude_unset=True)
    for name in fields:
        if name in _DENIED or name.startswith(_DENIED_PREFIXES):
            raise InputError(f"the field {name!r} is not passed on to candidates", param=name)
    ours = set(type(body).model_fields) - {"messages"}
    return {name: value for name, value in fields.items() if name not in ours}


def candidate_payload(fields: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """What one candidate is sent: the client's fields, else the candidate's own parameters."""
    defaults = dict(candidate.parameters)
    if fields.get("max_tokens") is not None or fields.get("max_completion_tokens") is not None:
        defaults.pop("max_tokens", None)
        defaults.pop("max_completion_tokens", None)
    said = {name: value for name, value in fields.items() if value is not None}
    return {**defaults, **said, "model": candidate.model or candidate.name, "stream": False}


def conditions_differ(fields: Mapping[str, Any], candidates: Iterable[Candidate]) -> bool:
    """Whether the client asks some candidate to decode otherwise than it was labelled with."""
    said = {
        name: value
        for name, value in fields.items()
        if name in _DECODING and value is not None and value != {"type": "text"}
    }
    return any(
        candidate.parameters.get(_alias(name, candidate)) != value
        for candidate in candidates
        for name, value in said.items()
    )


def _alias(name: str, candidate: Candidate) -> str:
    """``max_tokens`` and ``max_completion_tokens`` are one parameter under two names."""
    names = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    other = names.get(name, name)
    return other if name not in candidate.parameters and other in candidate.parameters else name


def summed_usage(replies: Iterable[Reply]) -> dict[str, int]:
    """Tokens of all calls together."""
    total = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for reply in replies:
        for name in total:
            total[name] += reply.usage.get(name, 0)
    return total


def refusal_body(decision_id: str, created: int, sentence: str) -> dict[str, Any]:
    """A chat completion in which nobody was called."""
    message = {"role": "assistant", "content": sentence, "refusal": sentence}
    return {
        "id": decision_id,
        "object": "chat.completion",
        "created": created,
        "model": "auto",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": summed_usage(()),
    }


def completion_chunks(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A whole chat completion as the chunks of a stream: the messages, then the finish."""
    head = {name: body[name] for name in ("id", "created", "model", "system_fingerprint")
            if name in body}  # fmt: skip
    head["object"] = "chat.completion.chunk"
    said: list[dict[str, Any]] = [
        {"index": i, "delta": _delta(choice["message"]), "finish_reason": None}
        | ({"logprobs": choice["logprobs"]} if choice.get("logprobs") else {})
        for i, choice in enumerate(body["choices"])
    ]
    finish: list[dict[str, Any]] = [
        {"index": i, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}
        for i, choice in enumerate(body["choices"])
    ]
    return [{**head, "choices": said}, {**head, "choices": finish}]


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a delta: tool calls need their index there."""
    delta = {name: value for name, value in message.items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    return delta
