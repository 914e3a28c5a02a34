"""What a vote counts as the same answer. Pure text: no model, no HTTP.

A normal form of None means that no answer could be read; it is not a vote.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation
from enum import StrEnum

_CHOICE_STATED = re.compile(
    r"(?:answer|antwort|答案)\s*(?:is|ist|是)?\s*[:：]?\s*\(?([A-J])\b", re.I
)
_CHOICE_LETTER = re.compile(r"(?<![A-Za-z'])\(?([A-J])\)?(?![A-Za-z'])")
_NUMBER = re.compile(r"[-+\u2212]?\$?\d[\d,]*(?:\.\d+)?|[-+\u2212]?\.\d+")


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
    stated = _CHOICE_STATED.findall(text)
    letters = stated or _CHOICE_LETTER.findall(text)
    return letters[-1].upper() if letters else None


def _number(text: str) -> str | None:
    """The last number, without thousands separators, currency signs and trailing zeros."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    literal = found[-1].replace(",", "").replace("$", "").replace("\u2212", "-")
    try:
        value = Decimal(literal)
    except InvalidOperation:
        return None
    return "0" if value == 0 else format(value.normalize(), "f")


def _exact(text: str) -> str | None:
    """Unicode-normalised, case-folded, outer space and a final full stop removed."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.removesuffix(".").rstrip() or None
