"""Labels of a bootstrap: the rule that gives them, what it finds, and reasons to doubt it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.settings import Settings
from app.tools.labelling.people import KIND as PEOPLE
from app.tools.labelling.summary import STRUCTURED, TOOLS, kinds_of
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.grading import Grade
from racer_core.aggregation.rule_choice import (
    CLEARLY_MORE,
    MOST_CONTRADICTED,
    RuleChoice,
    RuleShares,
    choose,
    clearly_more,
    contradictions,
    extracted,
    is_readable,
    shares,
)
from racer_core.errors import InputError
from racer_core.records.questions import Question, read_questions, with_references
from racer_core.types import BoolArray, LabelledRow

JUDGE: Final = "judge"
MOST_ROWS: Final = 2_000  # that are looked at, spread over the file
SAMPLES: Final = 3  # of right answers, and of wrong ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How answers are graded.

    Attributes:
        kind: A grade, or `judge`.
        choice: What the references ask for; None without any.
        is_given: The command names the grade.
    """

    kind: str
    choice: RuleChoice | None
    is_given: bool

    @property
    def reason(self) -> str:
        """Why, in words."""
        if self.is_given or self.choice is None:
            return "as the command says"
        return self.choice.reason

    def equality(self, configured: Equality) -> Equality:
        """The equality by which such answers vote.

        Free texts by their wording, as `auto` does, or by their meaning where that was chosen.
        """
        kind = self.kind
        if kind == JUDGE and self.choice is not None and self.choice.grade is not None:
            kind = self.choice.grade.value
        if kind in (*_VOTES, Grade.EXACT):
            return Equality(kind)
        return Equality.TEXT if configured in _FORMS else configured


