"""``racer label``: makes labelled rows from the candidates' graded answers."""

from __future__ import annotations

from pathlib import Path

import click

from app import settings
from app.cli import tables
from app.cli.console import FILE, JSON, err, out, print_json, progress_bars


@click.command()
@click.argument("questions", type=FILE)
@click.option(
    "--config", type=FILE, required=True, help="The YAML configuration with the candidates."
)
@click.option(
    "--out",
    "rows",
    type=FILE,
    required=True,
    help="File for the rows (.jsonl); an existing one is appended to.",
)
@click.option(
    "--grade",
    "kind",
    type=click.Choice(["choice", "number", "math", "exact", "judge"]),
    required=True,
    help="How an answer is compared with the reference.",
)
@click.option("--judge", help="With `--grade judge`: a candidate, or the URL of another server.")
@click.option("--judge-model", help="Model name of the judge at that URL.")
@click.option(
    "--judge-key", envvar="RACER_JUDGE_KEY", show_envvar=True, help="API key for that URL."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Questions processed at the same time.",
)
@click.option("--ray", metavar="ADDRESS", help="Run on all nodes of this Ray cluster.")
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
    """Send QUESTIONS (query and reference) to every candidate, grade the answers, write rows.

    After an interruption the same command resumes and repeats no finished call.
    """
    from app.tools.labelling import run
    from app.tools.labelling.grading import GradingOptions
    from racer_core.records.questions import read_questions

    configured, secrets = settings.load(config)
    questions_read = read_questions(
        questions, configured.limits.query_chars, configured.routing.text
    )
    grading = GradingOptions(kind=kind, judge=judge, judge_model=judge_model, judge_key=judge_key)
    remote = None
    if ray is not None:
        from app.tools.ray_batch.labelling import over_cluster

        remote = over_cluster(ray, config, grading, concurrency)
    with progress_bars(as_json) as progress:
        result = run.run(
            questions_read,
            questions.name,
            rows,
            grading,
            settings=configured,
            secrets=secrets,
            concurrency=concurrency,
            progress=progress,
            remote=remote,
        )
    if result.interrupted:
        err.print("racer: stopped; run the same command again to resume", soft_wrap=True)
        raise KeyboardInterrupt
    shown = {"out": str(rows), **result.as_json()}
    print_json(shown) if as_json else out.print(tables.fields(shown))
