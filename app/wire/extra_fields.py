"""vLLM's extra request fields: allowed by a setting, and checked before they are passed on.

The fields reach into a candidate's server, so none is passed on by default. What an allowed field
may still not do:

- ``chat_template_kwargs`` sets variables of the chat template. It may replace neither the template,
  which is a program of the caller's, nor ``tokenize``, which blocks vLLM's event loop. Values are
  scalars, so that no template iterates over a large list.
- ``priority`` is at least 0, vLLM's default: a smaller number would jump the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from racer_core.errors import InputError

_TEMPLATE_TEXT_CHARS: Final = 256


def is_allowed(name: str, value: object, allowed: Collection[str]) -> bool:
    """Whether a field is allowed by the setting ``limits.extra_fields``.

    Raises:
        InputError: It is allowed, but not with this value.
    """
    pattern = "guided_*" if name.startswith("guided_") else name
    if pattern not in allowed:
        return False
    if value is not None:
        _check(name, value)
    return True


def _check(name: str, value: object) -> None:
    if name == "priority" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InputError("priority must be a whole number of at least 0", param=name)
    if name == "chat_template_kwargs":
        if not isinstance(value, dict):
            raise InputError(f"{name} must be an object", param=name)
        _check_template_variables(name, cast("Mapping[str, Any]", value))


def _check_template_variables(name: str, variables: Mapping[str, Any]) -> None:
    for variable, value in variables.items():
        if variable.startswith("chat_template") or variable == "tokenize":
            raise InputError(f"{name} may not set {variable[:64]!r}", param=name)
        if not isinstance(value, str | int | float | None) or (
            isinstance(value, str) and len(value) > _TEMPLATE_TEXT_CHARS
        ):
            raise InputError(
                f"{name}: {variable[:64]!r} must be a boolean, a number, or a string of at most "
                f"{_TEMPLATE_TEXT_CHARS} characters",
                param=name,
            )
