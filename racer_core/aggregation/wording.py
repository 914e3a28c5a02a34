"""Equality of sentences without a model: two answers are equal if they share their content words.

"Paris" and "The capital is **Paris**." answer "What is the capital of France?" equally: words of
the question and stop words say nothing, and what is left is the same. Content words are cut to
their first letters, so that inflections are equal, and writing without spaces is cut into pairs of
characters. Where both answers have numbers that the question lacks, and share none, they differ,
whatever words they share; so they do where one says yes and the other no. Two JSON documents, alone
or in a code block, are equal as documents: one field decides. Pure, linear in the texts, symmetric,
and not transitive.

An answer between options of the question ("Tom or Anna?") says nothing in other words: there the
whole answers have to be equal, but for stop words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from racer_core.aggregation.answers import Equality, normalise, stream_safe
from racer_core.aggregation.json_forms import json_document_form
from racer_core.aggregation.stop_words import STOP_WORDS
from racer_core.errors import InputError

MAX_CHARS: Final = 2**15  # of a text; of a longer one its beginning and its end are read
STEM: Final = 7  # letters by which words are compared
LEAST_OVERLAP: Final = 0.6  # share of the shorter answer's words
_DECIMALS: Final = 9  # sums that differ by less are equal

# Scripts without spaces between words, or that glue particles to them: Thai to Khmer, Hangul, Han.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u0483-\u0487\u0900-\u0963\u0966-\u0dff"  # within words; no `\w`
# Only single characters repeat possessively: CPython before 3.11.5 errs in possessive groups.
_TOKEN = re.compile(
    r"((?:(?<![\w.)])[-\u2212])?\d++(?:[.,]\d++)*)"
    rf"|([{_UNSPACED}]++)"
    rf"|((?:[^\W_{_UNSPACED}]|[{_MARKS}])+"
    rf"(?:['\u2019](?:[^\W_{_UNSPACED}]|[{_MARKS}])+)*)"
)
_BLOCK = re.compile(r"```(?:json)?\s(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_GROUPED = re.compile(r"-?\d{1,3}+(?:,\d{3})+(?:\.\d+)?")
_ELIDED = frozenset(["c", "d", "j", "l", "m", "n", "s", "t", "qu"])  # French: l'eau
_CONTRACTED = frozenset(["d", "ll", "m", "re", "s", "t", "ve"])  # English: it's
_ACCENTS: Final = frozenset((*range(10, 37), *range(200, 256)))  # combining classes; see `_folded`
# Within the first words of an answer. "no" and "si" are words of several languages.
_YES = "yes yeah yep true ja oui si sim да верно wahr vrai vero"
_NO = "no nope false nein non nao nee нет неверно falsch faux falso"
_POLARITY: Final = dict.fromkeys(_YES.split(), 1) | dict.fromkeys(_NO.split(), -1)
_FIRST: Final = 3


@dataclass(frozen=True, slots=True)
class Wording:
    """What an answer is compared by.

    Attributes:
        form: Its exact normal form; answers of the same form are equal.
        words: Stems of its content words, numbers included.
        numbers: Its numbers that the question lacks.
        polarity: 1 for yes, -1 for no, 0 for neither.
        document: The canonical form of an answer that is a JSON object or list; None: it is text.
    """

    form: str
    words: frozenset[str]
    numbers: frozenset[str]
    polarity: int = 0
    document: str | None = None

    def conflicts(self, other: Wording) -> bool:
        """Whether both have numbers and share none, or one says yes and the other no."""
        if self.polarity * other.polarity < 0:
            return True
        return bool(self.numbers and other.numbers) and self.numbers.isdisjoint(other.numbers)

    def overlap(self, other: Wording) -> float:
        """The shared words as a share of the shorter answer's; 0 where one has none."""
        shorter = min(len(self.words), len(other.words))
        return len(self.words & other.words) / shorter if shorter else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """When two wordings are equal: where a sum of their features is at least 0.

    Attributes:
        intercept: Added to the sum.
        overlap: Weight of the overlap.
        conflict: Weight of a conflict.
        shorter: Weight of log(1 + content words) of the shorter answer.
        longer: The same of the longer one.
    """

    intercept: float = -LEAST_OVERLAP
    overlap: float = 1.0
    conflict: float = -1.0
    shorter: float = 0.0
    longer: float = 0.0

    def __post_init__(self) -> None:
        """Refuse weights that are not finite."""
        if not all(map(math.isfinite, self.weights)):
            raise InputError("the weights of a text rule must be finite")

    @classmethod
    def of(cls, weights: Sequence[float]) -> Self:
        """The rule of the weights of :func:`features`, in their order.

        Raises:
            InputError: Another number of weights, or not finite ones.
        """
        names = ("intercept", "overlap", "conflict", "shorter", "longer")
        if len(weights) != len(names):
            raise InputError(f"a text rule has {len(names)} weights, not {len(weights)}")
        return cls(**dict(zip(names, weights, strict=True)))

    @property
    def weights(self) -> tuple[float, ...]:
        """Intercept and weights, in the order of :func:`features`."""
        return self.intercept, self.overlap, self.conflict, self.shorter, self.longer

    def evidence(self, one: Wording, other: Wording) -> float:
        """The sum: log odds that the answers are equal, where the rule is fitted. Symmetric."""
        found = zip(self.weights, features(one, other), strict=True)
        return round(math.fsum(weight * feature for weight, feature in found), _DECIMALS)

    def equals(self, one: Wording, other: Wording) -> bool:
        """Whether two answers are equal; without content words they are by their form alone."""
        if one.document is not None and other.document is not None:
            return one.document == other.document
        if one.form == other.form:
            return True
        return bool(one.words and other.words) and self.evidence(one, other) >= 0.0


