"""What a vote counts as the same answer. Pure text: no model, no HTTP.

A normal form of None means that no answer could be read; it is not a vote.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum

# A capital, or a small letter with nothing after it: "the answer is a prime number" states none.
# Possessive (`*+`), so that a run of spaces cannot make the search cubic.
_LETTER = (
    r"\s*+(?i:is|ist|是)?\s*+[:：]?\s*+\**+(?i:option|choice)?\s*+\(?"
    r"([B-HJ]\b|[AIa-j](?=[).:,*]|\s*$))"  # "A" and "I" are words too
)
_CHOICE_STATED = re.compile(rf"(?i:answer|antwort|答案){_LETTER}")
_CHOICE_NAMED = re.compile(rf"(?i:option|choice){_LETTER}")
_CHOICE_ALONE = re.compile(r"\(?([A-Ja-j])\)?[.:]?")
# In brackets, or before a stop: "B, I think" and "A dog" hold no pronoun or article as a choice.
_CHOICE_LETTER = re.compile(r"[({]([A-J])[)}]|(?<![\w'])([A-J])(?=[).:,*]|\s*$)")
# No sign within a word ("3-4" ends in 4), and a comma only between groups of three.
_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+\u2212])?\$?(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d++)?(?:[eE][-+]?\d++)?"
    r"|(?:(?<![\w.])[-+\u2212])?\.\d++"
)
_NUMBER_SIGNS = str.maketrans({",": None, "$": None, "\u2212": "-"})


class Equality(StrEnum):
    """Kinds of answers; chosen in the configuration."""

    CHOICE = "choice"
    NUMBER = "number"
    EXACT = "exact"


def normalise(kind: Equality, text: str) -> str | None:
    """The normal form of an answer: two answers are equal when their forms are."""
    match kind:
        case Equality.CHOICE:
            return _choice(text)
        case Equality.NUMBER:
            return _number(text)
        case Equality.EXACT:
            return _exact(text)


def _choice(text: str) -> str | None:
    """The stated letter ("the answer is C"), else the last letter that stands alone."""
    if alone := _CHOICE_ALONE.fullmatch(text.strip()):
        return alone[1].upper()
    stated = _CHOICE_STATED.findall(text) or _CHOICE_NAMED.findall(text)
    letters = stated or [bracketed or bare for bracketed, bare in _CHOICE_LETTER.findall(text)]
    return letters[-1].upper() if letters else None


def _number(text: str) -> str | None:
    """The last number, without thousands separators, currency signs and trailing zeros."""
    found = _NUMBER.findall(unicodedata.normalize("NFKC", text))
    if not found or "e" in found[-1].lower():  # 1e5: no two spellings of it would agree
        return None
    literal = found[-1].translate(_NUMBER_SIGNS)
    sign, digits = ("-", literal[1:]) if literal.startswith("-") else ("", literal.lstrip("+"))
    # As text, so that no number is too long to keep all its digits.
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    return value if value == "0" else sign + value


def _exact(text: str) -> str | None:
    """Unicode-normalised, case-folded, outer space and a final full stop removed."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.removesuffix(".").rstrip() or None
