"""What the commands share: where they print, their bars, and options that mean the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

DEFAULT_URL = "http://127.0.0.1:8080"

# Wide when nobody's terminal sets a width, so that tables stay whole in files and pipes.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
URL = click.option("--url", default=DEFAULT_URL, show_default=True, help="A running gateway.")
KEY = click.option("--key", envvar="RACER_DATA_KEY", show_envvar=True, help="Data key.")
ADMIN_KEY = click.option("--key", envvar="RACER_ADMIN_KEY", show_envvar=True, help="Admin key.")
MAX_TOKENS = click.option(
    "--max-tokens",
    type=click.IntRange(8),
    default=512,
    show_default=True,
    help="Of a query; the encoder reads no further.",
)
SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="The same one draws alike."
)
FILE = click.Path(path_type=Path)


def print_json(value: Any) -> None:
    """One line on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def busy(task: str, silent: bool) -> Generator[None]:
    """A bar for work that does not tell how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = err.is_terminal and not silent  # a log has no use for a bar that moves
    with Progress(*columns, console=err, transient=True, disable=not shown) as bars:
        bars.add_task(task, total=None)
        yield


@contextmanager
def progress_bars(silent: bool) -> Generator[Callable[[str, int, int], None]]:
    """A bar per stage, on stderr, so that stdout stays the result."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=silent) as bars:
        stages: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            name = stage.partition(",")[0]
            if name not in stages or bars.tasks[stages[name]].total != total:
                stages[name] = bars.add_task(stage, total=total)
            bars.update(stages[name], completed=done, description=stage)

        yield show
