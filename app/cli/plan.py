"""``racer plan``: what a number of questions gives, before they are labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import FILE, JSON, OPTIONAL_CONFIG, out, print_json
from racer_core.types import RiskTarget


@click.command()
@click.argument("rows", type=FILE, required=False)
@click.option("--questions", type=click.IntRange(1), help="Their number; default: that of ROWS.")
@click.option("--alpha", type=float, help="Risk level; default: the configuration's, else 0.1.")
@click.option("--delta", type=float, help="P(risk <= alpha) >= 1 - delta instead of the mean.")
@click.option(
    "--answerable",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the questions that some candidate answers right; default: that of 30 labelled "
    "ROWS or more, else 0.75.",
)
@click.option(
    "--risk-target",
    type=click.Choice([RiskTarget.ANSWERABLE.value, RiskTarget.PAPER.value]),
    help="Which risk alpha bounds; default: the configuration's.",
)
@OPTIONAL_CONFIG
@JSON
def plan(
    rows: Path | None,
    questions: int | None,
    alpha: float | None,
    delta: float | None,
    answerable: float | None,
    risk_target: str | None,
    config: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """Say what labelled questions will give: rows, realised risk, calls, and how many to label.

    Nothing but their number decides how far the realised risk may be above alpha. ROWS that are
    labelled already, 30 or more, say how many calls to expect.
    """
    from app.settings.routing import Routing
    from app.tools import planning
    from app.tools.router_rows import read_rows
    from racer_core.offline.training_rows import with_labels

    if rows is None and questions is None:
        raise click.UsageError("give --questions, or labelled ROWS")
    configured = settings.read(config) if config else None
    routing = configured.routing if configured else Routing()
    labelled = None if rows is None else with_labels(read_rows(rows, configured, None), str(rows))
    found = planning.plan_for(
        questions or len(labelled or ()),
        alpha=routing.alpha if alpha is None else alpha,
        delta=delta,
        risk_target=routing.risk_target if risk_target is None else RiskTarget(risk_target),
        answerable=answerable,
        rows=labelled,
    )
    shown = planning.as_json(found)
    print_json(shown) if as_json else out.print(tables.fields(planning.fields(found)))
    return shown
