"""``racer evaluate``: measures risk, set size and accuracy on labelled rows."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from app.cli import tables
from app.cli.console import (
    FILE,
    JSON,
    MAX_TOKENS,
    ROWS_KIND,
    SEED,
    err,
    out,
    print_json,
    progress_bars,
)
from app.cli.router_options import FALSE_ABSTAIN_BUDGET, ROUTER_OPTIONS, known_router, routers_like
from racer_core.aggregation.answers import Equality
from racer_core.errors import InputError
from racer_core.records.conversation import RoutedText
from racer_core.types import BINARY_TARGETS, RiskTarget, RowsKind, Score

if TYPE_CHECKING:
    from racer_core.offline.conversations import ConversationEvaluation
    from racer_core.offline.evaluation_result import Evaluation

BY_GROUP = "static_by_group"  # a control; racer_core.offline is imported when it is needed


def _assertions(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> list[Any]:
    """Parse before anything is measured, so that a syntax error is exit code 2 and not 1."""
    from racer_core.offline.assertions import Assertion

    try:
        return [Assertion.parse(each) for each in given]
    except InputError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@click.option(
    "--data",
    metavar="[NAME=]FILE",
    multiple=True,
    required=True,
    help="Labelled rows of a benchmark; repeatable. NAME defaults to the file's.",
)
@click.option(
    "--encoder",
    help="Folder (a transformer, or word vectors), hub name (NAME@REVISION: another commit), "
    "`wordllama` or `char-ngrams`; default: as `racer train`.",
)
@click.option("--lexical", is_flag=True, help="Add hashed character n-grams to the embedding.")
@MAX_TOKENS
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Number format of the encoder; default: the device's native one.",
)
@click.option(
    "--router",
    callback=known_router,
    shell_complete=routers_like,
    default="knn",
    show_default=True,
    help="knn, mlp or routerdc, or a router of an installed package.",
)
@ROUTER_OPTIONS
@click.option(
    "--artifact",
    type=FILE,
    help="A trained router instead; its own rows are left out.",
)
@click.option(
    "--scores",
    "matrix",
    type=FILE,
    help="A matrix of scores instead: .npy, .npz, .jsonl or .parquet.",
)
@click.option(
    "--conversations",
    "conversation_text",
    type=click.Choice(get_args(RoutedText)),
    help="The rows are all turns of conversations, of which --artifact reads this text: the mean "
    "risk of a conversation, calls and what prompt caches spare, by --alpha, --splits, --score, "
    "--risk-target and --seed.",
)
@click.option(
    "--divisions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Draws of the training rows, which share the splits; the spread includes them.",
)
@click.option(
    "--splits",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of random splits of the other rows.",
)
@click.option(
    "--alpha",
    "alphas",
    type=float,
    multiple=True,
    help="Risk level; repeatable. Default: the paper's grid.",
)
@click.option(
    "--score",
    "scores",
    type=click.Choice([*(each.value for each in Score), BY_GROUP]),
    multiple=True,
    help="Nonconformity score; repeatable. Default: all (cover_cost with prices, "
    "static_by_group with several groups).",
)
@click.option(
    "--risk-target",
    "risk_targets",
    type=click.Choice([each.value for each in RiskTarget]),
    multiple=True,
    help="Which risk alpha bounds; repeatable. `quality` stands alone. Default: the others.",
)
@click.option(
    "--calibrated",
    type=click.Choice(["each", "merged"]),
    default="each",
    show_default=True,
    help="One threshold per benchmark, or one for all benchmarks together.",
)
@click.option(
    "--share",
    "shares",
    metavar="NAME=TRAIN,CALIBRATION,VALIDATION",
    multiple=True,
    help="Split of a benchmark's rows (NAME `all`: of all others). Default: 0.4,0.5,0.1.",
)
@click.option(
    "--equality",
    type=click.Choice([each.value for each in Equality]),
    default=Equality.AUTO.value,
    show_default=True,
    help="When the vote counts two answers as equal, as `aggregation.equality`; the majority is "
    "also counted by every other equality that the answers allow.",
)
@FALSE_ABSTAIN_BUDGET
@click.option(
    "--price",
    "prices",
    metavar="CANDIDATE=PRICE",
    multiple=True,
    help="As `candidates[].price`: the price of a call, or `{input: 0.15, output: 0.6}` (rows must "
    "record their calls); once per candidate. Adds cover_cost and the cost.",
)
@ROWS_KIND
@SEED
@click.option(
    "--cache",
    metavar="FILE|off",
    help="File for cached embeddings; default: in the user's cache folder.",
)
@click.option(
    "--report",
    "folder",
    type=FILE,
    help="Write a report to this folder: an HTML page, Markdown and JSON.",
)
@click.option(
    "--assert",
    "assertions",
    metavar="COMPARISON",
    multiple=True,
    callback=_assertions,
    help="Exit with 1 unless the table's means hold it: 'risk<=alpha', 'size<=2.0'; repeatable.",
)
@JSON
def evaluate(
    data: tuple[str, ...],
    encoder: str | None,
    lexical: bool,
    max_tokens: int,
    dtype: str | None,
    router: str,
    options: dict[str, Any],
    artifact: Path | None,
    matrix: Path | None,
    conversation_text: RoutedText | None,
    divisions: int,
    splits: int,
    alphas: tuple[float, ...],
    scores: tuple[str, ...],
    risk_targets: tuple[str, ...],
    calibrated: str,
    shares: tuple[str, ...],
    equality: str,
    budget: str,
    prices: tuple[str, ...],
    kind: str | None,
    seed: int,
    cache: str | None,
    folder: Path | None,
    assertions: list[Any],
    as_json: bool,
) -> Evaluation | ConversationEvaluation:
    """Measure risk, set size and accuracy on labelled rows over random splits."""
    if conversation_text is not None:
        return _conversations(click.get_current_context(), conversation_text)
    _refuse_several_routers(click.get_current_context())
    _refuse_votes_on_grades(click.get_current_context())
    from app.tools import evaluation
    from racer_core.offline.assertions import check_all
    from racer_core.offline.encoder_choice import default_encoder
    from racer_core.offline.protocol import PAPER_ALPHAS, CalibrationScope, Protocol, order_member
    from racer_core.offline.train import EncoderChoice

    protocol = Protocol(
        splits=splits,
        divisions=divisions,
        calibrated=CalibrationScope(calibrated),
        alphas=alphas or PAPER_ALPHAS,
        scores=tuple(map(order_member, scores)) or evaluation.default_scores(prices),
        risk_targets=tuple(map(RiskTarget, risk_targets)) or BINARY_TARGETS,
        false_abstain_budget=evaluation.false_abstain_budget(budget),
        equality=Equality(equality),
        seed=seed,
    )
    arguments = evaluation.EvaluationArguments(
        data=data,
        encoder=EncoderChoice(
            name=encoder or default_encoder(router, "cuda" if dtype else None),
            max_tokens=max_tokens,
            dtype=dtype,
            lexical=lexical,
        ),
        router=router,
        router_options=options,
        artifact=artifact,
        scores=matrix,
        protocol=protocol,
        shares=shares,
        prices=prices,
        kind=None if kind is None else RowsKind(kind),
        cache=cache,
        report=folder,
        command=shlex.join(["racer", *sys.argv[1:]]),
    )
    prepared = evaluation.prepare(arguments)
    with progress_bars(as_json) as progress:
        result = evaluation.measure(prepared, progress)
    if as_json:
        print_json(result.as_json())
    else:
        out.print(*tables.evaluation(result, alphas), sep="\n")
        if folder is not None:
            out.print(f"report: {folder / 'index.html'}", markup=False, soft_wrap=True)
    for asserted in check_all(assertions, result):
        err.print(f"racer: {asserted}", markup=False, highlight=False, soft_wrap=True)
    return result


_OF_CONVERSATIONS = {
    "data", "artifact", "conversation_text", "splits", "alphas", "scores", "risk_targets", "seed",
    "as_json",
}  # fmt: skip


def _conversations(context: click.Context, text: RoutedText) -> ConversationEvaluation:
    """Measure whole conversations; other options than these have no meaning for them."""
    from app.tools import evaluation

    given, command_line = context.params, click.core.ParameterSource.COMMANDLINE
    for each in context.command.params:
        if context.get_parameter_source(each.name or "") == command_line and (
            each.name not in _OF_CONVERSATIONS
        ):
            raise click.UsageError(
                f"--conversations and {each.opts[0]} exclude each other.", context
            )
    if given["artifact"] is None or len(given["data"]) > 1:
        raise click.UsageError("--conversations needs --artifact and one --data.", context)
    result = evaluation.measure_conversations(
        given["data"][0],
        given["artifact"],
        text=text,
        alphas=given["alphas"] or (0.05, 0.1, 0.2),
        scores=given["scores"],
        risk_targets=given["risk_targets"],
        splits=given["splits"],
        seed=given["seed"],
    )
    if given["as_json"]:
        print_json(result.as_json())
    else:
        out.print(*tables.conversations(result), sep="\n")
    return result


_ROUTER_OF = {
    "artifact": ("matrix", "router", "options", "encoder", "lexical", "max_tokens", "dtype"),
    "matrix": ("router", "options", "encoder", "lexical", "max_tokens", "dtype", "cache"),
}


def _refuse_several_routers(context: click.Context) -> None:
    """An artifact has a router and an encoder of its own; scores need neither."""
    given = click.core.ParameterSource.COMMANDLINE
    options = {each.name: each.opts[0] for each in context.command.params}
    for name, others in _ROUTER_OF.items():
        if context.params[name] is None:
            continue
        for other in others:
            if context.get_parameter_source(other) == given:
                raise click.UsageError(
                    f"{options[name]} and {options[other]} exclude each other.", context
                )


def _refuse_votes_on_grades(context: click.Context) -> None:
    """A vote counts equal answers, and grades are of single answers."""
    given = click.core.ParameterSource.COMMANDLINE
    is_graded = RiskTarget.QUALITY.value in context.params["risk_targets"]
    if is_graded and context.get_parameter_source("equality") == given:
        raise click.UsageError(
            "--equality is for votes on answers, which --risk-target quality does not measure: "
            "leave it out.",
            context,
        )
