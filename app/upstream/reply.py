"""A candidate's answer, parsed: choices, token usage and timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.wire.format import ApiFormat, Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of one candidate, parsed once.

    Attributes:
        candidate: The candidate's name.
        body: The document as it was sent; empty where it passed through as a stream.
        choices: Its choices; none where it passed through.
        usage: Tokens as the candidate counted them; empty where it did not.
        seconds: Duration of the call, with retries.
        attempts: Number of calls made for it.
    """

    candidate: str
    body: Mapping[str, Any]
    choices: Sequence[Choice]
    usage: Mapping[str, int]
    seconds: float
    attempts: int = 1

    @classmethod
    def of(
        cls,
        candidate: str,
        body: Mapping[str, Any],
        api_format: ApiFormat,
        *,
        seconds: float = 0.0,
        attempts: int = 1,
    ) -> Self:
        """Parse a whole answer."""
        return cls(
            candidate=candidate,
            body=body,
            choices=api_format.choices(body),
            usage=api_format.usage(body),
            seconds=seconds,
            attempts=attempts,
        )

    @property
    def text(self) -> str:
        """The first choice's text; empty where it has none (a tool call, for example)."""
        return self.choices[0].text or "" if self.choices else ""

    def first_choice(self) -> Any:
        """The first choice as a text or tool calls, for requests that want every answer."""
        first = self.choices[0] if self.choices else Choice()
        return [dict(call) for call in first.tool_calls] or first.text
