"""``racer demo``: the demonstration pool and a gateway in front of it."""

from __future__ import annotations

import click

from app.cli import tables
from app.cli.console import JSON, out, print_json


@click.command()
@click.option("--once", is_flag=True, help="Exit after the results are printed.")
@click.option("--port", type=int, default=8080, show_default=True, help="Port of the gateway.")
@click.option(
    "--queries",
    type=click.IntRange(10),
    default=300,
    show_default=True,
    help="Number of test queries.",
)
@JSON
def demo(once: bool, port: int, queries: int, as_json: bool) -> None:
    """Start the demo models and a gateway, calibrate it and measure it."""
    from app.tools.demo import run

    run.run(
        port=port,
        queries=queries,
        once=once,
        quiet=as_json,
        show_result=print_json if as_json else lambda result: out.print(*tables.demo(result)),
    )
