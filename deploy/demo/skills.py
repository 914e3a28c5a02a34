"""Six small verifiable skills, asked in English and German.

Pure: the only source of randomness is the ``random.Random`` that is passed in. This file knows the
right answer of a question and nothing about the candidates; which candidate is right is measured
by ``label_pool.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from templates import MONTHS, TEMPLATES, WEEKDAYS

LANGUAGES: Final = ("en", "de")

LEVEL_SHARES: Final = (0.45, 0.45, 0.10)
"""Shares of easy, medium and tail questions. No candidate is trained on the tail."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question with its right answer."""

    skill: str
    language: str
    query: str
    reference: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A question before it is put into words."""

    kind: str
    fields: dict[str, str]
    reference: str


def arithmetic(level: int, language: str, rng: random.Random) -> Problem:
    """Return a sum, a difference or a product of whole numbers."""
    kind = rng.choice(("add", "subtract", "multiply") if level != 1 else ("add", "subtract"))
    if kind == "multiply":
        low, high = (2, 9) if level == 0 else (12, 99)
    else:
        low, high = ((1, 20), (11, 99), (101, 4999))[level]
    a, b = rng.randint(low, high), rng.randint(low, high)
    if kind == "subtract":
        a, b = max(a, b), min(a, b)
    result = {"add": a + b, "subtract": a - b, "multiply": a * b}[kind]
    return Problem(kind, {"a": str(a), "b": str(b)}, str(result))


def reverse(level: int, language: str, rng: random.Random) -> Problem:
    """Return an invented word to be spelt backwards."""
    word = invented_word(rng.randint(*((3, 5), (6, 8), (11, 14))[level]), language, rng)
    return Problem("reverse", {"word": word}, word[::-1])


def sorting(level: int, language: str, rng: random.Random) -> Problem:
    """Return letters or digits to be put in order."""
    size = rng.randint(*((3, 5), (6, 8), (11, 14))[level])
    if rng.random() < 0.6:
        # English spelling in both languages: where an umlaut sorts is a matter of taste.
        word = invented_word(size, "en", rng)
        return Problem("sort_letters", {"word": word}, "".join(sorted(word)))
    digits = "".join(rng.choices("0123456789", k=size))
    return Problem("sort_digits", {"digits": digits}, "".join(sorted(digits)))


def calendar(level: int, language: str, rng: random.Random) -> Problem:
    """Return a weekday or month some steps before or after another."""
    kind = rng.choice(("days_after", "days_before", "months_after"))
    names = MONTHS[language] if kind == "months_after" else WEEKDAYS[language]
    start = rng.randrange(len(names))
    steps = rng.randint(*((1, 9), (10, 35), (100, 999))[level])
    signed = -steps if kind == "days_before" else steps
    fields = {"start": names[start], "n": str(steps)}
    return Problem(kind, fields, names[(start + signed) % len(names)])


def roman(level: int, language: str, rng: random.Random) -> Problem:
    """Return a number to be written as a Roman numeral, or read from one."""
    number = rng.randint(*((1, 49), (50, 399), (1000, 3999))[level])
    if rng.random() < 0.5:
        return Problem("to_roman", {"number": str(number)}, to_roman(number))
    return Problem("from_roman", {"roman": to_roman(number)}, str(number))


def comparison(level: int, language: str, rng: random.Random) -> Problem:
    """Return three numbers of which the largest or smallest is to be chosen by letter."""
    low, high = ((1, 99), (100, 999), (10_000, 999_999))[level]
    if level == 2:  # Close together, so that the leading digits do not decide.
        low = rng.randint(low, high - 60)
        high = low + 60
    numbers = rng.sample(range(low, high + 1), 3)
    kind = rng.choice(("largest", "smallest"))
    best = max(numbers) if kind == "largest" else min(numbers)
    fields = dict(zip("abc", map(str, numbers), strict=True))
    return Problem(kind, fields, "ABC"[numbers.index(best)])


SKILLS: Final[dict[str, Callable[[int, str, random.Random], Problem]]] = {
    "arithmetic": arithmetic,
    "reverse": reverse,
    "sorting": sorting,
    "calendar": calendar,
    "roman": roman,
    "comparison": comparison,
}


def invented_word(length: int, language: str, rng: random.Random) -> str:
    """Return a pronounceable word of exactly this many letters; German ones may have umlauts."""
    vowels = "aeiouaeiouäöü" if language == "de" else "aeiou"
    word = ""
    while len(word) < length:
        word += rng.choice("bcdfghjklmnprstvwz") + rng.choice(vowels)
        if rng.random() < 0.4:
            word += rng.choice("lmnrstkp")
    return word[:length]


def to_roman(number: int) -> str:
    """Return a number from 1 to 3999 as a Roman numeral."""
    numerals = (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L")
    numerals += (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")
    written = ""
    for value, numeral in numerals:
        written += numeral * (number // value)
        number %= value
    return written


def ask(skill: str, language: str, level: int, rng: random.Random) -> Query:
    """Return one question of a skill, in one language, at one level (0, 1 or 2)."""
    problem = SKILLS[skill](level, language, rng)
    template = rng.choice(TEMPLATES[language][problem.kind])
    return Query(skill, language, template.format(**problem.fields), problem.reference)


def make_queries(
    skill: str, n: int, rng: random.Random, exclude: Collection[str] = ()
) -> list[Query]:
    """Return n questions of one skill, half of them German, with no text twice.

    Args:
        skill: A key of ``SKILLS``.
        n: How many; languages alternate.
        rng: Source of randomness.
        exclude: Texts that must not occur, such as those of another split.
    """
    texts = set(exclude)
    queries: list[Query] = []
    while len(queries) < n:
        level = rng.choices((0, 1, 2), LEVEL_SHARES)[0]
        query = ask(skill, LANGUAGES[len(queries) % 2], level, rng)
        if query.query not in texts:
            texts.add(query.query)
            queries.append(query)
    return queries


def make_mixture(n: int, rng: random.Random, exclude: Collection[str] = ()) -> list[Query]:
    """Return about n questions, uniform over skills and languages, in random order."""
    share = -(-n // len(SKILLS))
    queries = [query for skill in SKILLS for query in make_queries(skill, share, rng, exclude)]
    rng.shuffle(queries)
    return queries[:n]


SPLIT_SIZES: Final = {"train": 3000, "calibration": 2000, "validation": 400, "test": 1600}
PROBES_PER_SKILL: Final = 500


def make_splits(seed: int) -> dict[str, list[Query]]:
    """Return the four splits (cut from one shuffled list, so exchangeable) and the ``probe`` rows.

    ``probe`` has ``PROBES_PER_SKILL`` questions of every skill, for the table in the pool's README.
    """
    rng = random.Random(seed)
    queries = iter(make_mixture(sum(SPLIT_SIZES.values()), rng))
    splits = {name: take(queries, size) for name, size in SPLIT_SIZES.items()}
    taken = {query.query for rows in splits.values() for query in rows}
    probes = [make_queries(skill, PROBES_PER_SKILL, rng, taken) for skill in SKILLS]
    return {**splits, "probe": [query for rows in probes for query in rows]}


def take(queries: Iterator[Query], n: int) -> list[Query]:
    """Return the next n queries."""
    return [next(queries) for _ in range(n)]
