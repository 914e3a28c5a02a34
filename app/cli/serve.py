"""``serve``, ``demo`` and ``validate``: what runs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables as report
from app.cli.console import FILE, JSON, busy, out, print_json


@click.command()
@click.option("--config", type=FILE, required=True, help="The YAML configuration.")
@click.option("--host", help="Instead of the configuration's.")
@click.option("--port", type=int, help="Instead of the configuration's.")
def serve(config: Path, host: str | None, port: int | None) -> None:
    """Run the gateway."""
    import uvloop

    from app import server
    from app.telemetry import logs

    given: dict[str, Any] = {"host": host, "port": port}
    given = {name: value for name, value in given.items() if value is not None}
    configured, secrets = settings.load(config, **given)
    with server.bind(configured) as listener, logs.written(configured.telemetry.log, sys.stderr):
        uvloop.run(server.Server(configured, secrets, listener).serve_until_signalled())


@click.command()
@click.option("--once", is_flag=True, help="Exit after the table.")
@click.option("--port", type=int, default=8080, show_default=True, help="The gateway's port.")
@click.option(
    "--queries",
    type=click.IntRange(10),
    default=300,
    show_default=True,
    help="Test queries that it is measured with.",
)
@JSON
def demo(once: bool, port: int, queries: int, as_json: bool) -> None:
    """Start the demo's models and the gateway, calibrate it, and measure it."""
    from app.tools.demo import run as demo_module

    demo_module.run(
        port=port,
        queries=queries,
        once=once,
        quiet=as_json,
        show_result=print_json if as_json else lambda result: out.print(*report.demo(result)),
    )


@click.command()
@click.option("--config", type=FILE, required=True, help="The YAML configuration.")
@JSON
def validate(config: Path, as_json: bool) -> None:
    """Check configuration, keys, artifact and encoder without serving."""
    from app.lifespan import open_racer

    configured, _ = settings.load(config)
    result: dict[str, Any] = {"config": str(config), "pool": list(configured.pool), "router": None}
    if configured.artifact is not None:
        with busy("loading artifact and encoder", as_json):
            racer = open_racer(configured)
        result |= {
            "router": racer.artifact.router.kind,
            "encoder": racer.encoder.spec.kind,
            "backend": racer.encoder.spec.backend,
            "dtype": racer.encoder.spec.dtype,
        }
    print_json(result) if as_json else out.print(report.fields(result))
