"""``racer key``: generates API keys and their entries in the configuration."""

from __future__ import annotations

import click
from pydantic import ValidationError

from app.cli.console import JSON, out, print_json
from app.errors import SettingsError
from app.settings import key_format
from app.settings.access import Access
from app.settings.validation import problems


@click.group()
def key() -> None:
    """Manage API keys of clients."""


@key.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["data", "admin"]),
    default="data",
    show_default=True,
    help="`data` may send queries, `admin` may also calibrate.",
)
@JSON
def new(name: str, role: str, as_json: bool) -> None:
    """Generate an API key for NAME and print it once; the configuration holds only its hash."""
    api_key = key_format.new_key()
    entry = {
        "name": name,
        "role": role,
        "hash": key_format.format_hash(api_key, key_format.COMMON_SALT),
    }
    try:
        Access.model_validate({"keys": [entry]})
    except ValidationError as exc:
        place, sentence = problems(exc, Access)[0]
        reason = sentence.removeprefix(f"{place}: ")
        raise SettingsError(f"{name!r} cannot be the name of a key: {reason}") from exc
    if as_json:
        print_json({"key": api_key, **entry})
        return
    listed = f'name: "{name}", role: {role}, hash: "{entry["hash"]}"'
    click.echo(f"{api_key}\n")
    out.print("Give this key to the client; it cannot be shown again. In the configuration:\n")
    click.echo(f"access:\n  keys:\n    - {{{listed}}}")
