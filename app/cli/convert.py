"""``racer convert``: labelled rows from the files of other evaluation tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app.cli import tables
from app.cli.console import FILE, JSON, out, print_json


@click.command()
@click.argument("records", type=FILE, nargs=-1, required=True)
@click.option("--out", "rows", type=FILE, required=True, help="New file for the rows (.jsonl).")
@click.option("--metric", help="lm-eval: the logged metric that says whether an answer is correct.")
@click.option("--filter", "filter_name", help="lm-eval: the filter whose results are used.")
@click.option("--question", help="lm-eval: the field of the document that holds the query.")
@click.option(
    "--incomplete",
    type=click.Choice(["refuse", "drop"]),
    default="refuse",
    show_default=True,
    help="lm-eval: what to do with documents that the run of a model lacks.",
)
@click.option(
    "--threshold", type=float, help="RouterBench: the lowest score that counts as correct."
)
@click.option("--task", "tasks", multiple=True, help="RouterBench: use only this task; repeatable.")
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
    """Convert RECORDS (lm-eval folders, the RouterBench table or rows) to labelled rows."""
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
