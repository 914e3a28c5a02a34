"""What a vote counts as the same answer. Pure text: no model, no HTTP, no time limit needed.

A normal form of None means that no answer could be read; it is not a vote. Every form is found in
time linear in the text, for candidates write what they like.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, cast

from racer_core import strict_json
from racer_core.aggregation.json_forms import json_form, tool_call_form
from racer_core.errors import InputError

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
_CHOICE_LETTER = re.compile(
    r"(?=[({A-J])"  # passes quickly over everything else
    r"(?:[({]([A-J])[)}]|(?<![\w'])([A-J])(?=[).:,*]|\s*$))"
)
# No sign within a word ("3-4" ends in 4), and a comma only between groups of three. A group that
# is none ends its number: were all groups before it given up, each would be tried again.
_NUMBER = re.compile(
    r"(?=[-+\u2212$.\d])(?=[-+\u2212]?+\$?+\.?+\d)"
    r"(?:(?:(?<![\w.])[-+\u2212])?\$?(?:\d{1,3}+(?:,\d{3}(?!\d))++|\d++)(?:\.\d++)?"
    r"(?:[eE][-+]?\d++)?|(?:(?<![\w.])[-+\u2212])?\.\d++)"
)
_NUMBER_SIGNS = str.maketrans({",": None, "$": None, "\u2212": "-"})
# Thirty characters that may all be combining marks; two letters become marks when normalised.
_MARKS = re.compile(r"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){30}")
_JOINER = "\u034f"


class Equality(StrEnum):
    """Kinds of answers; chosen in the configuration."""

    CHOICE = "choice"
    NUMBER = "number"
    EXACT = "exact"
    JSON = "json"
    TOOL_CALL = "tool_call"
    MATH = "math"  # the same mathematical object; a library says
    SEMANTIC = "semantic"  # the same meaning; an encoder says
    AUTO = "auto"  # one of the others, by what the request asks for


def is_textual(kind: Equality) -> bool:
    """Whether :func:`normalise` knows this kind: no library, encoder or request is needed."""
    return kind in _FORMS


def check_textual(kind: Equality) -> None:
    """See to it that :func:`normalise` knows this kind, before work is put into answers.

    Raises:
        InputError: It does not.
    """
    if not is_textual(kind):
        raise InputError(
            f"equality `{kind}` cannot be told from the text of an answer alone; here it can be "
            f"one of {', '.join(_FORMS)}",
            param="equality",
        )


def normalise(kind: Equality, text: str) -> str | None:
    """The normal form of an answer: two answers are equal when their forms are.

    ``tool_call`` expects the JSON of a message's list of calls. Who has the list itself takes
    :func:`~racer_core.aggregation.json_forms.tool_call_form`.

    Raises:
        InputError: As :func:`check_textual`.
    """
    check_textual(kind)
    return _FORMS[kind](text)


def _choice(text: str) -> str | None:
    """The stated letter ("the answer is C"), else the last letter that stands alone."""
    if alone := _CHOICE_ALONE.fullmatch(text.strip()):
        return alone[1].upper()
    stated = _CHOICE_STATED.findall(text) or _CHOICE_NAMED.findall(text)
    letters = stated or [bracketed or bare for bracketed, bare in _CHOICE_LETTER.findall(text)]
    return letters[-1].upper() if letters else None


def _number(text: str) -> str | None:
    """The last number, without thousands separators, currency signs and trailing zeros."""
    found = _NUMBER.findall(_compatible(text))
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
    folded = " ".join(_compatible(text).casefold().split())
    return folded.removesuffix(".").rstrip() or None


def _compatible(text: str) -> str:
    """NFKC, of which a run of combining marks is sorted in quadratic time: it is broken up.

    Unicode Standard Annex 15, "Stream-Safe Text Format".
    """
    return unicodedata.normalize("NFKC", _MARKS.sub(rf"\g<0>{_JOINER}", text))


def _tool_calls(text: str) -> str | None:
    try:
        calls = strict_json.loads(text)
    except InputError:
        return None
    return tool_call_form(cast("list[object]", calls)) if isinstance(calls, list) else None


_FORMS: Final[Mapping[Equality, Callable[[str], str | None]]] = {
    Equality.CHOICE: _choice,
    Equality.NUMBER: _number,
    Equality.EXACT: _exact,
    Equality.JSON: json_form,
    Equality.TOOL_CALL: _tool_calls,
}
