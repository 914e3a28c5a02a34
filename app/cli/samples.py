"""``racer samples``: saves a gateway's sample of live traffic as a file of rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from app.cli import tables
from app.cli.console import (
    ADMIN_KEY,
    ADMIN_URL,
    FILE,
    JSON,
    SINCE,
    counter,
    out,
    print_json,
)
from app.tools.gateway_client import GatewayClient, SampleQuery
from racer_core import strict_json
from racer_core.errors import InputError


@click.command()
@click.argument("path", metavar="FILE", type=FILE)
@click.option("--application", help="Only this application's requests.")
@SINCE
@click.option(
    "--pool",
    type=click.Choice(["any"]),
    help="`any`: all stored requests, each with the candidates of its time, for `racer label`.",
)
@click.option(
    "--judge",
    help="The judge whose verdicts rows carry; default: the one with most; empty: none.",
)
@ADMIN_URL
@ADMIN_KEY
@JSON
def samples(
    path: Path,
    application: str | None,
    since: str | None,
    pool: str | None,
    judge: str | None,
    url: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Save the gateway's sample of live traffic as rows in FILE (.jsonl), which is replaced.

    Rows without a label are marked as such. `racer split` divides them, and `racer train` leaves
    them out.
    """
    if path.suffix not in (".jsonl", ".ndjson"):
        raise InputError(f"{path}: rows are written as JSON lines; name it .jsonl")
    query = SampleQuery(application=application, since=since, judge=judge, pool=pool)
    with (
        counter("rows", as_json) as show,
        GatewayClient(url, key) as gateway,
        gateway.sampled_rows(query) as sample,
        _replaced(path) as file,
    ):
        saved = _save(sample.lines, file, show)
    shown = {
        "out": str(path),
        "rows": saved.rows,
        "without_label": saved.without_label,
        "labels_left_out": sample.labels_left_out,
    }
    print_json(shown) if as_json else out.print(tables.fields(shown))


@dataclass(slots=True)
class _RowCounts:
    """Counts of saved rows."""

    rows: int = 0
    without_label: int = 0


def _save(lines: Iterable[bytes], file: BinaryIO, show: Callable[[int], None]) -> _RowCounts:
    saved = _RowCounts()
    for line in lines:
        file.write(line)
        saved.rows += 1
        saved.without_label += bool(strict_json.load_object(line).get("unlabelled"))
        if saved.rows % 100 == 0:
            show(saved.rows)
    return saved


@contextmanager
def _replaced(path: Path) -> Generator[BinaryIO]:
    """A new file beside the path, readable by its owner alone, which replaces it at the end.

    Raises:
        InputError: It cannot be written. An existing file stays as it is then.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as exc:
        raise InputError(f"{path}: cannot be written ({exc.strerror})") from exc
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).replace(path)
    except OSError as exc:
        raise InputError(f"{path}: cannot be written ({exc.strerror})") from exc
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
