"""Tokens of calls: as the candidate counted them, else an estimate.

No tokenizer is known here. The estimates are low rather than high, and only for a key's quota.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from app.errors import UpstreamError
from app.upstream.reply import Reply
from app.wire import parsing
from app.wire.format import ApiFormat

CHARS_PER_TOKEN: Final = 4
_READ: Final = ("messages", "prompt", "input", "instructions", "tools", "functions")


def prompt_tokens(fields: Mapping[str, Any]) -> int:
    """About how many tokens a candidate reads that is sent these fields."""
    chars = sum(parsing.text_length(fields.get(name)) for name in _READ)
    return math.ceil(chars / CHARS_PER_TOKEN)


def answer_tokens(fields: Mapping[str, Any], reply: Reply) -> int:
    """Tokens of a whole answer: as the candidate counted them, else as they would be estimated."""
    counted = reply.usage.get("total_tokens")
    if counted is not None:
        return counted
    chars = sum(
        parsing.text_length(said.text) + parsing.text_length(list(said.tool_calls))
        for said in reply.said
    )
    return prompt_tokens(fields) + math.ceil(chars / CHARS_PER_TOKEN)


class TokenMeter:
    """Counts one stream while it passes."""

    def __init__(self, api_format: ApiFormat, fields: Mapping[str, Any]) -> None:
        self._api_format = api_format
        self._fields = fields
        self._began = False
        self._counted: int | None = None
        self._events = 0
        self._chars = 0

    def saw(self, piece: Mapping[str, Any]) -> None:
        """Take one piece."""
        self._began = True
        self._counted = self._api_format.usage(piece).get("total_tokens", self._counted)
        chars = self._api_format.chars(piece)
        self._events += chars > 0
        self._chars += chars

    @property
    def tokens(self) -> int:
        """As the candidate counted; else the prompt, and a token an event or every four letters."""
        if self._counted is not None:
            return self._counted
        written = max(self._events, math.ceil(self._chars / CHARS_PER_TOKEN))
        return prompt_tokens(self._fields) + written

    @contextlib.contextmanager
    def charging(self, spend: Callable[[int], None]) -> Generator[None]:
        """Tell the tokens once the stream is over, however it ended.

        A call that failed before its first piece costs nothing; one that nobody waited for does.
        """
        failed = False
        try:
            yield
        except UpstreamError:
            failed = True
            raise
        finally:
            if self._began or not failed:
                spend(self.tokens)
