"""``racer db``: schema migrations of the store."""

from __future__ import annotations

import os
from pathlib import Path

import click

from app import settings
from app.cli import tables
from app.cli.console import JSON, OPTIONAL_CONFIG, out, print_json
from app.errors import SettingsError


@click.group()
def db() -> None:
    """Manage the tables of the store."""


@db.command()
@OPTIONAL_CONFIG
@click.option("--store", help="URL of the store, for one without a password in it.")
@JSON
def upgrade(config: Path | None, store: str | None, as_json: bool) -> None:
    """Migrate the tables to this version of the program, in one transaction. Back up first.

    Without `--store` and configuration the store is that of `$RACER_STORE_URL`. No key need be set.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from app.store import schema
    from app.store.engine import open_engine, redacted_url, unusable

    url = store or _configured_url(config)
    engine = open_engine(url)
    try:
        before, after = schema.upgrade(engine)
    except SQLAlchemyError as exc:
        raise unusable(url, exc) from exc
    finally:
        engine.dispose()
    result = {"store": redacted_url(url), "before": before or "no tables", "after": after}
    print_json(result) if as_json else out.print(tables.fields(result))


def _configured_url(config: Path | None) -> str:
    if config is not None:
        configured = settings.read(config)
        return os.environ.get(configured.store_env) or configured.store
    variable = str(settings.Settings.model_fields["store_env"].default)
    if url := os.environ.get(variable):
        return url
    raise SettingsError(f"no store is named: give --config or --store, or set ${variable}")
