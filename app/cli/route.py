"""``racer route``: the routing decision of a running gateway for one query."""

from __future__ import annotations

import click

from app.cli import tables
from app.cli.console import JSON, KEY, URL, out, print_json
from app.tools.gateway_client import GatewayClient


@click.command()
@click.argument("text")
@URL
@KEY
@click.option("--alpha", type=float, help="Risk level; default: the calibration's.")
@click.option(
    "--execute", is_flag=True, help="Also call the selected candidates and merge their answers."
)
@JSON
def route(
    text: str, url: str, key: str | None, alpha: float | None, execute: bool, as_json: bool
) -> None:
    """Print which candidates a running gateway would call for TEXT."""
    with GatewayClient(url, key) as client:
        decision = client.route(text, alpha, execute=execute)
    if as_json:
        print_json(decision)
    else:
        out.print(tables.decision(decision))
