"""``racer serve``: runs the gateway."""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from app import settings
from app.cli import tables
from app.cli.console import CONFIG, err

if TYPE_CHECKING:
    from app.services import Services

log = logging.getLogger(__name__)


@click.command()
@CONFIG
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
    from app.upstream.served_models import ServedModels

    overrides: dict[str, Any] = {"host": host, "port": port}
    if calibrate_from_traffic:
        overrides["same_answer"] = {"calibrate": "from_traffic"}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    read, served = partial(settings.load, config, **overrides), ServedModels()

    def load() -> tuple[settings.Settings, settings.Secrets]:
        configured, secrets = read()
        return served.filled(configured, secrets), secrets

    configured, secrets = read()
    with server.bind(configured) as listener, logs.logging_to(sys.stderr, _log_form(configured)):
        bound: tuple[str, int] = listener.getsockname()[:2]

        def announce(services: Services) -> None:
            served.log()
            _announce(services, *bound)

        configured = served.filled(configured, secrets)
        gateway = server.Server(
            configured,
            secrets,
            listener,
            load,
            announce=announce,
        )
        uvloop.run(gateway.serve_until_signalled())
        # The closed loop has restored the default action, which would end the process before the
        # last log lines are written: a terminal and its shell both send SIGHUP.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _log_form(configured: settings.Settings) -> Literal["text", "json"]:
    """The format that is set, else text for a terminal and JSON for everything else."""
    telemetry = configured.telemetry
    if "log" in telemetry.model_fields_set or not sys.stderr.isatty():
        return telemetry.log
    return "text"


def _announce(services: Services, host: str, port: int) -> None:
    """Say where the gateway listens and what it lacks: a few lines on a terminal, else a log line.

    Args:
        services: The opened services.
        host: Address that the gateway is bound to.
        port: Its port.
    """
    from app.cli import announcement

    facts = announcement.facts(services, host, port)
    if sys.stderr.isatty():
        err.print(tables.fields(announcement.lines(facts, services)))
    else:
        log.info("the gateway listens at %s", facts["url"], extra={"fields": facts})
