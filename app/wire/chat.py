"""The chat completions API, ``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from app.wire import parsing
from app.wire.chunked import ChunkedFormat
from app.wire.format import AnswerKind, Choice

_REASONING: Final = ("reasoning", "thinking")  # how servers' names of a message's reasoning begin


@dataclass(frozen=True, slots=True)
class Chat(ChunkedFormat):
    """Chat completions."""

    path: ClassVar[str] = "chat/completions"
    id_prefix: ClassVar[str] = "chatcmpl-"
    text_key: ClassVar[str] = "content"
    kinds: ClassVar[tuple[str, str]] = ("chat.completion", "chat.completion.chunk")
    head_names: ClassVar[frozenset[str]] = frozenset(
        {"id", "object", "created", "model", "system_fingerprint", "service_tier"}
    )

    def _checked(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {**choice, "message": _readable(name, choice.get("message"))}

    def _checked_part(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {**choice, "delta": _readable(name, choice.get("delta") or {})}

    def _text_of(self, choice: Mapping[str, Any]) -> object:
        return choice["delta"].get(self.text_key)

    def _with_text(self, choice: Mapping[str, Any], text: str) -> dict[str, Any]:
        return {**choice, "delta": {**choice["delta"], self.text_key: text}}

    def _part(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: choice[name] for name in choice if name not in ("message", "logprobs")}
        logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
        return others | logprobs | {"delta": _delta(choice["message"])}

    def _last_part(self) -> dict[str, Any]:
        return {"delta": {}}

    def _kind_of(self, choice: Mapping[str, Any]) -> AnswerKind:
        return _choice({"message": choice["delta"]}).kind

    def _joined(self, text: str | None) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}, "logprobs": None}

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """See :class:`app.wire.format.ApiFormat`."""
        return [_choice(choice) for choice in body["choices"]]

    def refusal(self, decision_id: str, sentence: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        message = {"role": "assistant", "content": sentence, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {
            "id": decision_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "auto",
            "choices": [choice],
            "usage": dict.fromkeys(parsing.CHAT_USAGE, 0),
        }


def _readable(name: str, message: object) -> dict[str, Any]:
    """A message whose content is one text; the text parts that some servers send are joined."""
    given = parsing.as_object(name, message)
    content: object = given.get("content")
    if isinstance(content, list):
        content = text_parts(cast("object", content))
        if content is None:
            raise parsing.invalid(name)
        given = {**given, "content": content}
    if content is not None and not isinstance(content, str):
        raise parsing.invalid(name)
    parsing.as_objects(name, given.get("tool_calls") or [])
    return given


def _choice(choice: Mapping[str, Any]) -> Choice:
    message = choice["message"]
    content: object = message.get("content")
    calls: list[Mapping[str, Any]] = list(message.get("tool_calls") or [])
    if isinstance(message.get("function_call"), dict):
        calls.append({"type": "function", "function": message["function_call"]})
    finish = choice.get("finish_reason")
    text = content if isinstance(content, str) else None
    is_blank = not text or text.isspace()
    return Choice(
        text=text,
        tool_calls=tuple(calls),
        refused=bool(message.get("refusal")),
        finish_reason=finish if isinstance(finish, str) else None,
        has_other=bool(message.get("audio")),
        is_withheld=is_blank and (finish == "content_filter" or _has_reasoning(message)),
    )


def _has_reasoning(message: Mapping[str, Any]) -> bool:
    return any(name.startswith(_REASONING) and message[name] for name in message)


def text_parts(content: object) -> str | None:
    """The joined texts of content parts; None without any."""
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = [
        text
        for part in parts
        if isinstance(part, dict)
        for text in (cast("dict[str, object]", part).get("text"),)
        if isinstance(text, str)
    ]
    return "".join(texts) if texts else None


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a delta, in which tool calls need an index."""
    delta = {name: value for name, value in message.items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    return delta
