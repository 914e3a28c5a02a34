"""Whole requests as rows: their API, their turns, and the text that the router reads of them.

A request is a body as a client sends it, with ``messages`` to chat completions, with ``input`` to
responses, with ``prompt`` to completions. Rows and served requests are read by the functions here
alone, so a row and a request with one body have one text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Self, cast

from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.records.conversation import WITHOUT_SYSTEM, RoutedText, identity, joined, plain_form
from racer_core.records.left_out import Passage, outside
from racer_core.types import LabelledRow, Turn

# Endpoint of a candidate -> the field of a body that holds the turns.
TURN_FIELDS: Final[Mapping[str, str]] = {
    "chat/completions": "messages",
    "responses": "input",
    "completions": "prompt",
}
NO_TEXT: Final = "(no text)"  # what the router reads of a turn of images alone
# Fields of a request that the gateway reads itself.
GATEWAY_FIELDS: Final = frozenset(
    {"model", "stream", "stream_options", "racer"}
    | {"usage", "timeout"}  # of other gateways' clients, which mean their gateway
)
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True)
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_SPOKEN: Final = ("user", "assistant")
# Kinds of content parts in the responses API -> the chat API's names.
_PARTS: Final = {"input_text": "text", "output_text": "text", "input_image": "image_url"}


@dataclass(frozen=True, slots=True)
class RequestTurn:
    """One turn of a request, with the chat API's names of its parts."""

    role: str
    content: str | Sequence[Mapping[str, Any]] | None = None

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """The parts of its content; none of a text."""
        return () if isinstance(self.content, str) or self.content is None else self.content

    @property
    def text(self) -> str:
        """Its text, or the texts among its parts."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(
            part["text"]
            for part in self.parts
            if part.get("type") == "text" and isinstance(part.get("text"), str)
        )

    @property
    def is_text(self) -> bool:
        """Whether it has no parts but texts."""
        return all(part.get("type") == "text" for part in self.parts)

    def without(self, left_out: Sequence[Passage]) -> Self:
        """The turn without these passages of its text."""
        text = outside(self.text, left_out)
        others = [part for part in self.parts if part.get("type") != "text"]
        content = [*others, {"type": "text", "text": text}] if others else text
        return replace(self, content=content)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one request.

    Attributes:
        turns: All of them, in order.
        field: The field of the body that holds them.
    """

    turns: Sequence[RequestTurn]
    field: str = "messages"

    @property
    def asked(self) -> int:
        """The place of the turn that asks: the user's last, else the last system prompt.

        Raises:
            InputError: There is no turn to route on.
        """
        last = len(self.turns) - 1
        for place in range(last, -1, -1):
            if self.turns[place].role == "user":
                return place
        if not self.turns or any(turn.role not in SYSTEM_ROLES for turn in self.turns):
            raise InputError(f"{self.field} hold no user message to route on", param=self.field)
        return last

    @property
    def texts(self) -> tuple[Turn, ...]:
        """The texts of all turns, in order, without system prompts."""
        return tuple(
            Turn(turn.role, turn.text) for turn in self.turns if turn.role not in SYSTEM_ROLES
        )

    @property
    def earlier(self) -> tuple[Turn, ...]:
        """The turns beside the one that asks, without system prompts."""
        asked = self.asked
        return tuple(
            Turn(turn.role, turn.text)
            for place, turn in enumerate(self.turns)
            if place != asked and turn.role not in SYSTEM_ROLES
        )

    @property
    def query(self) -> str:
        """The text of the turn that asks; never empty."""
        return self.turns[self.asked].text or NO_TEXT

    @property
    def is_later(self) -> bool:
        """Whether the request is a later turn: some turn is beside the one that asks."""
        asked = self.asked
        return any(
            place != asked and turn.role not in SYSTEM_ROLES
            for place, turn in enumerate(self.turns)
        )

    @property
    def answers(self) -> int:
        """The number of answers to which other turns were sent."""
        roles = [turn.role for turn in self.turns if turn.role not in SYSTEM_ROLES]
        return sum(one == "assistant" != other for one, other in pairwise(roles))

    def text(self, read: RoutedText, left_out: Sequence[Passage] = ()) -> str:
        """The text that the router reads.

        System prompts and tool results are noise of the client's harness. They are not routed on,
        but for prompts where ``read`` says so, which then come first, and the last system prompt of
        a conversation that consists of system prompts alone.

        Args:
            read: Which turns it reads.
            left_out: Passages that it does not read. The user's last turn is then the last one with
                other words, if there is any.

        Raises:
            InputError: There is no turn to route on, or no text in it.
        """
        asked = self.turns[self.asked]
        text = asked.text
        if left_out and asked.role == "user" and text.strip():
            return self._without(left_out).text(read)
        if WITHOUT_SYSTEM[read] == "conversation" and asked.role == "user":
            text = joined(turn.text for turn in self.turns if turn.role in _SPOKEN)
        if WITHOUT_SYSTEM[read] != read and asked.role == "user" and text.strip():
            prompts = (turn.text for turn in self.turns if turn.role in SYSTEM_ROLES)
            text = joined((*prompts, text))
        if text.strip():
            return text
        if asked.is_text:
            raise InputError(f"the last {asked.role} message is empty", param=self.field)
        return NO_TEXT

    def _without(self, left_out: Sequence[Passage]) -> Self:
        """The conversation without these passages, and without turns that held nothing else.

        Itself where no words of the user are left.
        """
        turns = [turn.without(left_out) for turn in self.turns]
        turns = [turn for turn in turns if turn.text or turn.parts]
        is_asking = any(turn.role == "user" for turn in turns)
        return replace(self, turns=turns) if is_asking else self


