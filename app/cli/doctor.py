"""``racer doctor``: diagnostics of a deployment, with what to do next."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from app.cli import tables
from app.cli.console import CONFIG, JSON, busy, out, print_json

EXIT_UNHEALTHY = 1


@click.command()
@CONFIG
@JSON
def doctor(config: Path, as_json: bool) -> None:
    """Check configuration, artifact, machine, servers and store; change nothing.

    Exit code 1 if a check failed; warnings do not count.
    """
    from app.tools.doctor.run import State, run_checks

    with busy("checking", as_json):
        findings = list(run_checks(config, os.environ))
    healthy = all(each.state is not State.FAILED for each in findings)
    if as_json:
        print_json({"healthy": healthy, "findings": [asdict(each) for each in findings]})
    else:
        # A cell of the table would break what is to be typed.
        typed = {each.check: each.cure for each in findings if each.cure.startswith("racer ")}
        shown = [
            replace(each, cure="the line below") if each.check in typed else each
            for each in findings
        ]
        out.print(tables.findings([(*asdict(each).values(),) for each in shown]))
        for check, line in typed.items():
            out.print(f"{check}: {line}", markup=False, highlight=False, soft_wrap=True)
    if not healthy:
        sys.exit(EXIT_UNHEALTHY)
