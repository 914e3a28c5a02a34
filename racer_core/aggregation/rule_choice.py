"""Choice of the rule by which answers are compared: with references for grades, in pairs for votes.

References choose: all numbers, `number`; letters, `choice`; objects, `json`; formulas, `math`;
short texts, `text`; of longer ones a judge has to say what is right. Answers then confirm the
choice, or contradict it: another rule finds clearly more of them right, or two answers that say
the same have different labels. Pure text functions and arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.aggregation.json_forms import json_document_form
from racer_core.aggregation.wording import SHIPPED, asked_words, wording, words
from racer_core.errors import InputError
from racer_core.types import BoolArray, FloatArray

LEAST_ALIKE: Final = 0.95  # share of the references that must be of a kind
SHORT_WORDS: Final = 10  # of a name or an expression that is looked for in an answer
# "Clearly more": by so much, and so many standard errors: a false alarm in two thousand.
CLEARLY_MORE: Final = 0.05
LEAST_Z: Final = 3.29
# Of two answers that say the same and are not both wrong, the share with different labels. People
# who judged 15,075 answers to 3,015 questions differ on 9 %, `text` on 8 to 14 %, `exact` on 98 %.
MOST_CONTRADICTED: Final = 0.3
LEAST_PAIRS: Final = 20  # below which nothing is said about them

_LETTER = re.compile(r"\(?[A-Ja-j]\)?[.:]?")
# "42", "$1,234.50", "-3 %", or a solution that ends in "#### 42".
_NUMBER = re.compile(
    r"(?:.*####)?\s*+[-+\u2212]?\s?[$€£¥]?(?:\d{1,3}(?:,\d{3})+|\d++)?(?:\.\d++)?\s?[%$€£¥]?",
    re.DOTALL,
)
_FORMULA = re.compile(r"\\[a-zA-Z]+|\$[^$]+\$|\d\s?/\s?\d|[\w)]\s?[\^=]\s?[\w({-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChoice:
    """What references say.

    Attributes:
        grade: The rule; None: a judge has to grade.
        kind: What most references are, in words.
        count: How many are of that kind.
        total: Of how many.
    """

    grade: Grade | None
    kind: str
    count: int
    total: int

    @property
    def rules(self) -> tuple[Grade, ...]:
        """The rules that could be meant by such references, and need no library."""
        return _RIVALS[self.grade]

    @property
    def reason(self) -> str:
        """The choice in words."""
        share = "all" if self.count == self.total else f"{self.count:,} of"
        return f"{share} {self.total:,} references are {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleShares:
    """What a rule finds right.

    Attributes:
        right: Labels of the answers, shape (n, K).
        by_chance: Labels of the same answers beside the reference of another question. An answer
            that shows its work has many numbers, and the reference may be among them.
    """

    right: BoolArray
    by_chance: BoolArray

    @property
    def found(self) -> FloatArray:
        """Of each question, the share of answers that are right but for chance. Shape (n,)."""
        return np.asarray(self.right.mean(axis=1) - self.by_chance.mean(axis=1), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradictions:
    """Pairs of answers to one question that say the same, at least one of them called right.

    Attributes:
        pairs: How many there are.
        count: Those of which the other one is called wrong.
        example: A question and its two candidates, the right one first; None without any.
    """

    pairs: int
    count: int
    example: tuple[int, int, int] | None

    @property
    def is_doubtful(self) -> bool:
        """Whether labels cannot be what they should."""
        return self.pairs >= LEAST_PAIRS and self.count > MOST_CONTRADICTED * self.pairs


def choose(references: Sequence[str]) -> RuleChoice:
    """The rule that such references ask for.

    Raises:
        InputError: There are none.
    """
    if not references:
        raise InputError("no question has a reference, by which a rule could be chosen")
    total = len(references)
    for rule, called, is_one in _KINDS:
        count = sum(map(is_one, references))
        if rule is Grade.NUMBER and count < total and all(map(_is_formula, references)):
            continue  # some are formulas
        if count >= LEAST_ALIKE * total:
            return RuleChoice(grade=rule, kind=called, count=count, total=total)
    count = sum(not _is_short(each) for each in references)
    return RuleChoice(grade=None, kind="longer texts", count=count, total=total)


def _is_letter(text: str) -> bool:
    return _LETTER.fullmatch(text.strip()) is not None


def _is_number(text: str) -> bool:
    return (
        _NUMBER.fullmatch(text.strip()) is not None and normalise(Equality.NUMBER, text) is not None
    )


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") and json_document_form(text) is not None


def _is_formula(text: str) -> bool:
    return _is_number(text) or (_FORMULA.search(text) is not None and _is_short(text))


def _is_short(text: str) -> bool:
    return all(0 < len(words(line)) <= SHORT_WORDS for line in text.splitlines() or [""])


_KINDS: Final[tuple[tuple[Grade, str, Callable[[str], bool]], ...]] = (
    (Grade.CHOICE, "letters of choices", _is_letter),
    (Grade.NUMBER, "numbers", _is_number),
    (Grade.JSON, "JSON", _is_json),
    (Grade.MATH, "formulas", _is_formula),
    (Grade.TEXT, "names or short texts", _is_short),
)
_RIVALS: Final[Mapping[Grade | None, tuple[Grade, ...]]] = {
    Grade.NUMBER: (Grade.NUMBER, Grade.TEXT, Grade.EXACT),
    Grade.CHOICE: (Grade.CHOICE, Grade.EXACT),
    Grade.JSON: (Grade.JSON, Grade.EXACT),
    Grade.MATH: (Grade.TEXT, Grade.EXACT),
    Grade.TEXT: (Grade.TEXT, Grade.EXACT),
    None: (),
}


def shares(
    answers: Sequence[Sequence[str | None]], references: Sequence[str], rule: Grade
) -> RuleShares:
    """What a rule finds right; a reference that it cannot read makes every answer wrong.

    Args:
        answers: Without their reasoning, shape (n, K).
        references: Of each question, shape (n,).
        rule: Not ``math``, which may not terminate.
    """
    # Of the next question with another reference: with letters many have the same.
    others = [_other(references, place) for place in range(len(references))]
    return RuleShares(
        right=_labels(answers, references, rule), by_chance=_labels(answers, others, rule)
    )


def is_readable(reference: str, rule: Grade) -> bool:
    """Whether an answer could be right by a rule."""
    try:
        check_reference(reference, rule)
    except InputError:
        return False
    return True


def extracted(answer: str, reference: str, rule: Grade) -> str | None:
    """What a rule reads in an answer; of `text` and `math`, the reference's words that are there.

    None where there is nothing to read.
    """
    if rule not in (Grade.TEXT, Grade.MATH):
        return normalise(Equality(rule.value), answer)
    there = set(words(answer))
    return " ".join(word for word in words(reference) if word in there) or None


def clearly_more(rival: RuleShares, rule: RuleShares) -> float | None:
    """By how much a rival finds more answers right, if that is clear; None: it is not.

    The mean difference of :attr:`RuleShares.found` over questions is at least ``CLEARLY_MORE`` and
    ``LEAST_Z`` standard errors, a paired test.
    """
    more = rival.found - rule.found
    if len(more) < LEAST_PAIRS:
        return None
    mean, se = float(more.mean()), float(more.std(ddof=1)) / math.sqrt(len(more))
    return mean if mean >= CLEARLY_MORE and mean >= LEAST_Z * se else None


def contradictions(
    queries: Sequence[str],
    answers: Sequence[Sequence[str | None]],
    labels: BoolArray,
    equality: Equality,
) -> Contradictions:
    """Compare labels with what the answers themselves say.

    Args:
        queries: The questions, shape (n,).
        answers: Without their reasoning, shape (n, K).
        labels: Which are called right, shape (n, K).
        equality: Of forms, such as ``number``; any other compares by wording.
    """
    pairs = count = 0
    example = None
    for row, (query, given) in enumerate(zip(queries, answers, strict=True)):
        for one, other in _same_pairs(query, given, equality):
            right, also = bool(labels[row, one]), bool(labels[row, other])
            if right or also:
                pairs += 1
                if right is not also:
                    count += 1
                    example = example or ((row, one, other) if right else (row, other, one))
    return Contradictions(pairs=pairs, count=count, example=example)


def _same_pairs(
    query: str, answers: Sequence[str | None], equality: Equality
) -> Iterator[tuple[int, int]]:
    """The candidates of each two answers that say the same."""
    if equality in _BY_FORM:
        forms = [None if each is None else normalise(equality, each) for each in answers]
        for one, other in combinations(range(len(forms)), 2):
            if forms[one] is not None and forms[one] == forms[other]:
                yield one, other
        return
    asked = asked_words(query)
    read = [None if each is None else wording(each, asked) for each in answers]
    for one, other in combinations(range(len(read)), 2):
        first, second = read[one], read[other]
        if first is not None and second is not None and SHIPPED.equals(first, second):
            yield one, other


_BY_FORM: Final = (Equality.NUMBER, Equality.CHOICE, Equality.JSON)


def _other(references: Sequence[str], place: int) -> str:
    following = (references[(place + step) % len(references)] for step in range(1, len(references)))
    own = references[place]
    return next((each for each in islice(following, _TRIES) if each != own), own)


_TRIES: Final = 20


def _labels(
    answers: Sequence[Sequence[str | None]], references: Sequence[str], rule: Grade
) -> BoolArray:
    return np.array(
        [
            [_is_right(answer, reference, rule) for answer in given]
            for given, reference in zip(answers, references, strict=True)
        ],
        dtype=bool,
    ).reshape(len(references), -1)


def _is_right(answer: str | None, reference: str, rule: Grade) -> bool:
    try:
        return grade(answer, reference, rule)
    except InputError:
        return False
