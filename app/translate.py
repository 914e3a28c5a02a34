"""Wire to domain and back. Pure functions, both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.reasons import Reason
from app.schemas import ChatRequest, Message, RouteRequest
from app.settings import Candidate
from app.upstream import Reply
from racer_core.errors import InputError

# Fields that reach into the candidate's server rather than describe the completion.
_DENIED = frozenset(
    {"prompt_embeds", "api_base", "headers", "extra_headers", "api_version", "structured_outputs"}
)
_DENIED_PREFIXES = ("chat_template", "guided_")
_DENIED_SUFFIXES = ("url", "uri", "api_key")
# Fields that change nothing of the first answer. Any other must be as it was for the labels.
_HARMLESS = frozenset(
    {"messages", "n", "seed", "logprobs", "top_logprobs", "user", "metadata", "store",
     "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)  # fmt: skip
_OTHER_KIND = ("tools", "functions", "audio", "modalities")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What the router reads of a request, and what it makes of the rest."""

    text: str
    reasons: tuple[str, ...] = ()  # premises of the guarantee that the request breaks
    whole_pool: bool = False  # another kind of request than was labelled: everyone is called


def to_query(
    messages: Sequence[Message],
    fields: Mapping[str, Any],
    candidates: Iterable[Candidate],
    max_chars: int,
) -> Query:
    """The last user turn, and why the guarantee may not cover this request.

    Args:
        messages: The conversation; rows are labelled with a single user message.
        fields: What candidates are sent beside the messages.
        candidates: How the pool decoded when it was labelled.
        max_chars: Longer texts are cut for the router, and everyone is called.

    Raises:
        InputError: No user message with text.
    """
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InputError("messages hold no user message to route on", param="messages")
    text, plain = _text_of(users[-1])
    reasons: list[str] = []
    others = {message.role for message in messages} - {"user"}
    if others & {"system", "developer"} or conditions_differ(fields, candidates):
        reasons.append(Reason.CONDITIONS_DIFFER)
    if len(users) > 1 or others - {"system", "developer"}:
        reasons.append(Reason.MULTI_TURN)
    if not plain or any(fields.get(field) for field in _OTHER_KIND):
        reasons.append(Reason.UNLABELLED_KIND)
    if len(text) > max_chars:
        reasons.append(Reason.QUERY_TOO_LONG)
    whole_pool = bool({Reason.UNLABELLED_KIND, Reason.QUERY_TOO_LONG} & set(reasons))
    if not text.strip():
        if plain or not users[-1].content:
            raise InputError("the last user message is empty", param="messages")
        text = "(no text)"
    return Query(text=text[:max_chars], reasons=tuple(reasons), whole_pool=whole_pool)


def _text_of(message: Message) -> tuple[str, bool]:
    """The text of a turn, and whether it is a plain text, as in the labelled rows."""
    if isinstance(message.content, str):
        return message.content, not message.model_extra
    texts = [
        part["text"]
        for part in message.content or []
        if part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    plain = len(texts) == 1 == len(message.content or []) and not message.model_extra
    return "\n".join(texts), plain


def passed_through(body: ChatRequest | RouteRequest, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body that candidates get, as the client sent them.

    Raises:
        InputError: A field is on the deny list.
    """
    for name in raw:
        if (
            name in _DENIED
            or name.startswith(_DENIED_PREFIXES)
            or name.lower().endswith(_DENIED_SUFFIXES)
        ):
            shown = name[:64]
            raise InputError(f"the field {shown!r} is not passed on to candidates", param=shown)
    ours = (set(type(body).model_fields) | {"stream", "stream_options", "model"}) - {"messages"}
    return {name: value for name, value in raw.items() if name not in ours}


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
        name: value for name, value in fields.items() if value is not None and name != "messages"
    }
    return any(
        _matters(name, value, candidate.parameters)
        for candidate in candidates
        for name, value in ((_alias(name, candidate), value) for name, value in said.items())
    )


def _matters(name: str, value: object, parameters: Mapping[str, Any]) -> bool:
    """A harmless field matters only where rows were labelled with a value of it."""
    if name in parameters:
        return parameters[name] != value
    plain_text = name == "response_format" and value == {"type": "text"}
    return name not in _HARMLESS and not plain_text


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
    head = {
        name: body[name]
        for name in ("id", "created", "model", "system_fingerprint")
        if name in body
    }
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
