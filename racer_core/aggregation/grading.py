"""Grading of answers against a reference. Pure text functions: no model, no HTTP, no clock."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Any

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.wording import Wording, wording
from racer_core.errors import InputError, install_hint
from racer_core.types import enum_member

MAX_MATH_CHARS = 20_000  # of an answer, from its end, where results stand
MAX_BARE_CHARS = 200  # of an answer that is nothing but a formula


# Share of a reference's words that an answer has: both of two, two of three. All its numbers, too.
LEAST_FOUND = 2 / 3


class Grade(StrEnum):
    """What counts as right. The first four compare the normal forms that votes count by."""

    CHOICE = "choice"
    NUMBER = "number"
    EXACT = "exact"
    JSON = "json"
    MATH = "math"  # the same mathematical object, however it is written
    TEXT = "text"  # the reference's words are in the answer


def grade(answer: str | None, reference: str, kind: Grade) -> bool:
    """Whether ``answer`` gives ``reference``; an answer that cannot be read is wrong.

    ``math`` may not terminate: simplification is undecidable, and ``9^{9^{9^9}}`` is enough. Grade
    untrusted answers in a process that can be killed.

    Raises:
        InputError: The reference cannot be read (no answer could be right), or the library for
            ``math`` is missing.
    """
    kind = enum_member(Grade, kind, "grade")
    if kind == Grade.MATH:
        return _math_equal(answer, reference)
    if kind == Grade.TEXT:
        return _is_found(answer, _wordings(reference))
    form = _form(reference, kind)
    return answer is not None and normalise(Equality(kind.value), answer) == form


def check_reference(reference: str, kind: Grade) -> None:
    """Check that a reference can be read, before any candidate is called.

    Raises:
        InputError: It cannot be read, or the library for ``math`` is missing.
    """
    kind = enum_member(Grade, kind, "grade")
    if kind == Grade.MATH:
        _parsed_reference(reference)
    elif kind == Grade.TEXT:
        _wordings(reference)
    else:
        _form(reference, kind)


def _form(reference: str, kind: Grade) -> str:
    form = normalise(Equality(kind.value), reference)
    if form is None:
        raise InputError(f"the reference cannot be read as {_CALLED[kind]}")
    return form


_CALLED = {
    Grade.CHOICE: "a choice such as C",
    Grade.NUMBER: "a number",
    Grade.EXACT: "a text",
    Grade.JSON: "JSON",
    Grade.TEXT: "a text",
    Grade.MATH: "mathematics such as \\frac{1}{2}",
}


def _wordings(reference: str) -> list[Wording]:
    """The reference's words; each line of it is another right answer."""
    read = [wording(line, frozenset()) for line in reference.splitlines()]
    found = [each for each in read if each is not None]
    if not found:
        raise InputError(f"the reference cannot be read as {_CALLED[Grade.TEXT]}")
    return found


def _is_found(answer: str | None, references: list[Wording]) -> bool:
    """Whether an answer has the words of one of the references, in any order."""
    given = None if answer is None else wording(answer, frozenset())
    return given is not None and any(
        each.form == given.form
        or (
            each.numbers <= given.words
            and len(each.words & given.words) >= LEAST_FOUND * len(each.words)
        )
        for each in references
    )


def _math_equal(answer: str | None, reference: str) -> bool:
    gold = _parsed_reference(reference)
    given = [] if answer is None else parsed_mathematics(answer)
    return bool(given) and bool(_library().verify(gold, given, timeout_seconds=None))


def parsed_mathematics(answer: str) -> list[Any]:
    """The mathematics in an answer as sympy objects; empty if there is none."""
    tail = answer[-MAX_MATH_CHARS:]
    # A bare `x^2 + 1` is a whole answer; prose without formulas or numbers is not.
    bare = len(tail) <= MAX_BARE_CHARS and "\n" not in tail
    return _parsed(tail) or (_parsed(f"${tail.strip()}$") if bare else [])


def _parsed_reference(reference: str) -> list[Any]:
    """The reference as sympy objects; without dollar signs it is read as LaTeX too."""
    marked = "$" in reference or "\\boxed" in reference or "\\(" in reference
    bare = [] if marked else _parsed(f"${reference}$")
    parsed = bare or _parsed(reference)
    if not parsed:
        raise InputError(f"the reference cannot be read as {_CALLED[Grade.MATH]}")
    return parsed


def _parsed(text: str) -> list[Any]:
    """The mathematics in a text; empty if there is none."""
    # The library's own timeout stays off, here and in `verify`: it uses SIGALRM, which only the
    # main thread receives; in other threads every answer would be graded wrong.
    parsed: list[Any] = _library().parse(text, parsing_timeout=None)
    # A plain string among the results is a match that could not be parsed.
    return parsed if any(not isinstance(each, str) for each in parsed) else []


def _library() -> Any:
    try:
        return import_module("math_verify")
    except ImportError as exc:
        raise InputError(f"grading mathematics needs math-verify: {install_hint('label')}") from exc
