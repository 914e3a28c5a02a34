"""``racer init``: writes a first configuration from the model lists of servers."""

from __future__ import annotations

import os
from pathlib import Path

import click

from app.cli import tables
from app.cli.console import FILE, JSON, busy, out, print_json


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "--out",
    "path",
    type=FILE,
    default=Path("racer.yaml"),
    show_default=True,
    help="File for the configuration; its JSON schema is written beside it.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port of the gateway.",
)
@click.option(
    "--key-env", metavar="NAME", help="Environment variable with the API key of the servers."
)
@click.option("--keep-unreachable", is_flag=True, help="Include servers that do not answer.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@JSON
def init(
    urls: tuple[str, ...],
    path: Path,
    port: int,
    key_env: str | None,
    keep_unreachable: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Read the model lists of the servers at URLs and write a first configuration.

    Without a URL: $OPENAI_BASE_URL, or OpenAI, with the key in $OPENAI_API_KEY.
    """
    from app.tools import first_configuration

    options = first_configuration.InitOptions.of(
        urls, path=path, port=port, key_env=key_env, environment=os.environ
    )
    options.check(force=force)
    with busy("reading model lists", as_json):
        result = first_configuration.write(options, os.environ, keep_unreachable=keep_unreachable)
    if as_json:
        print_json(result.as_json())
        return
    out.print(tables.fields(result.as_json()))
    out.print(f"next: racer doctor --config {path}", markup=False, soft_wrap=True)
