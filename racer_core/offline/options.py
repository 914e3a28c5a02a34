"""Validation of training options, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from racer_core.errors import InputError


def check_number(name: str, value: object, *, like: float, zero: bool = False) -> None:
    """Refuse anything but a positive number, which must be whole if ``like`` is an int.

    Raises:
        InputError: Names the option; 0 is allowed if ``zero`` is True.
    """
    whole = isinstance(like, int)
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InputError(f"{name} must be {kind}, not {value!r}", param=name)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise InputError(f"{name} is {value}; it must be {kind} above 0", param=name)


def check_names(router: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse unknown options of a router. Raises InputError, which lists the known ones."""
    known = list(known)
    for name in given:
        if name not in known:
            names = ", ".join(known) if known else "none"
            raise InputError(f"router {router} has no option {name!r}; it has {names}", param=name)
