"""Token accounting: the candidate's own counts, else an estimate.

Without a tokenizer the estimate is low rather than high. Only the quota of a key uses it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from app.errors import UpstreamError
from app.upstream.reply import Reply
from app.wire import parsing
from app.wire.event_template import Piece, TextEvent
from app.wire.format import ApiFormat

CHARS_PER_TOKEN: Final = 4
_READ: Final = ("messages", "prompt", "input", "instructions", "tools", "functions")


def prompt_tokens(fields: Mapping[str, Any]) -> int:
    """Estimated tokens of the prompt in these fields."""
    chars = sum(parsing.text_length(fields.get(name)) for name in _READ)
    return math.ceil(chars / CHARS_PER_TOKEN)


def answer_tokens(fields: Mapping[str, Any], reply: Reply) -> int:
    """Tokens of a call with its answer: the candidate's count, else an estimate."""
    counted = reply.usage.get("total_tokens")
    if counted is not None:
        return counted
    chars = sum(
        parsing.text_length(choice.text) + parsing.text_length(list(choice.tool_calls))
        for choice in reply.choices
    )
    return prompt_tokens(fields) + math.ceil(chars / CHARS_PER_TOKEN)


class TokenMeter:
    """Counts the tokens of a stream while it passes."""

    def __init__(self, api_format: ApiFormat, fields: Mapping[str, Any]) -> None:
        self._api_format = api_format
        self._fields = fields
        self._began = False
        self._is_waived = False
        self._counted: int | None = None
        self._events = 0
        self._chars = 0

    def count(self, piece: Piece) -> None:
        """Count one piece."""
        self._began = True
        if isinstance(piece, TextEvent):  # the first of its template reported the usage
            chars = piece.template.other_chars + len(piece.text)
            self._events += chars > 0
            self._chars += chars
            return
        self._counted = self._api_format.usage(piece).get("total_tokens", self._counted)
        chars = self._api_format.chars(piece)
        self._events += chars > 0
        self._chars += chars

    def waive(self) -> None:
        """Charge nothing here: the tokens are charged with the reply that the stream became."""
        self._is_waived = True

    @property
    def tokens(self) -> int:
        """The candidate's count, else the prompt and a token for each event or four characters."""
        if self._counted is not None:
            return self._counted
        written = max(self._events, math.ceil(self._chars / CHARS_PER_TOKEN))
        return prompt_tokens(self._fields) + written

    @contextlib.contextmanager
    def charging(self, spend: Callable[[int], None]) -> Generator[None]:
        """Charge the tokens when the stream ends, in whatever way.

        A call that failed before its first piece costs nothing; a cancelled call costs its prompt.
        """
        failed = False
        try:
            yield
        except UpstreamError:
            failed = True
            raise
        finally:
            if not self._is_waived and (self._began or not failed):
                spend(self.tokens)
