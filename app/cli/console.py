"""Consoles, progress bars and options that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app.errors import SettingsError
from racer_core.types import RowsKind

DEFAULT_URL = "http://127.0.0.1:8080"
CONFIG_FILE = Path("racer.yaml")
_CONFIG_KEY = "app.cli.config"  # of click's context: the configuration that a command found
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

# Without a terminal the width is fixed, so that tables in files and pipes are not wrapped.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
JUDGE_CALLS = click.option(
    "--judge-calls",
    type=click.IntRange(1),
    help="The most calls of the judge in this run; what it has graded is kept.",
)
JUDGE_COST = click.option(
    "--judge-cost",
    type=click.FloatRange(0, min_open=True),
    help="Amount, by the judge's `price`, from which on it is not called in this run.",
)
SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the random numbers."
)
FILE = click.Path(path_type=Path)


def _found_config(
    context: click.Context, _parameter: click.Parameter, given: Path | None
) -> Path | None:
    """The named configuration, else that of the working directory; noted for `--url`."""
    path = given or (CONFIG_FILE if CONFIG_FILE.is_file() else None)
    context.meta[_CONFIG_KEY] = path
    return path


def _config_option(text: str, **options: Any) -> Callable[[FC], FC]:
    """An option `--config`, which every command finds in the same places."""
    return click.option(
        "--config",
        type=FILE,
        envvar="RACER_CONFIG",
        show_envvar=True,
        is_eager=True,  # `--url` reads it
        callback=_found_config,
        help=text,
        **options,
    )


def gateway_address(path: Path | None, *, admin: bool) -> str:
    """URL of the gateway that a configuration describes.

    Args:
        path: The configuration; None: there is none.
        admin: The URL of the admin endpoints.

    Raises:
        SettingsError: The configuration is wrong, or its port is 0.
    """
    if path is None:
        return DEFAULT_URL
    from app import settings
    from app.settings.address import gateway_url

    try:
        configured = settings.read(path)
    except SettingsError as exc:
        raise SettingsError(f"{exc}; --url names a gateway without a configuration") from exc
    return gateway_url(configured, admin=admin)


def _gateway_options(*, admin: bool) -> Callable[[FC], FC]:
    """The options that say where a running gateway is."""

    def address(context: click.Context, _parameter: click.Parameter, given: str | None) -> str:
        return given or gateway_address(context.meta.get(_CONFIG_KEY), admin=admin)

    def decorate(command: FC) -> FC:
        return _GATEWAY_CONFIG(click.option("--url", callback=address, help=_URL_TEXT)(command))

    return decorate


_URL_TEXT = f"URL of a running gateway; default: that of the configuration, else {DEFAULT_URL}."
_GATEWAY_CONFIG = _config_option(
    "The configuration of the gateway; default: `racer.yaml`, if it is there.", expose_value=False
)
CONFIG = _config_option("The YAML configuration.", default=CONFIG_FILE, show_default=True)
OPTIONAL_CONFIG = _config_option("The YAML configuration; default: `racer.yaml`, if it is there.")
# For a command that reads --config itself, and calls a gateway only at times.
LATE_URL = click.option("--url", help=_URL_TEXT)
URL = _gateway_options(admin=False)
ADMIN_URL = _gateway_options(admin=True)


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
    with _endless(task, silent):
        yield


@contextmanager
def counter(task: str, silent: bool) -> Generator[Callable[[int], None]]:
    """Count what is done of work of unknown length; a bar would claim to know the end."""
    with _endless(task, silent, TextColumn("{task.completed}")) as bars:
        yield lambda done: bars.update(bars.task_ids[0], completed=done)


@contextmanager
def _endless(task: str, silent: bool, *columns: ProgressColumn) -> Generator[Progress]:
    shown = err.is_terminal and not silent  # progress bars are for terminals
    columns = (TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not shown) as bars:
        bars.add_task(task, total=None)
        yield bars


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
