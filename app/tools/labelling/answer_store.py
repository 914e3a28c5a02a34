"""Answers of unfinished questions, and the interface of the store that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from app.tools.labelling.confidences import AnswerConfidences
from racer_core.records.questions import Question
from racer_core.types import CallRecord

_TOOL_CALLS: Final = "\0tool_calls\0"  # begins the key of a verdict on tool calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A candidate's answer, as rows record it."""

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


class AnswerStore(Protocol):
    """Answers, verdicts and confidences of unfinished questions."""

    def answers(self, question: Question) -> Mapping[str, Answer]:
        """The candidates' answers so far."""
        ...

    def verdict(self, question: Question, answer: str) -> bool | None:
        """The judge's verdict on the answer of this ``verdict_key``; None if there is none yet."""
        ...

    def add_answer(self, question: Question, candidate: str, answer: Answer) -> None:
        """Store a candidate's answer."""
        ...

    def add_verdict(self, question: Question, answer: str, correct: bool) -> None:
        """Store a judge's verdict."""
        ...

    def confidences(
        self, question: Question, evaluator: str, answer: str
    ) -> AnswerConfidences | None:
        """An evaluator's confidences in an answer; None if it has not rated it yet."""
        ...

    def add_confidences(
        self, question: Question, evaluator: str, answer: str, values: AnswerConfidences
    ) -> None:
        """Store an evaluator's confidences in an answer."""
        ...