# Grades by which answers also vote. A reference that is found in an answer is no rule for two
# answers: those are compared by their wording.
_VOTES: Final[tuple[Grade | None, ...]] = (Grade.CHOICE, Grade.NUMBER, Grade.JSON, Grade.MATH)
_FORMS: Final = (Equality.CHOICE, Equality.NUMBER, Equality.JSON, Equality.MATH, Equality.EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An answer beside its reference."""

    question: str
    reference: str
    candidate: str
    answer: str
    read: str  # what was compared; empty where a judge or people read all
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReview:
    """What is known of the labels.

    Attributes:
        rows: How many of them were looked at.
        shares: By rule, the share of right answers of each candidate; the rule in force first.
        samples: Answers with their verdicts.
        doubt: Why the labels are not used, with the cure, in one line; None: they are used.
        is_hopeless: No answer is right. A router learns nothing from such labels, accepted or not.
    """

    rows: int
    shares: Mapping[str, Mapping[str, float]]
    samples: Sequence[Sample]
    doubt: str | None
    is_hopeless: bool = False


def grading_of(
    questions: Sequence[Question], given: str | None, judge: str | None, calls: int
) -> Grading:
    """The rule by which answers to these questions are graded.

    Args:
        questions: With their references.
        given: The grade that the command names; None: the references choose.
        judge: The judge that it names.
        calls: The most answers that a judge would read.

    Raises:
        InputError: Only a judge could grade, and none is named.
    """
    texts = [
        each.reference
        for each in questions
        if each.reference is not None and _is_plain(each.request)
    ]
    choice = choose(texts) if texts else None
    if given is not None and choice is not None:
        _check_given(given, texts, choice)
    if given is not None or judge is not None:
        return Grading(kind=given or JUDGE, choice=choice, is_given=True)
    if choice is None:  # tool calls and structured output are compared whatever the rule is
        return Grading(kind=Grade.EXACT.value, choice=None, is_given=False)
    if choice.grade is None:
        raise InputError(
            f"{choice.reason}, of which no rule can tell whether an answer comes to the same: give "
            f"--judge CANDIDATE (or the URL of another model), which is called at most {calls:,} "
            "times; --judge-calls and --judge-cost cap it. Or shorten the references to the names "
            "or numbers that a right answer has"
        )
    return Grading(kind=choice.grade.value, choice=choice, is_given=False)


def grade_of_file(queries: Path, references: Path | None, configured: Settings) -> str:
    """The grade that the references of a file of questions ask for.

    Raises:
        InputError: There are none, or only a judge could grade.
    """
    asked = read_questions(queries, configured.text_of)
    if references is not None:
        given = read_questions(references, configured.text_of)
        asked = with_references(asked, given, references.name)
    if all(each.reference is None for each in asked):
        raise InputError(
            f"{queries.name} has no references: give --judge CANDIDATE, or --page to grade by hand"
        )
    return grading_of(asked, None, None, len(asked) * len(configured.pool)).kind


def _check_given(given: str, references: Sequence[str], choice: RuleChoice) -> None:
    """Refuse a grade that most references cannot have, before a model is called."""
    if given in (JUDGE, PEOPLE, Grade.MATH):
        return
    unread = [each for each in references if not is_readable(each, Grade(given))]
    if len(unread) > len(references) / 2:
        cure = "" if choice.grade is None else f" or give --grade {choice.grade.value}"
        raise InputError(
            f"--grade {given} cannot read {len(unread):,} of {len(references):,} references, such "
            f"as {_short(unread[0])!r} ({choice.reason}): leave --grade out{cure}"
        )


def review(rows: Sequence[LabelledRow], pool: Sequence[str], grading: Grading) -> LabelReview:
    """Look at labelled answers.

    Args:
        rows: The labelled rows.
        pool: The candidates.
        grading: How they were graded.
    """
    seen = [each for each in rows if each.answers and _is_plain(each.request)]
    seen = seen[:: max(1, -(-len(seen) // MOST_ROWS))]
    labels = np.array([[name in row.correct for name in pool] for row in seen], dtype=bool)
    labels = labels.reshape(len(seen), len(pool))
    answers = [[row.answers.get(name) for name in pool] for row in seen]
    references = [row.reference or "" for row in seen]
    rules = () if grading.choice is None else grading.choice.rules
    found = {rule: shares(answers, references, rule) for rule in rules}
    named = {rule.value: each for rule, each in found.items()}
    own = named.get(grading.kind) or RuleShares(right=labels, by_chance=np.zeros_like(labels))
    rivals = {rule: each for rule, each in found.items() if rule.value != grading.kind}
    by_rule = {grading.kind: labels} | {rule.value: each.right for rule, each in rivals.items()}
    asked = None if grading.choice is None else grading.choice.grade
    equality = Equality.TEXT
    if asked is not None and asked in _VOTES:
        equality = Equality(asked.value)
    place = _Place(grading, seen, pool, labels)
    is_hopeless = bool(seen) and not labels.any()
    reasons = (
        _none_right(place, rivals) if is_hopeless else None,
        None if grading.kind in (JUDGE, PEOPLE) else _another_rule(place, own, rivals),
        _contradicted(place, answers, equality),
    )
    return LabelReview(
        rows=len(seen),
        shares={
            rule: dict(zip(pool, right.mean(axis=0).tolist(), strict=True))
            for rule, right in by_rule.items()
            if len(seen)
        },
        samples=list(_samples(place)),
        doubt=next(filter(None, reasons), None),
        is_hopeless=is_hopeless,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    grading: Grading
    rows: Sequence[LabelledRow]
    pool: Sequence[str]
    labels: BoolArray


def _none_right(place: _Place, rivals: Mapping[Grade, RuleShares]) -> str:
    text = f"by `{place.grading.kind}` no answer of any candidate is right"
    best = max(rivals, key=lambda each: float(rivals[each].found.mean()), default=None)
    if best is not None and (share := float(rivals[best].right.mean())) > 0.0:
        return f"{text}, by `{best}` {share:.0%} are: {_regrade(best)}"
    return (
        f"{text}: compare the answers above with their references, mend those in the file and run "
        "the same command again (stored answers are graded anew), or give --judge CANDIDATE"
    )


def _another_rule(place: _Place, own: RuleShares, rivals: Mapping[Grade, RuleShares]) -> str | None:
    more = {rule: clearly_more(each, own) for rule, each in rivals.items()}
    clear = {rule: each for rule, each in more.items() if each is not None}
    if not clear:
        return None
    best = max(clear, key=clear.__getitem__)
    return (
        f"by `{best}` {clear[best]:.0%} more of the answers are right than by "
        f"`{place.grading.kind}` (of {len(place.rows):,} questions, beyond what is found by "
        f"chance; {CLEARLY_MORE:.0%} and 3.3 standard errors are the limit): {_regrade(best)}; "
        f"{_ACCEPT}"
    )


def _contradicted(
    place: _Place, answers: Sequence[Sequence[str | None]], equality: Equality
) -> str | None:
    queries = [row.query for row in place.rows]
    found = contradictions(queries, answers, place.labels, equality)
    if not found.is_doubtful or found.example is None:
        return None
    row, right, wrong = found.example
    asked = place.grading.choice and place.grading.choice.grade
    cure = "give --judge CANDIDATE, which reads whole answers"
    if place.grading.kind == JUDGE:
        cure = "give another --judge"
    elif asked is not None and asked.value != place.grading.kind:
        cure = _regrade(asked)
    return (
        f"of {found.pairs:,} pairs of answers that say the same, {found.count:,} have one that is "
        f"called right and one that is called wrong ({MOST_CONTRADICTED:.0%} is the limit), such "
        f"as {_short(answers[row][right])!r} and {_short(answers[row][wrong])!r}: {cure}; {_ACCEPT}"
    )


_ACCEPT: Final = "if the labels above are right nevertheless, add --accept-labels"


def _regrade(rule: Grade) -> str:
    return (
        f"run the same command with --grade {rule.value}, which grades the stored answers anew and "
        "calls no model"
    )


def _samples(place: _Place) -> Iterator[Sample]:
    """Answers that are called right, and answers that are called wrong, of all candidates."""
    for is_right in (True, False):
        count = 0
        for number, row in enumerate(place.rows):
            column = (number + count) % len(place.pool)
            name = place.pool[column]
            text = row.answers.get(name)
            if text is None or bool(place.labels[number, column]) is not is_right:
                continue
            rule = _grade(place.grading.kind)
            reference = row.reference or ""
            read = "" if rule is None else extracted(text, reference, rule) or "nothing"
            yield Sample(
                question=_short(row.query),
                reference=_short(reference),
                candidate=name,
                answer=_short(text),
                read=_short(read),
                is_right=is_right,
            )
            count += 1
            if count == SAMPLES:
                break


def _grade(kind: str) -> Grade | None:
    return None if kind in (JUDGE, PEOPLE) else Grade(kind)


def _is_plain(request: Mapping[str, Any] | None) -> bool:
    """Whether answers are graded by the rule, and not as tool calls or structured output."""
    return not {TOOLS, STRUCTURED} & set(kinds_of(request, is_later=False))


_SHOWN: Final = 120  # characters


def _short(text: str | None) -> str:
    """The end of a text, where results stand, in one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= _SHOWN else f"… {line[-_SHOWN:]}"
