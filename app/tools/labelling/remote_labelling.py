"""A question that is labelled in another process: what goes there, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.tools.labelling.labeller import CallCounts
from racer_core.records.questions import Question


@dataclass(slots=True)
class PartialLabels:
    """What is known of one unfinished question, in memory: its ``AnswerStore``."""

    said: dict[str, str | None] = field(default_factory=dict[str, str | None])
    verdicts: dict[str, bool] = field(default_factory=dict[str, bool])

    def answers(self, question: Question) -> Mapping[str, str | None]:
        """What candidates have answered."""
        return self.said

    def verdict(self, question: Question, answer: str) -> bool | None:
        """What the judge has said about an answer; None when it has not."""
        return self.verdicts.get(answer)

    def add_answer(self, question: Question, candidate: str, answer: str | None) -> None:
        """Keep a candidate's answer."""
        self.said[candidate] = answer

    def add_verdict(self, question: Question, answer: str, correct: bool) -> None:
        """Keep what a judge has said."""
        self.verdicts[answer] = correct


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A question, and what is known of it."""

    question: Question
    notes: PartialLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuestion:
    """What a question came to."""

    question: Question
    notes: PartialLabels
    correct: tuple[str, ...] | None  # None: an answer or a verdict is missing
    tally: CallCounts  # of the worker since it last said so


# Labels questions somewhere else, under these conditions, and gives each as soon as it is done.
RemoteLabeller = Callable[
    [Sequence[PendingQuestion], Mapping[str, Any]], Iterator[LabelledQuestion]
]
