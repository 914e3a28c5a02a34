"""``racer split``: training, validation, calibration and check rows from one file."""

from __future__ import annotations

from pathlib import Path

import click

from app.cli import tables
from app.cli.console import FILE, JSON, ROWS_KIND, SEED, err, out, print_json
from racer_core.records.split import SHARES
from racer_core.types import RowsKind


def parse_shares(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, float]:
    """Parse NAME=SHARE; empty where no share is given."""
    shares: dict[str, float] = {}
    for each in given:
        name, _, share = each.partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise click.BadParameter(f"{each!r} is not NAME=SHARE.") from None
        if not name or Path(name).name != name:
            raise click.BadParameter(f"{name!r} is no name of a file.")
    return shares


@click.command()
@click.argument("rows", type=FILE)
@click.option("--out", "folder", type=FILE, default=".", help="Folder of the parts; default: here.")
@click.option(
    "--share",
    "shares",
    metavar="NAME=SHARE",
    multiple=True,
    callback=parse_shares,
    help="A part NAME.jsonl and its share; repeatable. Default: "
    + ", ".join(f"{name}={share:g}" for name, share in SHARES.items())
    + ".",
)
@ROWS_KIND
@SEED
@JSON
def split(
    rows: Path,
    folder: Path,
    shares: dict[str, float],
    kind: str | None,
    seed: int,
    as_json: bool,
) -> dict[str, int]:
    """Divide labelled ROWS at random: train a router, choose settings, calibrate, check.

    In a list of questions copies and clusters stay in one part. Every group is divided alike.
    """
    from racer_core.records.split import split_file

    result = split_file(
        rows, folder, shares or SHARES, kind=None if kind is None else RowsKind(kind), seed=seed
    )
    if kind is None:
        err.print(f"racer: taken for {result.kind} (--rows says what it is)", soft_wrap=True)
    shown = {str(path): len(part) for path, part in result.parts.items()}
    print_json(shown) if as_json else out.print(tables.fields(shown))
    return shown
