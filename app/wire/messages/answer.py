"""Answers of candidates as messages: content blocks, stop reasons, token counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from app.errors import UpstreamError
from app.wire import parsing

Fields = Mapping[str, Any]

# Clients send a signature back with its block, and some drop blocks without one. Nothing is signed.
SIGNATURE: Final = "unsigned"
# Finish reason of chat -> stop reason.
STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_REASONING: Final = ("reasoning_content", "reasoning")  # vLLM's names, the older one first


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A row of the table: a part of a chat message, and the blocks that it becomes.

    Attributes:
        name: Members of the chat message.
        becomes: The blocks, in Markdown.
        blocks: Reads them. Takes the message and the id of the answer.
    """

    name: str
    becomes: str
    blocks: Callable[[Fields, str], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an answer ended.

    Attributes:
        finish_reason: The chat API's.
        stop_reason: vLLM's: the stop sequence that ended it.
        has_calls: It has calls of tools.
        is_refused: The candidate declined to answer.
    """

    finish_reason: str | None = None
    stop_reason: object = None
    has_calls: bool = False
    is_refused: bool = False

    def stop(self, stop_sequences: Sequence[str]) -> dict[str, str | None]:
        """``stop_reason`` and ``stop_sequence`` of the message.

        Args:
            stop_sequences: Those of the request.
        """
        reason = STOP_REASONS[self.finish_reason or "stop"]
        sequence = None
        if self.is_refused:
            reason = "refusal"
        elif reason == "end_turn" and self.has_calls:  # as vLLM ends the call of a named function
            reason = "tool_use"
        elif reason == "end_turn" and self.stop_reason in stop_sequences:
            reason, sequence = "stop_sequence", str(self.stop_reason)
        return {"stop_reason": reason, "stop_sequence": sequence}


def content(message: Fields, answer_id: str, *, shows_thinking: bool) -> list[dict[str, Any]]:
    """The content blocks of a chat message."""
    blocks = [block for row in ANSWER_PARTS for block in row.blocks(message, answer_id)]
    return [block for block in blocks if shows_thinking or block["type"] != "thinking"]


def reasoning(message: Fields) -> str:
    """The reasoning of a message or of a delta; empty without any."""
    for name in _REASONING:
        if isinstance(message.get(name), str) and message[name]:
            return message[name]
    return ""


def text(message: Fields) -> str:
    """The text of a message or of a delta, or of its refusal; empty without any."""
    found: object = message.get("content") or message.get("refusal")
    return found if isinstance(found, str) else ""


def calls(message: Fields) -> list[dict[str, Any]]:
    """The calls of tools in a message or in a delta, in the form of today."""
    found = list(cast("list[dict[str, Any]]", message.get("tool_calls") or []))
    if isinstance(message.get("function_call"), dict):
        found.append({"function": message["function_call"]})
    return found


def call_id(call: Fields, answer_id: str, place: int) -> str:
    """The id of a call; one of ours where a server sends none."""
    given = call.get("id")
    return given if isinstance(given, str) and given else f"toolu_{place}_{answer_id}"


def usage(counts: object) -> dict[str, Any]:
    """Token counts of chat as those of a message; 0 where a candidate counts nothing."""
    given = parsing.counts(counts, parsing.CHAT_USAGE)
    details: object = cast("Fields", counts).get("prompt_tokens_details") if given else None
    cached = parsing.counts(details, {"cached_tokens": "cached"}).get("cached", 0)
    prompt = given.get("prompt_tokens", 0)
    cached = min(cached, prompt)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": given.get("completion_tokens", 0),
        **({parsing.ESTIMATED: True} if parsing.is_estimated({"usage": counts}) else {}),
    }


def check_calls(name: str, choice: Fields) -> None:
    """Raises UpstreamError where calls of a whole answer cannot become blocks.

    An answer that was cut at the token limit may end within a call, whose input is then empty.
    """
    for call in calls(choice["message"]):
        function = parsing.as_object(name, call.get("function"))
        if not isinstance(function.get("name"), str):
            raise parsing.invalid(name)
        arguments = function.get("arguments")
        if arguments and choice.get("finish_reason") != "length":
            parsing.json_object(name, arguments if isinstance(arguments, str) else "")


def _thinking(message: Fields, _: str) -> list[dict[str, Any]]:
    found = reasoning(message)
    return [{"type": "thinking", "thinking": found, "signature": SIGNATURE}] if found else []


def _text(message: Fields, _: str) -> list[dict[str, Any]]:
    found = text(message)
    return [{"type": "text", "text": found}] if found else []


def _tool_use(message: Fields, answer_id: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "tool_use",
            "id": call_id(call, answer_id, place),
            "name": call["function"]["name"],
            "input": _input(call["function"].get("arguments")),
        }
        for place, call in enumerate(calls(message))
    ]


def _input(arguments: object) -> dict[str, Any]:
    try:
        return parsing.json_object("", arguments) if isinstance(arguments, str) else {}
    except UpstreamError:  # cut at the token limit: others were refused before
        return {}


ANSWER_PARTS: Final = (
    AnswerPart("reasoning_content, reasoning", "a `thinking` block with the signature "
               f"`{SIGNATURE}`, where the request's `thinking` asks for it", _thinking),
    AnswerPart("content, refusal", "a `text` block", _text),
    AnswerPart("tool_calls, function_call", "a `tool_use` block for each call; arguments that are "
               "no JSON object are the candidate's failure", _tool_use),
)  # fmt: skip
USAGE: Final[Mapping[str, str]] = {
    "prompt_tokens": "`input_tokens`, without the cached ones",
    "prompt_tokens_details.cached_tokens": "`cache_read_input_tokens`, of the call that answered",
    "completion_tokens": "`output_tokens`",
}
