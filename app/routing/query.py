"""Query extraction: the text that the router reads, and what the request needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from app.routing.conditions import Conditions
from app.settings import Candidate, Settings
from app.wire.schemas import Message
from racer_core.errors import InputError
from racer_core.records.conversation import joined

Need = Literal["tools", "vision", "json_schema"]

_SYSTEM = frozenset({"system", "developer"})
_GUIDED = ("guided_", "structured_outputs")  # vLLM's own spellings of structured outputs
# A tuple, not a set: a client's `type` may be a list, which has no hash.
_IMAGES = ("image_url", "input_image", "image", "video_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The text that the router reads, and the properties of the request that matter for routing."""

    text: str
    conditions: Conditions  # what candidates are sent beside the query
    is_too_long: bool = False  # the router reads only its beginning
    later: bool = False  # a turn after the first of a conversation
    needs: frozenset[Need] = frozenset()  # capabilities that a candidate must have
    chars: int = 0  # of all texts for the candidates

    def able(self, candidates: Iterable[Candidate]) -> tuple[str, ...]:
        """The candidates with the capabilities that the request needs."""
        return tuple(each.name for each in candidates if self._suits(each))

    def _suits(self, candidate: Candidate) -> bool:
        able = candidate.capabilities
        longest = able.context_chars
        if longest is not None and self.chars > longest:
            return False
        return not self.needs or all(getattr(able, need) for need in self.needs)


def of_messages(
    messages: Sequence[Message],
    fields: Mapping[str, Any],
    conditions: Conditions,
    settings: Settings,
) -> Query:
    """The query of a conversation.

    System prompts and tool results are noise of the client's harness; they are not routed on,
    except the last system prompt of a conversation that consists of system prompts alone.

    Args:
        messages: The conversation.
        fields: The fields that candidates are sent beside the messages.
        conditions: What candidates are sent, but for the query.
        settings: Which text is routed on, and the limit on it.

    Raises:
        InputError: No message to route on, or one without text.
    """
    users = [message for message in messages if message.role == "user"]
    others = {message.role for message in messages} - {"user"}
    if not messages or not (users or others <= _SYSTEM):
        raise InputError("messages hold no user message to route on", param="messages")
    asked = (users or messages)[-1]
    text = _text_of(asked)
    if users and settings.routing.text == "conversation":
        text = joined(_text_of(each) for each in messages if each.role in ("user", "assistant"))
    if not text.strip():
        if _is_text(asked):
            raise InputError(f"the last {asked.role} message is empty", param="messages")
        text = "(no text)"
    longest = settings.limits.query_chars
    return Query(
        text=text[:longest],
        conditions=conditions,
        is_too_long=len(text) > longest,
        later=len(users) > 1 or bool(others - _SYSTEM),
        needs=_needs(messages, fields),
        chars=sum(len(_text_of(message)) for message in messages),
    )


def of_prompt(prompt: str, conditions: Conditions, settings: Settings) -> Query:
    """The query of a bare prompt."""
    if not prompt.strip():
        raise InputError("the prompt is empty", param="prompt")
    longest = settings.limits.query_chars
    return Query(
        text=prompt[:longest],
        conditions=conditions,
        is_too_long=len(prompt) > longest,
        chars=len(prompt),
    )


def _needs(messages: Sequence[Message], fields: Mapping[str, Any]) -> frozenset[Need]:
    needs: set[Need] = set()
    if fields.get("tools") or fields.get("functions"):
        needs.add("tools")
    if any(part.get("type") in _IMAGES for message in messages for part in _parts(message)):
        needs.add("vision")
    is_guided = any(fields.get(name) and name.startswith(_GUIDED) for name in fields)
    if is_guided or answer_format(fields) == "json_schema":
        needs.add("json_schema")
    return frozenset(needs)


def answer_format(fields: Mapping[str, Any]) -> str | None:
    """The answer format that a request demands: ``json_schema``, ``json_object``, ``text``."""
    text: object = fields.get("text")  # its place in /v1/responses
    responses = cast("dict[str, object]", text).get("format") if isinstance(text, dict) else None
    wanted: object = fields.get("response_format") or responses
    kind = cast("dict[str, object]", wanted).get("type") if isinstance(wanted, dict) else None
    return kind if isinstance(kind, str) else None


def _parts(message: Message) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else []


def _is_text(message: Message) -> bool:
    """Whether a turn has no parts but texts."""
    return all(part.get("type") == "text" for part in _parts(message))


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        part["text"]
        for part in _parts(message)
        if part.get("type") == "text" and isinstance(part.get("text"), str)
    )
