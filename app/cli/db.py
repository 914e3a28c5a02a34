"""``racer db``: schema migrations of the store."""

from __future__ import annotations

from pathlib import Path

import click

from app import settings
from app.cli import tables
from app.cli.console import FILE, JSON, out, print_json


@click.group()
def db() -> None:
    """Manage the tables of the store."""


@db.command()
@click.option("--config", type=FILE, required=True, help="The YAML configuration.")
@JSON
def upgrade(config: Path, as_json: bool) -> None:
    """Migrate the tables to this version of the program, in one transaction. Back up first."""
    from sqlalchemy.exc import SQLAlchemyError

    from app.store import schema
    from app.store.engine import open_engine, redacted_url, unusable

    configured, secrets = settings.load(config)
    url = secrets.store(configured)
    engine = open_engine(url)
    try:
        before, after = schema.upgrade(engine)
    except SQLAlchemyError as exc:
        raise unusable(url, exc) from exc
    finally:
        engine.dispose()
    result = {"store": redacted_url(url), "before": before or "no tables", "after": after}
    print_json(result) if as_json else out.print(tables.fields(result))