def conversation_of(body: Mapping[str, Any], path: str) -> Conversation:
    """The conversation of a body for this endpoint.

    Raises:
        InputError: Not turns of this API, or several prompts.
    """
    field = TURN_FIELDS[path]
    value = body.get(field)
    if path == "completions":
        return Conversation([RequestTurn("user", _prompt(value))], field)
    if isinstance(value, str) and path == "responses":
        turns = [RequestTurn("user", value)]
    elif isinstance(value, list) and value:
        read = _item if path == "responses" else _message
        turns = [read(each, field) for each in cast("list[object]", value)]
    else:
        raise InputError(f'"{field}" must be a list of turns', param=field)
    instructions = body.get("instructions") if path == "responses" else None
    if isinstance(instructions, str) and instructions:
        turns = [RequestTurn("system", instructions), *turns]
    return Conversation(turns, field)


def parse_request(value: object) -> dict[str, Any]:
    """The ``request`` of a row, without the fields that the gateway reads itself.

    Raises:
        InputError: Not one body of one of the three APIs.
    """
    if not isinstance(value, dict):
        raise InputError('"request" must be an object: a body as a client sends it')
    body = cast("dict[str, Any]", value)
    found = [name for name in TURN_FIELDS.values() if body.get(name) is not None]
    if len(found) != 1:
        which = " and ".join(f'"{name}"' for name in found) or "none of them"
        raise InputError(f'"request" must have one of "messages", "input" and "prompt": {which}')
    for name in ("tools", "functions"):
        if not isinstance(body.get(name), list | None):
            raise InputError(f'"request": "{name}" must be a list')
    try:
        _JSON.encode(body).encode()
    except UnicodeEncodeError as exc:
        raise InputError('"request" holds a lone surrogate, which is not text') from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError('"request" cannot be sent as JSON') from exc
    return {name: value for name, value in body.items() if name not in GATEWAY_FIELDS}


def request_path(request: Mapping[str, Any]) -> str:
    """The endpoint of candidates to which a row's request goes."""
    return next(path for path, name in TURN_FIELDS.items() if request.get(name) is not None)


