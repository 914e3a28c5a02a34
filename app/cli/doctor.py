"""``racer doctor``: diagnostics of a deployment, with what to do next."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
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
        out.print(tables.findings([(*asdict(each).values(),) for each in findings]))
    if not healthy:
        sys.exit(EXIT_UNHEALTHY)
