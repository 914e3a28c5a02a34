"""What pydantic found wrong, in our words: the field and one sentence, never the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError


def problems(exc: ValidationError) -> list[tuple[str, str]]:
    """For each problem the field's path, empty for the whole, and a sentence that names it."""
    details = exc.errors(include_input=False, include_url=False, include_context=False)
    return [_problem(each) for each in details]


def _problem(error: Mapping[str, Any]) -> tuple[str, str]:
    place = ".".join(str(part)[:64] for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    return place, f"{place}: {message}" if place else message
