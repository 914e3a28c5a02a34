"""``racer validate``: checks a configuration without serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import CONFIG, JSON, busy, out, print_json


@click.command()
@CONFIG
@JSON
def validate(config: Path, as_json: bool) -> None:
    """Check configuration, keys, artifact and encoder without serving.

    Servers that answer must have their models where `base_url` says.
    """
    from app.errors import SettingsError
    from app.routing.artifact_files import has_artifact, open_racer
    from app.upstream.served_models import misplaced

    configured, secrets = settings.load(config)
    with busy("asking the servers for their models", as_json):
        if wrong := misplaced(configured, secrets):
            raise SettingsError("; ".join(wrong))
    result: dict[str, Any] = {"config": str(config), "pool": list(configured.pool), "router": None}
    if has_artifact(configured):
        with busy("loading artifact and encoder", as_json):
            racer = open_racer(configured)
        result |= {
            "router": racer.artifact.router.kind,
            "encoder": racer.encoder.spec.kind,
            "backend": racer.encoder.spec.backend,
            "dtype": racer.encoder.spec.dtype,
        }
    print_json(result) if as_json else out.print(tables.fields(result))
