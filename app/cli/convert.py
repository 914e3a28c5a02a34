"""``racer convert``: rows out of the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app.cli import tables
from app.cli.console import FILE, JSON, out, print_json


@click.command()
@click.argument("records", type=FILE, nargs=-1, required=True)
@click.option("--out", "rows", type=FILE, required=True, help="A new file (.jsonl).")
@click.option("--metric", help="lm-eval: the logged metric that means right.")
@click.option("--filter", "filter_name", help="lm-eval: the filter whose lines count.")
@click.option("--question", help="lm-eval: the document's field that is the query.")
@click.option(
    "--incomplete",
    type=click.Choice(["refuse", "drop"]),
    default="refuse",
    show_default=True,
    help="lm-eval: documents that some model's run lacks.",
)
@click.option("--threshold", type=float, help="RouterBench: the score that counts as right.")
@click.option("--task", "tasks", multiple=True, help="RouterBench: only this; repeatable.")
@JSON
def convert(
    records: tuple[Path, ...],
    rows: Path,
    metric: str | None,
    filter_name: str | None,
    question: str | None,
    incomplete: Any,
    threshold: float | None,
    tasks: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write labelled rows from RECORDS: lm-eval folders, RouterBench's table, or rows."""
    from racer_core.records import convert as conversion

    choices = conversion.Choices(
        metric=metric,
        filter=filter_name,
        question=question,
        incomplete=incomplete,
        threshold=threshold,
        tasks=tasks or None,
    )
    result = {"out": str(rows), **conversion.convert(records, rows, choices).as_json()}
    print_json(result) if as_json else out.print(tables.fields(result))
