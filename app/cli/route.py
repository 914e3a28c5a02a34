"""``racer route``: asks a running gateway which models it would call."""

from __future__ import annotations

import click

from app.cli import tables
from app.cli.console import JSON, KEY, URL, out, print_json
from app.tools.gateway_client import GatewayClient


@click.command()
@click.argument("text")
@URL
@KEY
@click.option("--alpha", type=float, help="Risk level; the calibration's own by default.")
@click.option("--execute", is_flag=True, help="Call the set too, and merge its answers.")
@JSON
def route(
    text: str, url: str, key: str | None, alpha: float | None, execute: bool, as_json: bool
) -> None:
    """Ask a running gateway which models it would call for TEXT."""
    with GatewayClient(url, key) as client:
        decision = client.route(text, alpha, execute=execute)
    if as_json:
        print_json(decision)
    else:
        out.print(tables.decision(decision))
