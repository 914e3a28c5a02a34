"""Consoles, progress bars and options that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
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

from racer_core.types import RowsKind

DEFAULT_URL = "http://127.0.0.1:8080"

# Without a terminal the width is fixed, so that tables in files and pipes are not wrapped.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
URL = click.option(
    "--url", default=DEFAULT_URL, show_default=True, help="URL of a running gateway."
)
KEY = click.option(
    "--key", envvar="RACER_DATA_KEY", show_envvar=True, help="Data key of the gateway."
)
ADMIN_KEY = click.option(
    "--key", envvar="RACER_ADMIN_KEY", show_envvar=True, help="Admin key of the gateway."
)
MAX_TOKENS = click.option(
    "--max-tokens",
    type=click.IntRange(8),
    default=512,
    show_default=True,
    help="Tokens of a query that the encoder reads; the rest is cut.",
)
ROWS_KIND = click.option(
    "--rows",
    "kind",
    type=click.Choice([each.value for each in RowsKind]),
    help="A random sample of traffic, or a list of questions; default: guessed.",
)
SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the random numbers."
)
FILE = click.Path(path_type=Path)


def start_of(since: str) -> str:
    """A time in ISO 8601, from one or from a number of days such as ``30d``. UTC by default."""
    if since.endswith("d") and since[:-1].isdecimal():
        return (datetime.now(UTC) - timedelta(days=int(since[:-1]))).isoformat()
    time = datetime.fromisoformat(since)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _start(_context: click.Context, _parameter: click.Parameter, since: str | None) -> str | None:
    try:
        return None if since is None else start_of(since)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{since!r} is neither a time in ISO 8601 nor a number of days such as `30d`."
        ) from None


SINCE = click.option(
    "--since",
    callback=_start,
    help="Only sampled requests from then on: a time in ISO 8601, or days back such as `30d`.",
)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def busy(task: str, silent: bool) -> Generator[None]:
    """Show a bar for work of unknown length."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = err.is_terminal and not silent  # progress bars are for terminals
    with Progress(*columns, console=err, transient=True, disable=not shown) as bars:
        bars.add_task(task, total=None)
        yield


@contextmanager
def progress_bars(silent: bool) -> Generator[Callable[[str, int, int], None]]:
    """Show one progress bar per stage on stderr; stdout is for the result."""
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
