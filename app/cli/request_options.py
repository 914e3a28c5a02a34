"""Options that say how requests are sent, which `racer label` and `racer bootstrap` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.console import FILE

if TYPE_CHECKING:
    from app.tools.labelling.shapes import ShapeOptions

_LIKE = click.option(
    "--like",
    "likes",
    metavar="SHAPE",
    multiple=True,
    help="Ask each question as it stands, and as requests of this shape are sent; repeatable. "
    "`racer doctor` prints the shapes. Candidates are then called through the gateway.",
)
_SYSTEM = click.option(
    "--system",
    "systems",
    type=FILE,
    multiple=True,
    help="File of the system prompt of such requests; repeatable with --like.",
)
_TEMPERATURE = click.option("--temperature", type=float, help="Their temperature.")
_MAX_TOKENS = click.option("--max-tokens", type=click.IntRange(1), help="Their limit on tokens.")
_TOOLS = click.option(
    "--tools",
    type=FILE,
    multiple=True,
    help="JSON file with the list of their tools; repeatable with --like.",
)
_FIELD = click.option(
    "--field",
    "fields",
    metavar="NAME=JSON|@FILE",
    multiple=True,
    help="Any other field of theirs; repeatable.",
)
_TURNS = click.option(
    "--turns",
    type=click.IntRange(1, 2),
    default=1,
    help="2: half of the questions are asked second, after the gateway's answer to one of the "
    "other half.",
)
_OPTIONS = (_LIKE, _SYSTEM, _TEMPERATURE, _MAX_TOKENS, _TOOLS, _FIELD, _TURNS)


def takes_shapes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them together as ``shapes``."""

    @wraps(command)
    def read(
        *,
        likes: tuple[str, ...],
        systems: tuple[Path, ...],
        temperature: float | None,
        max_tokens: int | None,
        tools: tuple[Path, ...],
        fields: tuple[str, ...],
        turns: int,
        **others: Any,
    ) -> Any:
        shapes = _shapes(likes, systems, temperature, max_tokens, tools, fields, turns)
        return command(shapes=shapes, **others)

    for option in reversed(_OPTIONS):
        read = option(read)
    return read


def _shapes(
    likes: tuple[str, ...],
    systems: tuple[Path, ...],
    temperature: float | None,
    max_tokens: int | None,
    tools: tuple[Path, ...],
    fields: tuple[str, ...],
    turns: int,
) -> ShapeOptions:
    from app.tools.labelling.shapes import ShapeOptions, field_of, json_file, text_file

    given: dict[str, list[Any]] = {}
    words = [
        *(f"--like={each}" for each in likes),
        *(f"--system={each}" for each in systems),
        *([] if temperature is None else [f"--temperature={temperature}"]),
        *([] if max_tokens is None else [f"--max-tokens={max_tokens}"]),
        *(f"--tools={each}" for each in tools),
        *(f"--field={each}" for each in fields),
        *([] if turns == 1 else [f"--turns={turns}"]),
    ]
    if temperature is not None:
        given["temperature"] = [temperature]
    if max_tokens is not None:
        given["max_tokens"] = [max_tokens]
    for path in tools:
        given.setdefault("tools", []).append(json_file(path))
    for name, value in map(field_of, fields):
        given.setdefault(name, []).append(value)
    return ShapeOptions(
        likes=tuple(dict.fromkeys(likes)),
        systems=tuple(map(text_file, systems)),
        fields={name: tuple(values) for name, values in given.items()},
        later=turns > 1,
        words=tuple(words),
    )
