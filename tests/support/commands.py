"""Commands of ``racer`` as click reads them, without running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from app.cli import main


def group() -> click.Context:
    """The `racer` that a command is parsed below.

    click keeps a command's help option from its first parse: one that is parsed without the
    settings of the group would lose `-h` for the whole process.
    """
    return click.Context(main.cli, **main.cli.context_settings)


def command(name: str) -> Any:
    """One of the commands, or of groups of commands."""
    return main.cli.commands[name]


def parsed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command behind its name."""
    return command(name).make_context(name, list(words), parent=group()).params
