"""Content blocks of Messages requests as turns of chat: a table that the reference prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from app.errors import SchemaError
from app.json_output import dump_json
from racer_core.errors import InputError

Fields = Mapping[str, Any]

# Claude Code's first block: a hash of each request, which would make every prompt another one.
BILLING_HEADER: Final = "x-anthropic-billing-header"
_REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
_PART: Final = "\n"  # between the texts of one turn
_PARAGRAPH: Final = "\n\n"  # between system prompts


@dataclass(slots=True)
class ChatTurn:
    """One turn while its blocks are added.

    Attributes:
        role: ``user`` or ``assistant``.
        parts: Texts and images in order; neighbouring texts are one part.
        results: Turns with the results of tools, which come before the text.
        calls: Calls of tools.
        reasoning: Texts of its reasoning.
    """

    role: str
    parts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reasoning: list[str] = field(default_factory=list[str])

    def add_text(self, text: str) -> None:
        """Add a text; it continues the text before it in a new line."""
        if not text:
            return
        if self.parts and self.parts[-1]["type"] == "text":
            text = f"{self.parts.pop()['text']}{_PART}{text}"
        self.parts.append({"type": "text", "text": text})

    def messages(self) -> list[dict[str, Any]]:
        """The turns of chat that it becomes."""
        if self.results and not self.parts:
            return self.results
        turn: dict[str, Any] = {"role": self.role, "content": self._content()}
        if self.reasoning:
            turn["reasoning_content"] = _PART.join(self.reasoning)
        if self.calls:
            turn["tool_calls"] = self.calls
        return [*self.results, turn]

    def _content(self) -> str | list[dict[str, Any]] | None:
        match self.parts:
            case []:
                return None if self.calls else ""
            case [{"type": "text", "text": str(text)}]:
                return text
            case parts:
                return parts


@dataclass(frozen=True, slots=True)
class Block:
    """A row of the table.

    Attributes:
        type: The block's type.
        roles: Of the turns that may hold it.
        becomes: What candidates are sent instead, in Markdown.
        add: Adds a block to its turn. Takes the turn, the block and its place in the request.
    """

    type: str
    roles: Sequence[str]
    becomes: str
    add: Callable[[ChatTurn, Fields, str], None]


def chat_turns(turns: Sequence[Fields]) -> tuple[str, list[dict[str, Any]]]:
    """The turns of a request as turns of chat.

    Neighbouring turns of one role are one turn. Most chat templates take a system turn at the start
    alone, so a later one becomes text of the user, marked as agents mark their reminders.

    Args:
        turns: ``messages`` of the request, of the shape that its schema demands.

    Returns:
        The text of system turns at the start, and the turns of chat.

    Raises:
        InputError: A block cannot be translated; the message says what to send instead.
    """
    system: list[str] = []
    found: list[ChatTurn] = []
    for number, turn in enumerate(turns):
        role, content, place = turn["role"], turn["content"], f"messages.{number}.content"
        if role == "system":
            text = system_text(content, place)
            if not found:
                system.append(text)
                continue
            if not text:
                continue
            role, content = "user", _REMINDER.format(text)
        if not found or found[-1].role != role:
            found.append(ChatTurn(role))
        if isinstance(content, str):
            found[-1].add_text(content)
        else:
            _add_blocks(found[-1], content, place)
    chat = [message for each in found for message in each.messages()]
    return _PARAGRAPH.join(filter(None, system)), chat


def system_text(content: str | Sequence[Fields], place: str) -> str:
    """A system prompt as one text, without Claude Code's billing header.

    Args:
        content: The prompt: a text, or blocks of text.
        place: Its place in the request.
    """
    if isinstance(content, str):
        return content
    for number, block in enumerate(content):
        if block.get("type") != "text":
            at = f"{place}.{number}"
            raise SchemaError(f"{at}: system prompts have blocks of text alone", param=at)
    texts = [_text_of(block, "text", f"{place}.{n}") for n, block in enumerate(content)]
    return _PARAGRAPH.join(each for each in texts if not each.startswith(BILLING_HEADER))


def _add_blocks(turn: ChatTurn, blocks: Iterable[Fields], place: str) -> None:
    for number, block in enumerate(blocks):
        kind, at = block.get("type"), f"{place}.{number}"
        row = _ROWS.get(kind) if isinstance(kind, str) else None
        if row is None or turn.role not in row.roles:
            known = ", ".join(each.type for each in BLOCKS if turn.role in each.roles)
            raise InputError(
                f"{at}: a block of this type has no form in chat in a turn of the {turn.role}: "
                f"send {known}",
                param=at,
            )
        row.add(turn, block, at)


def _add_text(turn: ChatTurn, block: Fields, place: str) -> None:
    turn.add_text(_text_of(block, "text", place))


def _add_image(turn: ChatTurn, block: Fields, place: str) -> None:
    source = _object_of(block, "source", place)
    match source.get("type"):
        case "base64":
            media, data = (_text_of(source, name, place) for name in ("media_type", "data"))
            url = f"data:{media};base64,{data}"
        case "url":
            url = _text_of(source, "url", place)
        case _:
            raise _unsupported_source(place, "base64 or url")
    turn.parts.append({"type": "image_url", "image_url": {"url": url}})


def _add_document(turn: ChatTurn, block: Fields, place: str) -> None:
    source = _object_of(block, "source", place)
    for name in ("title", "context"):
        if isinstance(block.get(name), str):
            turn.add_text(block[name])
    match source.get("type"):
        case "text":
            turn.add_text(_text_of(source, "data", place))
        case "content":
            _add_content(turn, source.get("content"), place)
        case _:
            raise _unsupported_source(place, "text or content")


def _add_search_result(turn: ChatTurn, block: Fields, place: str) -> None:
    for name in ("title", "source"):
        turn.add_text(_text_of(block, name, place))
    _add_content(turn, block.get("content"), place)


def _add_tool_reference(turn: ChatTurn, block: Fields, place: str) -> None:
    turn.add_text(_text_of(block, "tool_name", place))


def _add_result(turn: ChatTurn, block: Fields, place: str) -> None:
    inner = ChatTurn("user")
    _add_content(inner, block.get("content"), place)
    texts = [part["text"] for part in inner.parts if part["type"] == "text"]
    text = _PART.join(texts)
    turn.results.append(
        {
            "role": "tool",
            "tool_call_id": _text_of(block, "tool_use_id", place),
            "content": f"Error: {text}" if block.get("is_error") is True else text,
        }
    )
    turn.parts += [part for part in inner.parts if part["type"] != "text"]


def _add_call(turn: ChatTurn, block: Fields, place: str) -> None:
    arguments = dump_json(_object_of(block, "input", place)).decode()
    function = {"name": _text_of(block, "name", place), "arguments": arguments}
    turn.calls.append(
        {"id": _text_of(block, "id", place), "type": "function", "function": function}
    )


def _add_thinking(turn: ChatTurn, block: Fields, place: str) -> None:
    if text := _text_of(block, "thinking", place):
        turn.reasoning.append(text)


def _drop(_: ChatTurn, __: Fields, ___: str) -> None:
    """Add nothing."""


_USER: Final = ("user",)
_ASSISTANT: Final = ("assistant",)
BLOCKS: Final = (
    Block("text", ("user", "assistant"), "text; neighbouring texts are joined by a line end",
          _add_text),
    Block("image", _USER, "a part `image_url`: the URL, or base64 as a `data:` URL; files (`file`) "
          "are refused", _add_image),
    Block("document", _USER, "its title, context and text as text; PDF and files are refused",
          _add_document),
    Block("search_result", _USER, "its title, source and text as text", _add_search_result),
    Block("tool_result", _USER, "a turn `tool` before the other blocks, with its texts; after "
          "`is_error: true` the text begins with `Error: `; its images are parts of the user's "
          "turn after it", _add_result),
    Block("tool_reference", _USER, "inside a `tool_result`: the tool's name as text",
          _add_tool_reference),
    Block("tool_use", _ASSISTANT, "one of `tool_calls`, `input` as JSON text", _add_call),
    Block("thinking", _ASSISTANT, "`reasoning_content` of the turn; the signature is not sent and "
          "not checked", _add_thinking),
    Block("redacted_thinking", _ASSISTANT, "nothing", _drop),
)  # fmt: skip
_ROWS: Final = {row.type: row for row in BLOCKS}


def _add_content(turn: ChatTurn, content: object, place: str) -> None:
    """Add the content of a block: a text, or blocks of a user's turn."""
    if content is None:
        return
    if isinstance(content, str):
        turn.add_text(content)
        return
    blocks = cast("list[object]", content) if isinstance(content, list) else [content]
    for each in blocks:
        if not isinstance(each, dict) or cast("Fields", each).get("type") == "tool_result":
            raise SchemaError(f"{place}: content must be a text or a list of blocks", param=place)
    _add_blocks(turn, cast("list[Fields]", blocks), f"{place}.content")


def _text_of(block: Fields, name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise SchemaError(f"{place}.{name} must be a string", param=f"{place}.{name}")
    return value


def _object_of(block: Fields, name: str, place: str) -> Fields:
    value = block.get(name)
    if not isinstance(value, dict):
        raise SchemaError(f"{place}.{name} must be an object", param=f"{place}.{name}")
    return cast("Fields", value)


def _unsupported_source(place: str, known: str) -> InputError:
    return InputError(
        f"{place}.source: candidates cannot be sent a source of this type: send {known}",
        param=f"{place}.source",
    )
