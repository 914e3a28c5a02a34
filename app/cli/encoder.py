"""``racer encoder``: computes router scores for all gateways of a machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

import click

from app import settings
from app.cli.console import CONFIG
from app.errors import SettingsError
from app.settings import Settings

log = logging.getLogger(__name__)


@click.command()
@CONFIG
def encoder(config: Path) -> None:
    """Compute router scores for all gateways of this machine, on the socket `encoder.socket`."""
    import uvloop

    from app.routing.encoder_process import listening
    from app.telemetry import logs

    configured = settings.read(config)
    path = configured.encoder.socket
    if path is None:
        raise SettingsError(f"{config}: encoder.socket: name the socket that the gateways open")
    with logs.logging_to(sys.stderr, configured.telemetry.log), listening(path) as listener:
        uvloop.run(_serve(configured, listener))


async def _serve(configured: Settings, listener: socket.socket) -> None:
    from app.lifespan import router_here
    from app.routing.encoder_process import EncoderServer
    from app.telemetry.metrics import Metrics

    opened = await asyncio.to_thread(router_here, configured, Metrics())
    async with opened.scoring as scoring:
        server = EncoderServer(scoring, opened.trained.artifact.scoring_digest)
        task = asyncio.create_task(server.serve(listener))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        log.warning("the encoder answers at %s", configured.encoder.socket)
        with contextlib.suppress(asyncio.CancelledError):
            await task
