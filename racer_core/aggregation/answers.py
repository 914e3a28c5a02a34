"""Normal forms of answers: two answers are equal when their forms are. Pure text functions.

A normal form of None means that no answer could be read; it is not a vote. Every form is computed
in time linear in the text, because candidates' texts are untrusted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Final, cast

from racer_core import strict_json
from racer_core.aggregation.json_forms import json_form, tool_call_form
from racer_core.errors import InputError

# Raise it when a normal form of any equality changes, so that no calibration on the old forms stays
# in force; `tests/core/test_forms_version.py` notices.
FORMS_VERSION: Final = 2
_MATH_LIBRARIES: Final = ("math-verify", "sympy")  # whose releases change forms of mathematics

# A capital, or a small letter with nothing after it: "the answer is a prime number" states none.
# Possessive (`*+`), so that a run of spaces cannot make the search cubic.
_LETTER = (
    r"\s*+(?i:is|ist|是)?\s*+[:：]?\s*+\**+(?i:option|choice)?\s*+\(?"
    r"([B-HJ]\b|[AIa-j](?=[).:,*]|\s*$))"  # "A" and "I" are words too
)
_CHOICE_STATED = re.compile(rf"(?i:answer|antwort|答案){_LETTER}")
# "Option A is right, because B is not", "C would be the best answer".
_CHOICE_CALLED_RIGHT = re.compile(
    r"(?<![\w'])([A-HJ])[)*.]{0,4}+\s++(?i:is|was|would\s+be|must\s+be|ist|war)\s++"
    r"(?i:indeed\s+|clearly\s+)?(?i:the\s+|die\s+)?(?i:right|correct|best|richtig|korrekt)\b"
)
# Directly behind the word no letter is an article or a pronoun.
_CHOICE_NAMED = re.compile(rf"(?i:option|choice)(?:\s++\**+\(?+([A-HJ])(?![\w'\u2019])|{_LETTER})")
_CHOICE_ALONE = re.compile(r"\(?([A-Ja-j])\)?[.:]?")
# In brackets or before a stop, so that the pronoun "I" and the article "A" are no choices.
_CHOICE_LETTER = re.compile(
    r"(?=[({A-J])"  # passes quickly over everything else
    r"(?:[({]([A-J])[)}]|(?<![\w'])([A-J])(?=[).:,*]|\s*$))"
)
# No sign within a word ("3-4" ends in 4), and a comma only between groups of three digits. What
# follows the groups is optional, so no match goes back over them. Their repeat is not possessive:
# CPython before 3.11.5 matches a possessive group that ends in a lookahead wrongly.
_NUMBER = re.compile(
    r"(?=[-+\u2212$.\d])(?=[-+\u2212]?+\$?+\.?+\d)"
    r"(?:(?:(?<![\w.])[-+\u2212])?\$?(?:\d{1,3}+(?:,\d{3}(?!\d))+|\d++)(?:\.\d++)?"
    r"(?:[eE][-+]?\d++)?|(?:(?<![\w.])[-+\u2212])?\.\d++)"
)
_NUMBER_SIGNS = str.maketrans({",": None, "$": None, "\u2212": "-"})
# Thirty characters that may all be combining marks; two letters become marks when normalised.
_MARKS = re.compile(r"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){30}")
_JOINER = "\u034f"


class Equality(StrEnum):
    """Kinds of answers; chosen in the configuration.

    Most kinds compare answers by a normal form of each. Others compare them two by two, which is
    not transitive: "Paris", "Paris or Lyon" and "Lyon".
    """

    CHOICE = "choice"
    NUMBER = "number"
    EXACT = "exact"
    JSON = "json"
    TOOL_CALL = "tool_call"
    MATH = "math"  # the same mathematical object, by a library
    TEXT = "text"  # the same content words, given the question
    SEMANTIC = "semantic"  # the same meaning, by an encoder
    AUTO = "auto"  # one of the others, depending on the request

    @property
    def is_pairwise(self) -> bool:
        """Whether answers, or those to some requests, are compared two by two, not by forms."""
        return self in (Equality.TEXT, Equality.SEMANTIC, Equality.AUTO)


def is_textual(kind: Equality) -> bool:
    """Whether :func:`normalise` supports this kind: it needs no library, encoder or request."""
    return kind in _FORMS


def check_textual(kind: Equality) -> None:
    """Refuse a kind that :func:`normalise` does not support, before answers are computed.

    Raises:
        InputError: It is not supported.
    """
    if not is_textual(kind):
        raise InputError(
            f"equality `{kind}` cannot be computed from the text of an answer alone; choose one "
            f"of {', '.join(_FORMS)}",
            param="equality",
        )


def forms_version(kind: Equality) -> dict[str, int | str | None]:
    """What forms of a kind depend on besides the text: their version, and those of libraries.

    None stands for a library that is not installed.
    """
    libraries = _MATH_LIBRARIES if kind is Equality.MATH else ()
    return {"forms": FORMS_VERSION} | {name: _installed(name) for name in libraries}


def normalise(kind: Equality, text: str) -> str | None:
    """The normal form of an answer: two answers are equal when their forms are.

    ``tool_call`` expects the JSON of a message's list of calls. For the list itself use
    :func:`~racer_core.aggregation.json_forms.tool_call_form`.

    Raises:
        InputError: As :func:`check_textual`.
    """
    check_textual(kind)
    return _FORMS[kind](text)


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _choice(text: str) -> str | None:
    """The stated letter ("the answer is C", "option C is right"), else the last that stands alone.

    Of what names letters, the clearest kind of statement decides, and of its statements the last.
    """
    if alone := _CHOICE_ALONE.fullmatch(text.strip()):
        return alone[1].upper()
    for kind in (_CHOICE_STATED, _CHOICE_CALLED_RIGHT, _CHOICE_NAMED, _CHOICE_LETTER):
        if found := kind.findall(text):
            last = found[-1]
            return (last if isinstance(last, str) else "".join(last)).upper()
    return None


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
    """NFKC of the stream-safe text."""
    if text.isascii():  # is its own normal form
        return text
    return unicodedata.normalize("NFKC", stream_safe(text))


def stream_safe(text: str) -> str:
    """The text with runs of combining marks broken up: normalising sorts them in quadratic time.

    Unicode Standard Annex 15, "Stream-Safe Text Format".
    """
    return _MARKS.sub(rf"\g<0>{_JOINER}", text)


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
