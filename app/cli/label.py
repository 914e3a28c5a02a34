"""``racer label``: asks candidates about queries and grades their answers."""

from __future__ import annotations

from pathlib import Path

import click

from app import settings
from app.cli import tables
from app.cli.console import FILE, JSON, err, out, print_json, progress_bars


@click.command()
@click.argument("questions", type=FILE)
@click.option("--config", type=FILE, required=True, help="The YAML configuration: whom to ask.")
@click.option("--out", "rows", type=FILE, required=True, help="Rows (.jsonl); added to.")
@click.option(
    "--grade",
    "kind",
    type=click.Choice(["choice", "number", "math", "exact", "judge"]),
    required=True,
    help="How an answer is compared with the reference.",
)
@click.option("--judge", help="For `judge`: a candidate's name, or another server's URL.")
@click.option("--judge-model", help="The judge's name at that URL.")
@click.option("--judge-key", envvar="RACER_JUDGE_KEY", show_envvar=True, help="Its key there.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Questions under way at once.",
)
@click.option("--ray", metavar="ADDRESS", help="Ask from all nodes of this Ray cluster.")
@JSON
def label(
    questions: Path,
    config: Path,
    rows: Path,
    kind: str,
    judge: str | None,
    judge_model: str | None,
    judge_key: str | None,
    concurrency: int,
    ray: str | None,
    as_json: bool,
) -> None:
    """Ask every candidate QUESTIONS (query and reference), grade, and write labelled rows.

    Interrupt it at any time: the same command goes on where it stopped and asks nothing twice.
    """
    from app.tools.labelling import run
    from app.tools.labelling.grading import Grading
    from racer_core.records.questions import read_questions

    configured, secrets = settings.load(config)
    asked = read_questions(questions, configured.limits.query_chars, configured.routing.text)
    grading = Grading(kind=kind, judge=judge, judge_model=judge_model, judge_key=judge_key)
    spread = None
    if ray is not None:
        from app.tools.ray_batch.labelling import over_cluster

        spread = over_cluster(ray, config, grading, concurrency)
    with progress_bars(as_json) as progress:
        result = run.run(
            asked,
            questions.name,
            rows,
            grading,
            settings=configured,
            secrets=secrets,
            concurrency=concurrency,
            progress=progress,
            spread=spread,
        )
    if result.interrupted:
        err.print("racer: stopped; the same command goes on from here", soft_wrap=True)
        raise KeyboardInterrupt
    shown = {"out": str(rows), **result.as_json()}
    print_json(shown) if as_json else out.print(tables.fields(shown))