def request_conversation(request: Mapping[str, Any]) -> Conversation:
    """The conversation of a row's request. Raises as :func:`conversation_of`."""
    try:
        return conversation_of(request, request_path(request))
    except InputError as exc:
        raise InputError(f'"request": {exc}') from exc


def row_text(row: LabelledRow, read: RoutedText, left_out: Sequence[Passage] = ()) -> str:
    """The text that the router reads of a row; empty for a row of scores.

    Args:
        row: The row.
        read: Which turns it reads.
        left_out: Passages that it does not read.
    """
    if row.request is not None:
        return request_conversation(row.request).text(read, left_out)
    if not row.query:
        return ""
    turns = row_turns(row)
    return Conversation([RequestTurn(turn.role, turn.text) for turn in turns]).text(read, left_out)


def row_turns(row: LabelledRow) -> tuple[Turn, ...]:
    """The texts of a row's request, in order, without system prompts."""
    if row.request is not None:
        return request_conversation(row.request).texts
    return (*row.earlier, Turn("user", row.query))


def row_identity(
    query: str, earlier: Iterable[Turn], request: Mapping[str, Any] | None, *, plain: bool = False
) -> str:
    """A text that identifies a row's query: of a whole request, the request.

    Empty for a row of scores.

    Args:
        query: The query.
        earlier: The turns before it.
        request: The whole request; None: it is turns of plain text.
        plain: Differences in case, space and Unicode form do not count.
    """
    if request is None:
        name = identity(query, earlier)
        return plain_form(name) if plain else name
    value = _plain(request) if plain else request
    return "\0" + _JSON.encode(value)


def with_request_cell(cells: Mapping[str, Any]) -> Mapping[str, Any] | InputError:
    """The cells of a table's row with the JSON text of the column ``request`` parsed."""
    cell = cells.get("request")
    if cell is None or cell == "":
        return {name: value for name, value in cells.items() if name != "request"}
    if not isinstance(cell, str):
        return InputError('column "request" must hold JSON text')
    try:
        return {**cells, "request": strict_json.loads(cell)}
    except InputError as exc:
        return InputError(f'column "request": {exc}')


def _prompt(value: object) -> str:
    match value:
        case str(prompt) | [str(prompt)]:
            pass
        case _:
            raise InputError(
                "routing needs one text: send one prompt per request, and not as tokens",
                param="prompt",
            )
    if not prompt.strip():
        raise InputError("the prompt is empty", param="prompt")
    return prompt


def _message(value: object, field: str) -> RequestTurn:
    turn = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    role = turn.get("role")
    if not isinstance(role, str):
        raise InputError(f'each of "{field}" must be an object with a "role"', param=field)
    return RequestTurn(role, _content(turn, field))


def _item(value: object, field: str) -> RequestTurn:
    """An item of the responses API as a turn of chat."""
    if not isinstance(value, dict):
        raise InputError(f'each of "{field}" must be an object', param=field)
    item = cast("dict[str, Any]", value)
    if item.get("role") is None:  # a call, its result, reasoning
        kind = item.get("type")
        is_result = isinstance(kind, str) and kind.endswith("_output")
        return RequestTurn("tool" if is_result else "assistant")
    turn = _message(item, field)
    if turn.parts:
        parts = [{**part, "type": _part_kind(part.get("type"))} for part in turn.parts]
        return RequestTurn(turn.role, parts)
    return turn


def _part_kind(kind: object) -> str:
    return _PARTS.get(kind, "other") if isinstance(kind, str) else "other"


def _content(turn: Mapping[str, Any], field: str) -> str | list[dict[str, Any]] | None:
    content = turn.get("content")
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        if all(isinstance(part, dict) for part in parts):
            return parts
    raise InputError(f'the "content" of "{field}" must be a text or a list of parts', param=field)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return plain_form(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[object]", value)]
    return value
