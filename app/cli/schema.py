"""``racer schema``: the JSON Schema of the configuration."""

from __future__ import annotations

import click

from app.settings import schema as settings_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and validators."""
    click.echo(settings_schema.text(), nl=False)