SHIPPED: Final = TextRule()


def features(one: Wording, other: Wording) -> tuple[float, ...]:
    """What a rule weighs: 1, overlap, conflict, and the lengths. Symmetric."""
    shorter, longer = sorted((len(one.words), len(other.words)))
    return (
        1.0,
        one.overlap(other),
        float(one.conflicts(other)),
        math.log1p(shorter),
        math.log1p(longer),
    )


def are_equal(one: str, other: str, question: str, rule: TextRule = SHIPPED) -> bool:
    """Whether two answers to a question are the same; one that cannot be read equals none."""
    asked = asked_words(question)
    first, second = wording(one, asked), wording(other, asked)
    return first is not None and second is not None and rule.equals(first, second)


@lru_cache(maxsize=64)  # one question has the answers of all candidates
def asked_words(question: str) -> frozenset[str]:
    """The stems and numbers of a question, which say nothing in its answers."""
    return frozenset(map(_stem, words(question)))


def wording(answer: str, asked: frozenset[str]) -> Wording | None:
    """What an answer to a question is compared by; None where there is nothing to read.

    Args:
        answer: The text of the answer.
        asked: Of the question, by :func:`asked_words`.
    """
    form = normalise(Equality.EXACT, answer)
    if form is None:
        return None
    found = words(answer)
    telling = [word for word in found if word not in STOP_WORDS]
    content = {_stem(word) for word in telling} - asked or _phrase(telling or found)
    return Wording(
        form,
        frozenset(content),
        frozenset(word for word in content if _is_number(word)),
        _polarity(found[:_FIRST]),
        _document(answer),
    )


def _document(answer: str) -> str | None:
    """The canonical form of an answer that is a JSON object or list, or has one in a code block."""
    block = _BLOCK.search(answer)
    text = (answer if block is None else block[1]).strip()
    return json_document_form(text) if text[:1] in ("{", "[") else None


def _phrase(found: list[str]) -> set[str]:
    """What an answer says in words of the question alone: "12 - 6 = 6" its last number, or all."""
    numbers = [word for word in found if _is_number(word)]
    return {*numbers[-1:]} or {*filter(None, [" ".join(found)])}


def words(text: str) -> list[str]:
    """The words of a text in their order, folded: without case, accents, marks and markup.

    Numbers have one spelling, and writing without spaces is cut into pairs of characters.
    """
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]} {text[-MAX_CHARS // 2 :]}"
    found: list[str] = []
    for number, unspaced, word in _TOKEN.findall(_folded(text)):
        if number:
            found.append(_number(number))
        elif unspaced:
            found += [unspaced[i : i + 2] for i in range(max(1, len(unspaced) - 1))]
        elif "'" in word or "\u2019" in word:
            found += _parts(word.replace("\u2019", "'"))
        else:
            found.append(word)
    return found


def _parts(word: str) -> Iterator[str]:
    """A word without what an apostrophe joins to it; "n't" is a word."""
    if word.endswith("n't"):
        yield from (part for part in (word[:-3].replace("'", ""), "not") if part)
        return
    first, *rest = word.split("'")
    if rest and rest[-1] in _CONTRACTED:
        rest.pop()
    if rest and first in _ELIDED:
        first = ""
    yield "".join((first, *rest))


def _number(literal: str) -> str:
    """One spelling of a number: no thousands separators, outer zeros or plus."""
    literal = literal.replace("\u2212", "-")
    if _GROUPED.fullmatch(literal):
        literal = literal.replace(",", "")
    whole, *rest = re.split("[.,]", literal)
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if len(rest) == 1:
        rest = [part] if (part := rest[0].rstrip("0")) else []
    return sign + ".".join([digits.lstrip("0") or "0", *rest])


def _stem(word: str) -> str:
    return word if _is_number(word) else word[:STEM]


def _is_number(word: str) -> bool:
    return word[0].isdigit() or word[0] == "-"  # no other token begins so


def _polarity(first: list[str]) -> int:
    return next((_POLARITY[word] for word in first if word in _POLARITY), 0)


def _folded(text: str) -> str:
    """The text without case and accents.

    Vowel signs of Hebrew and Arabic go too, which most texts leave out. Marks that make another
    letter stay: the voicing of kana, the nukta and virama of India, tones of Thai.
    """
    if text.isascii():
        return text.casefold()
    letters = unicodedata.normalize("NFKD", stream_safe(text)).casefold()
    kept = (each for each in letters if unicodedata.combining(each) not in _ACCENTS)
    return unicodedata.normalize("NFC", "".join(kept))
