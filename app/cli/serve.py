"""``racer serve``: runs the gateway."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli.console import FILE


@click.command()
@click.option("--config", type=FILE, required=True, help="The YAML configuration.")
@click.option("--host", help="Overrides the configuration.")
@click.option("--port", type=int, help="Overrides the configuration.")
@click.option(
    "--calibrate-from-traffic",
    is_flag=True,
    help="Answer `auto` under the promise `same_answer`, calibrated on sampled requests.",
)
def serve(config: Path, host: str | None, port: int | None, calibrate_from_traffic: bool) -> None:
    """Run the gateway."""
    import uvloop

    from app import server
    from app.telemetry import logs

    overrides: dict[str, Any] = {"host": host, "port": port}
    if calibrate_from_traffic:
        overrides["same_answer"] = {"calibrate": "from_traffic"}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    load = partial(settings.load, config, **overrides)
    configured, secrets = load()
    with server.bind(configured) as listener, logs.logging_to(sys.stderr, configured.telemetry.log):
        uvloop.run(server.Server(configured, secrets, listener, load).serve_until_signalled())
        # The closed loop has restored the default action, which would end the process before the
        # last log lines are written: a terminal and its shell both send SIGHUP.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
