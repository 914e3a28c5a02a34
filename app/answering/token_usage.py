"""Token accounting: the candidate's own counts, else an estimate.

Without a tokenizer the estimate is low rather than high. Quotas and costs use it.
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

_READ: Final = ("messages", "prompt", "input", "instructions", "tools", "functions")


def prompt_tokens(fields: Mapping[str, Any]) -> int:
    """Estimated tokens of the prompt in these fields."""
    chars = sum(parsing.text_length(fields.get(name)) for name in _READ)
    return math.ceil(chars / parsing.CHARS_PER_TOKEN)


def answer_tokens(fields: Mapping[str, Any], reply: Reply) -> int:
    """Tokens of a call with its answer: the candidate's count, else an estimate."""
    counted = reply.usage.get("total_tokens")
    if counted is not None:
        return counted
    return prompt_tokens(fields) + written_tokens(reply)


def written_tokens(reply: Reply) -> int:
    """Estimated tokens of an answer."""
    chars = sum(
        parsing.text_length(choice.text) + parsing.text_length(list(choice.tool_calls))
        for choice in reply.choices
    )
    return math.ceil(chars / parsing.CHARS_PER_TOKEN)


class TokenMeter:
    """Counts the tokens of a stream while it passes.

    Args:
        api_format: Reads its pieces.
        fields: Those of the request.
        ended: Called when a stream that had begun ends, with the meter and whether it is whole.

    Attributes:
        usage: The candidate's counts so far, by their chat names.
        reported: The piece with the last of them; empty before.
    """

    def __init__(
        self,
        api_format: ApiFormat,
        fields: Mapping[str, Any],
        ended: Callable[[TokenMeter, bool], None] | None = None,
    ) -> None:
        self._api_format = api_format
        self._fields = fields
        self._ended = ended
        self._began = False
        self._is_waived = False
        self.usage: Mapping[str, int] = {}
        self.reported: Mapping[str, Any] = {}
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
        if usage := self._api_format.usage(piece):
            self.usage, self.reported = {**self.usage, **usage}, piece
        chars = self._api_format.chars(piece)
        self._events += chars > 0
        self._chars += chars

    def waive(self) -> None:
        """Charge nothing here: the tokens are charged with the reply that the stream became."""
        self._is_waived = True

    @property
    def tokens(self) -> int:
        """The candidate's count, else an estimate."""
        counted = self.usage.get("total_tokens")
        return prompt_tokens(self._fields) + self.written if counted is None else counted

    @property
    def written(self) -> int:
        """Estimated tokens of the answer so far: one for each event, or for four characters."""
        return max(self._events, math.ceil(self._chars / parsing.CHARS_PER_TOKEN))

    @contextlib.contextmanager
    def charging(self, spend: Callable[[int], None]) -> Generator[None]:
        """Charge the tokens when the stream ends, in whatever way.

        A call that failed before its first piece costs nothing; a cancelled call costs its prompt.
        """
        failed, is_whole = False, False
        try:
            yield
            is_whole = True
        except UpstreamError:
            failed = True
            raise
        finally:
            if not self._is_waived and (self._began or not failed):
                spend(self.tokens)
            if self._ended is not None and self._began:
                self._ended(self, is_whole)
