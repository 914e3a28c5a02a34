"""A candidate's answer to a question, as rows record it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from racer_core.types import CallRecord

_TOOL_CALLS: Final = "\0tool_calls\0"  # begins the key of a verdict on tool calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The text, and how the call went."""

    text: str | None  # without reasoning; tool calls as JSON; None: no answer that can be read
    call: CallRecord = field(default_factory=dict[str, Any])

    @property
    def is_tool_calls(self) -> bool:
        """Whether the text is tool calls."""
        return "tool_calls" in self.call

    @property
    def verdict_key(self) -> str:
        """The text and whether it is tool calls: verdicts on equal texts of both kinds differ."""
        return f"{_TOOL_CALLS if self.is_tool_calls else ''}{self.text or ''}"
