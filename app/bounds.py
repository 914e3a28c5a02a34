"""Limits on what a request asks for, checked before anybody is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from app.errors import SchemaError
from app.settings import Limits

_TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def check_fields(fields: Mapping[str, Any], limits: Limits) -> None:
    """Refuse what would cost candidates without bound.

    Raises:
        SchemaError: Over a limit; the message names both.
    """
    for name in ("n", "best_of"):
        _at_most(name, _count(name, fields.get(name)), limits.choices)
    for name in _TOKEN_LIMITS:
        _at_most(name, _count(name, fields.get(name)), limits.max_tokens)
    lists = {"messages": limits.messages, "input": limits.messages}
    lists |= {"tools": limits.tools, "functions": limits.tools}
    for name, most in lists.items():
        value: object = fields.get(name)
        _at_most(name, len(cast("list[object]", value)) if isinstance(value, list) else 0, most)


def _count(name: str, value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SchemaError(f"{name} must be a number of at least 1", param=name)
    return value


def _at_most(name: str, count: int, most: int) -> None:
    if count > most:
        raise SchemaError(f"{name}: {count:,} is over the limit of {most:,}", param=name)
