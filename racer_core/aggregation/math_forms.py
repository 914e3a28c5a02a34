"""Normal form of a mathematical answer, by math-verify and sympy.

One form for one value: 0.5, 1/2 and its LaTeX give the same text. Answers whose equality needs a
proof may keep two forms and count as different; different answers never share a form. Hostile input
may take long or use much memory: run it in a process that a deadline can kill.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from racer_core.aggregation.grading import parsed_mathematics

_DIGITS: Final = 12  # of an irrational number; further digits are not exact


def math_form(text: str) -> str | None:
    """The form of the last answer in a text; None if there is none.

    Raises:
        InputError: math-verify is not installed.
    """
    found = [each for each in parsed_mathematics(text) if not isinstance(each, str)]
    return _canonical(found[0]) if found else None


def _canonical(value: Any) -> str:
    sympy: Any = import_module("sympy")
    if isinstance(value, sympy.Equality) and value.lhs.is_Symbol:
        return _canonical(value.rhs)  # "x = 5" equals "5"
    if isinstance(value, sympy.FiniteSet | sympy.Tuple | tuple | list):
        parts = [_canonical(each) for each in value]
        ordered = sorted(parts) if isinstance(value, sympy.FiniteSet) else parts
        return f"{type(value).__name__}({', '.join(ordered)})"
    if not isinstance(value, sympy.Expr):
        return str(sympy.srepr(value))
    if not value.is_number:
        return str(sympy.srepr(sympy.simplify(sympy.expand(value))))
    plain = value.doit()
    exact = sympy.nsimplify(plain, rational=True) if plain.has(sympy.Float) else plain
    return str(exact if exact.is_Rational else sympy.N(exact, _DIGITS))
