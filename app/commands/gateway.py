"""``route`` and ``calibrate``: what asks a running gateway."""

from __future__ import annotations

from pathlib import Path

import click

from app import report
from app.client import GatewayClient
from app.console import ADMIN_KEY, FILE, JSON, KEY, URL, busy, out, print_json
from racer_core.types import RiskTarget, Score


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
        out.print(report.decision(decision))


@click.command()
@click.argument("rows", type=FILE)
@URL
@ADMIN_KEY
@click.option("--alpha", type=float)
@click.option("--delta", type=float, help="P(risk <= alpha) >= 1 - delta instead of the mean.")
@click.option("--score", type=click.Choice([each.value for each in Score]))
@click.option("--risk-target", type=click.Choice([each.value for each in RiskTarget]))
@click.option("--r", type=click.IntRange(1), help="Right candidates wanted in the set.")
@click.option("--smoothing", type=click.Choice(["none", "hash"]))
@click.option("--expected-active-id", help="Change nothing if another calibration is active.")
@click.option("--allow-overlap", is_flag=True, help="Accept training rows; the guarantee is void.")
@click.option("--activate/--no-activate", default=True, show_default=True)
@click.option("--dry-run", is_flag=True, help="Show the evidence, change nothing.")
@JSON
def calibrate(
    rows: Path,
    url: str,
    key: str | None,
    alpha: float | None,
    delta: float | None,
    score: str | None,
    risk_target: str | None,
    r: int | None,
    smoothing: str | None,
    expected_active_id: str | None,
    allow_overlap: bool,
    activate: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Upload labelled ROWS to a running gateway."""
    options = {
        "alpha": alpha,
        "delta": delta,
        "score": score,
        "risk_target": risk_target,
        "r": r,
        "smoothing": smoothing,
        "expected_active_id": expected_active_id,
        "allow_overlap": allow_overlap,
        "activate": activate,
        "dry_run": dry_run,
    }
    with busy("calibrating", as_json), GatewayClient(url, key) as client:
        result = client.calibrate(rows, options)
    shown = {name: result[name] for name in ("id", "active")} | result["evidence"]
    print_json(result) if as_json else out.print(report.fields(shown))
