"""Numbers of one labelled row: router scores, qualities, its weight, chances."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from racer_core.errors import InputError


def shown(pool: Sequence[str]) -> str:
    """A pool in a message, with long names and long pools shortened."""
    names = [name[:40] for name in pool[:10]]
    return f"[{', '.join(names)}{', ...' if len(pool) > 10 else ''}]"


def refuse_unknown(names: Mapping[str, Any] | list[str], pool: tuple[str, ...]) -> None:
    """Raise InputError for a name that is no candidate of the pool."""
    if unknown := [name for name in names if name not in pool]:
        raise InputError(f"unknown candidate {unknown[0][:80]!r}; the pool is {shown(pool)}")


def row_scores(row: Mapping[str, Any], pool: tuple[str, ...]) -> tuple[float, ...] | None:
    """Router scores that replace a query; scores beside a query are ignored."""
    if "scores" not in row or any(name in row for name in ("query", "messages", "request")):
        return None
    return _shares(row["scores"], "scores", pool)


def row_quality(row: Mapping[str, Any], pool: tuple[str, ...]) -> tuple[float, ...] | None:
    """Qualities on a grid of 1e-6, on which sums of losses are exact."""
    if row.get("quality") is None:
        return None
    return tuple(round(grade, 6) for grade in _shares(row["quality"], "quality", pool))


def row_weight(row: Mapping[str, Any]) -> float:
    """The weight of a row, 1 by default."""
    value = row.get("weight")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError('"weight" must be a number')
    if not 0.0 < value <= sys.float_info.max:  # also true for NaN
        raise InputError('"weight" must be above 0 and finite')
    return float(value)


def _shares(value: object, field: str, pool: tuple[str, ...]) -> tuple[float, ...]:
    """A number in [0, 1] for every candidate, in the order of the pool."""
    if not isinstance(value, dict):
        raise InputError(f'"{field}" must be an object: candidate to a number')
    shares = cast("dict[str, Any]", value)
    refuse_unknown(shares, pool)
    return tuple(_share(shares.get(name), field, name) for name in pool)


def _share(value: object, field: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'"{field}" has no number for {name!r}')
    return chance(value, f"the {field.removesuffix('s')} of {name!r}")


def chance(value: object, what: str) -> float:
    """A number in [0, 1]; ``what`` names it in the message. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} is not a number")
    if not 0.0 <= value <= 1.0:  # also true for NaN
        raise InputError(f"{what} is NaN or outside [0, 1]")
    return float(value)
