"""``racer label``: makes labelled rows from the candidates' graded answers."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app import settings
from app.cli import tables
from app.cli.console import (
    ADMIN_KEY,
    CONFIG,
    FILE,
    JSON,
    JUDGE_CALLS,
    JUDGE_COST,
    LATE_URL,
    err,
    gateway_address,
    out,
    print_json,
    progress_bars,
)
from app.cli.request_options import takes_shapes
from app.tools.gateway_client import GatewayClient
from racer_core.aggregation.grading import Grade
from racer_core.aggregation.vote import Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.settings import Settings
    from app.tools.labelling.confidences import RatingOptions
    from app.tools.labelling.grading import GradingOptions
    from app.tools.labelling.run import CallForecast, LabellingReport
    from app.tools.labelling.shapes import ShapeOptions
    from racer_core.records.questions import Question


@click.command()
@click.argument("questions", type=FILE, required=False)
@CONFIG
@click.option(
    "--out",
    "rows",
    type=FILE,
    help="File for the rows (.jsonl); an existing one is appended to.",
)
@click.option(
    "--grade",
    "kind",
    type=click.Choice([*(each.value for each in Grade), "judge", "checker"]),
    help="How an answer is compared with the reference; default: what the references ask for. "
    "`checker`: with `--from-shadow` alone.",
)
@click.option(
    "--reference",
    "references",
    type=FILE,
    help="File of the references, of the same format, where QUESTIONS have none.",
)
@click.option("--judge", help="With `--grade judge`: a candidate, or the URL of another server.")
@click.option("--judge-model", help="Model name of the judge at that URL.")
@click.option(
    "--judge-key", envvar="RACER_JUDGE_KEY", show_envvar=True, help="API key for that URL."
)
@JUDGE_CALLS
@JUDGE_COST
@click.option(
    "--evaluator",
    "evaluators",
    metavar="CANDIDATE",
    multiple=True,
    help="A candidate that rates every answer; repeatable. `racer tune` chooses among several.",
)
@click.option(
    "--confidence",
    "confidences",
    type=click.Choice(["verbal", "p_true"]),
    multiple=True,
    help="Kind of rating; repeatable. Default with `--evaluator`: both; without it, the "
    "configuration's evaluators rate.",
)
@click.option(
    "--page",
    is_flag=True,
    help="People grade, without references: the command serves the tab Label, and prints its link.",
)
@click.option("--page-host", default="127.0.0.1", show_default=True, help="Its address.")
@click.option("--page-port", type=click.IntRange(0, 65535), default=0, help="Its port.")
@takes_shapes
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Questions processed at the same time.",
)
@click.option(
    "--through-gateway",
    is_flag=True,
    help="Call candidates through the gateway at --url, where only it reaches them.",
)
@click.option(
    "--from-shadow",
    is_flag=True,
    help="Label the stored answers of live traffic at a gateway instead, by `--grade judge`, or by "
    "`--grade checker`: the applications' `checker`.",
)
@click.option("--application", help="With `--from-shadow`: only this application's requests.")
@LATE_URL
@ADMIN_KEY
@JSON
def label(
    questions: Path | None,
    config: Path,
    rows: Path | None,
    kind: str | None,
    references: Path | None,
    judge: str | None,
    judge_model: str | None,
    judge_key: str | None,
    judge_calls: int | None,
    judge_cost: float | None,
    evaluators: tuple[str, ...],
    confidences: tuple[str, ...],
    page: bool,
    page_host: str,
    page_port: int,
    shapes: ShapeOptions,
    concurrency: int,
    through_gateway: bool,
    from_shadow: bool,
    application: str | None,
    url: str | None,
    key: str | None,
    as_json: bool,
) -> dict[str, Any] | None:
    """Send QUESTIONS (query and reference) to every candidate, grade the answers, write rows.

    With `--like` and the options below it, questions are asked as your requests are sent, so that
    `racer calibrate` certifies those; `racer doctor` prints the command.

    After an interruption the same command resumes and repeats no finished call. By another grade,
    judge or reference, stored answers are graded anew, and no candidate is called. With an
    evaluator, rows of an earlier run are rated, too. With `--from-shadow` a judge's verdicts on
    sampled requests go to the gateway; `racer calibrate` corrects them by people's labels. A
    checker's are labels.
    """
    from app.tools.bootstrap.labels import JUDGE, grade_of_file
    from app.tools.labelling.grading import GradingOptions
    from app.tools.labelling.judge import JudgeCap
    from app.tools.labelling.people import KIND as PEOPLE

    if page and (kind or judge or from_shadow):
        raise click.UsageError("--page has people grade: leave out --grade, --judge, --from-shadow")
    if page:
        kind = PEOPLE
    elif kind is None and judge is not None:
        kind = JUDGE
    elif kind is None and from_shadow:
        raise click.UsageError("--from-shadow needs --grade judge or --grade checker")
    elif kind is None:
        if questions is None:
            raise click.UsageError("name the file of QUESTIONS")
        kind = grade_of_file(questions, references, settings.read(config))
    grading = GradingOptions(
        kind=kind,
        judge=judge,
        judge_model=judge_model,
        judge_key=judge_key,
        cap=JudgeCap(calls=judge_calls, cost=judge_cost),
    )
    if from_shadow:
        others = questions or references or rows or evaluators or confidences or through_gateway
        if others or shapes.is_any:
            raise click.UsageError(
                "--from-shadow reads requests and answers from the gateway: leave out QUESTIONS, "
                "--reference, --out, --evaluator, --confidence, --through-gateway and the "
                "conditions of requests"
            )
        _label_samples(config, grading, application, concurrency, url, key, as_json=as_json)
        return None
    if kind == "checker":
        raise click.UsageError("--grade checker needs --from-shadow: questions have references")
    if questions is None or rows is None:
        missing = "argument QUESTIONS" if questions is None else "option --out"
        raise click.UsageError(f"Missing {missing}; only --from-shadow works without")
    if application is not None:
        raise click.UsageError("--application needs --from-shadow")
    rating = _rating(evaluators, confidences)
    report = _label_questions(
        config,
        questions,
        references,
        rows,
        grading,
        rating,
        concurrency,
        _gateway(config, url, key, shapes, is_called=through_gateway),
        as_json=as_json,
        shapes=shapes,
        is_called=through_gateway or bool(shapes.likes),
        page=(page_host, page_port) if page else None,
    )
    _say_shortfalls(report)
    shown = {"out": str(rows), **report.as_json()}
    if as_json:
        print_json(shown)
        return shown
    out.print(
        tables.fields({name: shown[name] for name in shown if not isinstance(shown[name], dict)})
    )
    if len(report.rows.kinds) > 1:
        out.print(tables.labelled_kinds(report.rows))
    out.print(tables.candidates(report))
    return shown


def _gateway(
    config: Path, url: str | None, key: str | None, shapes: ShapeOptions, *, is_called: bool
) -> tuple[str, str | None] | None:
    """URL and key of the gateway; None: it is not asked.

    Its admin endpoints, which tell shapes, have a socket with the data routes, too.
    """
    if not (is_called or shapes.likes or shapes.later):
        return None
    return url or gateway_address(config, admin=bool(shapes.likes)), key


def _rating(evaluators: tuple[str, ...], confidences: tuple[str, ...]) -> RatingOptions | None:
    """The ratings that the options name; None for none."""
    from app.tools.labelling.confidences import KINDS, RatingOptions

    if not evaluators and not confidences:
        return None
    kinds = tuple(Weight(each) for each in dict.fromkeys(confidences)) or KINDS
    return RatingOptions(evaluators=evaluators, kinds=kinds)


def _label_questions(
    config: Path,
    questions: Path,
    references: Path | None,
    rows: Path,
    grading: GradingOptions,
    rating: RatingOptions | None,
    concurrency: int,
    gateway: tuple[str, str | None] | None,
    *,
    as_json: bool,
    shapes: ShapeOptions,
    is_called: bool,
    page: tuple[str, int] | None,
) -> LabellingReport:
    """Label the questions of a file: directly or through a gateway.

    Args:
        config: The configuration.
        questions: The file.
        references: A file of references; None: the questions have them.
        rows: The file of rows.
        grading: How answers are graded.
        rating: The evaluators; None: none.
        concurrency: Questions at once.
        gateway: URL and key of the gateway; None: it is not asked.
        as_json: Nothing is shown meanwhile.
        shapes: How the questions are asked.
        is_called: Candidates are called through the gateway.
        page: Address and port of the page where people grade; None: they do not.
    """
    from app.cli.label_page import LabelPage
    from app.tools.labelling import run
    from app.tools.labelling.people import LabelDesk, in_random_order, without_references
    from app.tools.labelling.through_gateway import check_pool, through_gateway
    from app.upstream import served_models
    from racer_core.records.questions import read_questions, with_references

    through = None
    if gateway is None or not is_called:
        configured, secrets = settings.load(config, serves=False)
        configured = served_models.filled(configured, os.environ)
    else:
        configured = served_models.filled(settings.read(config), os.environ)
        through = through_gateway(configured, *gateway, os.environ)
        secrets = through[1]
    questions_read = read_questions(questions, configured.text_of)
    if references is not None:
        given = read_questions(references, configured.text_of)
        questions_read = with_references(questions_read, given, references.name)
    if gateway is not None:
        with GatewayClient(*gateway) as client:
            check_pool(client, configured.pool)
            questions_read = _asked_as(questions_read, shapes, configured, rows, client)
    elif shapes.is_any:
        questions_read = _asked_as(questions_read, shapes, configured, rows, None)
    serving = None
    with ExitStack() as stack:
        if page is not None:
            questions_read = in_random_order(without_references(questions_read))
            served = stack.enter_context(closing(LabelPage(*page)))
            desk = LabelDesk(configured, partial(say_link, served.link))
            grading = replace(grading, desk=desk)
            serving = served.open(desk)
        progress = stack.enter_context(progress_bars(as_json))
        return run.run(
            questions_read,
            questions.name,
            rows,
            grading,
            settings=configured,
            secrets=secrets,
            concurrency=concurrency,
            progress=progress,
            rating=rating,
            announce=None if rating is None else _announce,
            on_incomplete=None if as_json else lambda report: err.print(tables.candidates(report)),
            through=through,
            serving=serving,
        )


def say_link(link: str) -> None:
    """Where the answers are labelled."""
    err.print(
        f"racer: label in a browser at {link} (keys R right, W wrong, U change). Everyone with the "
        "link may label while this command runs; Ctrl-C stops it, and the same command goes on",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _asked_as(
    questions: Sequence[Question],
    shapes: ShapeOptions,
    configured: Settings,
    rows: Path,
    gateway: GatewayClient | None,
) -> Sequence[Question]:
    """The questions under the conditions of requests; those that trained the router are left out.

    Those of explicit conditions may train another router.
    """
    from app.tools.labelling.shapes import EarlierAnswers, shaped, untrained

    if not shapes.is_any:
        return questions
    coverage = answers = None
    if shapes.likes:
        assert gateway is not None
        coverage = gateway.coverage()
        left = untrained(questions, configured)
        if len(left) < len(questions):
            err.print(
                f"racer: {len(questions) - len(left)} of {len(questions)} questions trained the "
                "router and are left out",
                soft_wrap=True,
            )
        questions = left
    if gateway is not None:
        answers = EarlierAnswers(gateway, rows.with_name(f"{rows.name}.turns"))
    return shaped(questions, shapes, configured, coverage, answers)


def _say_shortfalls(report: LabellingReport) -> None:
    """Say on the error stream what failed or was cut. Raises KeyboardInterrupt after a stop."""
    if report.ratings is not None and report.ratings.failed:
        err.print(
            f"racer: {report.ratings.failed} ratings failed and are null in the rows "
            f"({'; '.join(report.ratings.causes())})",
            soft_wrap=True,
        )
    if report.interrupted:
        err.print("racer: stopped; run the same command again to resume", soft_wrap=True)
        raise KeyboardInterrupt
    if report.rows.cut:
        counts = ", ".join(f"{name} {count}" for name, count in report.rows.cut.items())
        err.print(
            f"racer: answers that the token limit cut, of {report.labelled} rows: {counts}. They "
            "count as given; a larger `max_tokens` in `parameters` needs a new file",
            soft_wrap=True,
        )


def _label_samples(
    config: Path,
    grading: GradingOptions,
    application: str | None,
    concurrency: int,
    url: str | None,
    key: str | None,
    *,
    as_json: bool,
) -> None:
    """Have the samples of a gateway judged or checked, and print how many."""
    from app.tools.labelling.shadow_checking import check_samples
    from app.tools.labelling.shadow_judging import JudgingReport, judge_samples

    if grading.kind not in ("judge", "checker"):
        raise click.UsageError(
            f"--grade {grading.kind} compares with references, which live requests lack: use "
            "--grade judge, --grade checker with an application's `checker`, or feedback"
        )
    if grading.kind == "checker" and grading.judge is not None:
        raise click.UsageError("--judge needs --grade judge")
    configured, secrets = settings.load(config)
    address = url or gateway_address(config, admin=True)
    with GatewayClient(address, key) as gateway, progress_bars(as_json) as progress:
        options: dict[str, Any] = {
            "settings": configured,
            "secrets": secrets,
            "application": application,
            "concurrency": concurrency,
            "progress": progress,
        }
        if grading.kind == "checker":
            report = check_samples(gateway, **options)
        else:
            report = judge_samples(gateway, grading, **options)
    if isinstance(report, JudgingReport) and report.interrupted:
        err.print("racer: stopped; run the same command again to resume", soft_wrap=True)
        raise KeyboardInterrupt
    if as_json:
        print_json(report.as_json())
    else:
        out.print(tables.fields(report.as_json()))


def _announce(forecast: CallForecast) -> None:
    """Print the cost of a run with evaluators before its first call."""
    err.print(
        f"racer: {forecast.candidates:,} calls to candidates and at most "
        f"{forecast.evaluators:,} calls to evaluators are left (equal texts are rated once)",
        soft_wrap=True,
    )
