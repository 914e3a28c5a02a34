"""Request limits: numbers of choices, tokens, messages and tools, checked before any call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from app.errors import SchemaError
from app.settings import Limits
from app.wire.candidate_payload import TOKEN_LIMITS

_CHOICES: Final = ("n", "best_of")
_LIMITED: Final = {*_CHOICES, *TOKEN_LIMITS, "input", "messages", "tools", "functions"}


def check_fields(fields: Mapping[str, Any], limits: Limits) -> None:
    """Refuse a request whose cost at candidates has no bound.

    Raises:
        SchemaError: A field is over its limit; the message names both.
    """
    each = 1
    value: object
    for name, value in fields.items():
        if name not in _LIMITED:
            continue
        if name in _CHOICES:
            count = _count(name, value)
            _at_most(name, count, limits.choices, "choices")
            each = max(each, count)
        elif name in TOKEN_LIMITS:
            _at_most(name, _count(name, value), limits.max_tokens, "max_tokens")
        elif name == "input":
            _at_most(name, texts(value), limits.messages, "messages")
        elif isinstance(value, list):
            limit = "messages" if name == "messages" else "tools"
            _at_most(name, len(cast("list[object]", value)), getattr(limits, limit), limit)
    _at_most("prompt", texts(fields.get("prompt")) * each, limits.choices, "choices")


def texts(value: object) -> int:
    """Number of texts or turns in a prompt or input; a list of numbers is one text, as tokens."""
    if not isinstance(value, list):
        return 1
    items = cast("list[object]", value)
    return 1 if all(isinstance(each, int) for each in items) else len(items)


def _count(name: str, value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SchemaError(f"{name} must be a number of at least 1", param=name)
    return value


def _at_most(name: str, count: int, most: int, limit: str) -> None:
    if count > most:
        raise SchemaError(
            f"{name}: {count:,} is over the limit of {most:,} (`limits.{limit}`)", param=name
        )
