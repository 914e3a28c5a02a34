"""Conversations: parsing of ``messages``, and the text that a router reads of several turns.

Later turns are another population than single questions and have a separate calibration.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, cast

from racer_core.errors import InputError
from racer_core.types import Turn, TurnSizes

# The last user turn; all turns of user and assistant; the same two after system prompts.
RoutedText = Literal["last_user", "conversation", "with_system", "conversation_with_system"]
# A text -> the same without system prompts, as the texts of training are.
WITHOUT_SYSTEM: Final[Mapping[RoutedText, RoutedText]] = {
    "last_user": "last_user",
    "conversation": "conversation",
    "with_system": "last_user",
    "conversation_with_system": "conversation",
}
TextOfGroup = Callable[[str | None], RoutedText]  # the text of a group's requests; None: no group


def parse_messages(messages: object) -> tuple[tuple[Turn, ...], str]:
    """The turns before the last message, and its text.

    Raises:
        InputError: Not turns of plain text by user and assistant that end with the user's.
    """
    if not isinstance(messages, list) or not messages:
        raise InputError('"messages" must be a list of turns')
    turns = [_turn(message) for message in cast("list[object]", messages)]
    *earlier, last = turns
    if last.role != "user":
        raise InputError('"messages" must end with a user message: it is what was answered')
    return tuple(earlier), last.text


def turn_sizes(earlier: Iterable[Turn], query: str) -> TurnSizes:
    """The lengths of a turn, by the turns before it without system prompts."""
    turns = [*earlier]
    answers = [len(turn.text) for turn in turns if turn.role == "assistant"]
    return TurnSizes(
        earlier=sum(len(turn.text) for turn in turns),
        query=len(query),
        answer=sum(answers) / len(answers) if answers else 0.0,
    )


def joined(texts: Iterable[str]) -> str:
    """Turns as one text, without blank ones."""
    return "\n\n".join(text for text in texts if text.strip())


def identity(query: str, earlier: Iterable[Turn]) -> str:
    """A text that identifies a query after these turns; empty for a row of scores."""
    turns = [(turn.role, turn.text) for turn in earlier]
    return "\0" + json.dumps([*turns, query]) if turns else query


def plain_form(text: str) -> str:
    """The text without differences in case, space and Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def fingerprint(salt: str, query: str) -> bytes:
    """Keyed hash of a query, the same for texts that differ in case, space or Unicode form."""
    return hashlib.blake2b(plain_form(query).encode(), key=salt.encode(), digest_size=16).digest()


def _turn(message: object) -> Turn:
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    role, text = fields.get("role"), fields.get("content")
    beside = any(fields[name] for name in fields.keys() - {"role", "content"})
    if role not in ("user", "assistant") or not isinstance(text, str) or beside:
        raise InputError(
            'each of "messages" must be {"role": "user" or "assistant", "content": a text}'
        )
    _check(text)
    return Turn(cast("str", role), text)


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError("a message holds a lone surrogate, which is not text") from exc
