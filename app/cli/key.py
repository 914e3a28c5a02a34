"""``racer key``: generates API keys, and lists and revokes those of the configuration."""

from __future__ import annotations

import os
from pathlib import Path

import click
from pydantic import ValidationError

from app import settings
from app.cli import tables
from app.cli.console import CONFIG, JSON, out, print_json
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


@key.command("list")
@CONFIG
@JSON
def list_all(config: Path, as_json: bool) -> None:
    """List the keys of the configuration and of the environment, without their secrets."""
    access = settings.read(config).access
    listed = [each.model_dump(mode="json", exclude={"hash"}) for each in access.keys]
    environment = {"data": access.data_key_env, "admin": access.admin_key_env}
    if as_json:
        held = {variable: variable in os.environ for variable in environment.values()}
        print_json({"keys": listed, "environment": held})
        return
    for role, variable in environment.items():
        if variable in os.environ:
            listed.append({"name": f"${variable}", "role": role})
    if listed:
        out.print(tables.keys(listed))
    else:
        out.print("no keys: `racer key new NAME` generates one", highlight=False, markup=False)


@key.command()
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Also the last data key, without which no key is needed."
)
@CONFIG
@JSON
def revoke(name: str, force: bool, config: Path, as_json: bool) -> None:
    """Remove key NAME from the configuration; gateways refuse it once they have read the file."""
    from app.tools.configured_keys import revocation

    change = revocation(config, name, is_forced=force)
    change.write()
    if as_json:
        print_json({"revoked": name, "config": str(config), "diff": change.diff})
        return
    out.print(change.diff, markup=False, highlight=False)
    out.print(
        "Reload the gateways that serve this configuration (SIGHUP), or restart them.",
        highlight=False,
    )
