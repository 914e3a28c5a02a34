"""``key new``: a key for a client, and the line of the configuration that knows it."""

from __future__ import annotations

import click

from app.cli.console import JSON, out, print_json
from app.errors import SettingsError
from app.settings import key_format
from app.settings.access import Access


@click.group()
def key() -> None:
    """Make keys for clients."""


@key.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["data", "admin"]),
    default="data",
    show_default=True,
    help="`data` asks, `admin` calibrates.",
)
@JSON
def new(name: str, role: str, as_json: bool) -> None:
    """Make a key for NAME; it is shown this once, for the configuration keeps its hash alone."""
    made = key_format.new_key()
    line = {"name": name, "role": role, "hash": key_format.written(made, key_format.new_salt())}
    try:
        Access.model_validate({"keys": [line]})
    except ValueError as exc:
        raise SettingsError(f"{name!r} cannot be the name of a key") from exc
    if as_json:
        print_json({"key": made, **line})
        return
    listed = f'name: "{name}", role: {role}, hash: "{line["hash"]}"'
    click.echo(f"{made}\n")
    out.print("Give it to the client; nobody can show it again. In the configuration:\n")
    click.echo(f"access:\n  keys:\n    - {{{listed}}}")
