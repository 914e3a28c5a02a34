"""Options of a router to train, which `racer train` and `racer evaluate` share."""

from __future__ import annotations

from typing import Any

import click

from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.routers import registry


def known_router(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """Refuse a name that no installed package offers."""
    if name not in registry.names():
        raise click.BadParameter(f"{name!r} is none of {', '.join(registry.names())}.")
    return name


def routers_like(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The routers whose names begin so, for the shell."""
    return [name for name in registry.names() if name.startswith(begun)]


def _router_options(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Parse values that are JSON; take everything else as text."""
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{each!r} is not key=value.")
        try:
            options[name] = strict_json.loads(value)
        except InputError:
            options[name] = value
    return options


ROUTER_OPTIONS = click.option(
    "--router-option",
    "options",
    multiple=True,
    callback=_router_options,
    help="Hyperparameter of the router as key=value; repeatable.",
)
FALSE_ABSTAIN_BUDGET = click.option(
    "--false-abstain-budget",
    "budget",
    metavar="SHARE|off",
    default="0.01",
    show_default=True,
    help="Share of answerable validation rows that may be refused; keep it well below the smallest "
    "alpha.",
)
