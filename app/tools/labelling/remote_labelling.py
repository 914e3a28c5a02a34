"""Remote labelling: what is sent to another process for a question, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.tools.labelling.confidences import AnswerConfidences
from app.tools.labelling.files import Answer
from app.tools.labelling.labeller import CallCounts
from racer_core.records.questions import Question


@dataclass(slots=True)
class PartialLabels:
    """What is stored of one unfinished question: an ``AnswerStore`` in memory."""

    replies: dict[str, Answer] = field(default_factory=dict[str, Answer])
    verdicts: dict[str, bool] = field(default_factory=dict[str, bool])
    # Evaluator -> answer -> its confidences.
    ratings: dict[str, dict[str, dict[str, float | None]]] = field(
        default_factory=dict[str, "dict[str, dict[str, float | None]]"]
    )

    def answers(self, question: Question) -> Mapping[str, Answer]:
        """The candidates' answers so far."""
        return self.replies

    def verdict(self, question: Question, answer: str) -> bool | None:
        """The judge's verdict on an answer; None if there is none yet."""
        return self.verdicts.get(answer)

    def add_answer(self, question: Question, candidate: str, answer: Answer) -> None:
        """Store a candidate's answer."""
        self.replies[candidate] = answer

    def add_verdict(self, question: Question, answer: str, correct: bool) -> None:
        """Store a judge's verdict."""
        self.verdicts[answer] = correct

    def confidences(
        self, question: Question, evaluator: str, answer: str
    ) -> AnswerConfidences | None:
        """An evaluator's confidences in an answer; None if it has not rated it yet."""
        return self.ratings.get(evaluator, {}).get(answer)

    def add_confidences(
        self, question: Question, evaluator: str, answer: str, values: AnswerConfidences
    ) -> None:
        """Store an evaluator's confidences in an answer."""
        self.ratings.setdefault(evaluator, {}).setdefault(answer, {}).update(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A question with what is stored of it so far."""

    question: Question
    notes: PartialLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuestion:
    """A question with all its answers, and its label."""

    question: Question
    notes: PartialLabels
    correct: tuple[str, ...] | None  # None: an answer or a verdict is missing
    tally: CallCounts  # of the worker since its last result


# Labels questions in other processes under these conditions; yields each when it is done.
RemoteLabeller = Callable[
    [Sequence[PendingQuestion], Mapping[str, Any]], Iterator[LabelledQuestion]
]
