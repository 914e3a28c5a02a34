"""``evaluate``: what labelled rows say about it all."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import tables
from app.cli.console import FILE, JSON, MAX_TOKENS, SEED, out, print_json, progress_bars
from racer_core.aggregation.answers import Equality
from racer_core.encoder.huggingface import DEFAULT_ENCODER
from racer_core.errors import InputError
from racer_core.types import RiskTarget, Score


def _assertions(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> list[Any]:
    """Read before anything is measured; what cannot be read is no exit code 1."""
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
    help="Labelled rows of a benchmark; repeatable. Named after the file where no NAME is given.",
)
@click.option("--encoder", help="Folder, hub name or `char-ngrams`; mDeBERTa-v3-base by default.")
@click.option("--lexical", is_flag=True, help="Hashed character n-grams beside the encoder.")
@MAX_TOKENS
@click.option(
    "--router",
    type=click.Choice(["knn", "mlp"]),
    default="knn",
    show_default=True,
    help="Trained anew on every split.",
)
@click.option(
    "--splits",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Random divisions of the rows.",
)
@click.option("--alpha", "alphas", type=float, multiple=True, help="Repeatable; the paper's grid.")
@click.option(
    "--score",
    "scores",
    type=click.Choice([each.value for each in Score]),
    multiple=True,
    help="Repeatable; all by default, cover_cost where prices are given.",
)
@click.option(
    "--risk-target",
    "risk_targets",
    type=click.Choice([each.value for each in RiskTarget]),
    multiple=True,
    help="Repeatable; both by default.",
)
@click.option(
    "--calibrated",
    type=click.Choice(["each", "merged"]),
    default="each",
    show_default=True,
    help="Thresholds for each benchmark, or for all of them together.",
)
@click.option(
    "--share",
    "shares",
    metavar="NAME=TRAIN,CALIBRATION,VALIDATION",
    multiple=True,
    help="Shares of a benchmark's rows, or of all others (NAME `all`); the paper's 0.4,0.5,0.1.",
)
@click.option(
    "--equality",
    type=click.Choice(["choice", "number", "exact"]),
    default="exact",
    show_default=True,
    help="When two answers are the same to the vote.",
)
@click.option("--smoothing", is_flag=True, help="Break ties at random, in both phases.")
@click.option(
    "--false-abstain-budget",
    "budget",
    metavar="SHARE|off",
    default="0.01",
    show_default=True,
    help="Answerable validation rows that p_null may refuse.",
)
@click.option(
    "--price",
    "prices",
    metavar="CANDIDATE=NUMBER",
    multiple=True,
    help="Price of a call, for every candidate; adds cover_cost and the money spent.",
)
@SEED
@click.option("--cache", metavar="FILE|off", help="Where embeddings are kept; the user's cache.")
@click.option("--ray", metavar="ADDRESS", help="Embed over this Ray cluster.")
@click.option("--report", "folder", type=FILE, help="Folder for a page, figures and tables.")
@click.option(
    "--assert",
    "assertions",
    metavar="COMPARISON",
    multiple=True,
    callback=_assertions,
    help="Exit with 1 unless the means show it: 'risk<=alpha', 'size<=2.0'; repeatable.",
)
@JSON
def evaluate(
    data: tuple[str, ...],
    encoder: str | None,
    lexical: bool,
    max_tokens: int,
    router: Any,
    splits: int,
    alphas: tuple[float, ...],
    scores: tuple[str, ...],
    risk_targets: tuple[str, ...],
    calibrated: str,
    shares: tuple[str, ...],
    equality: str,
    smoothing: bool,
    budget: str,
    prices: tuple[str, ...],
    seed: int,
    cache: str | None,
    ray: str | None,
    folder: Path | None,
    assertions: list[Any],
    as_json: bool,
) -> None:
    """Measure risk, size and accuracy on labelled rows over random splits."""
    from app.tools import evaluation
    from racer_core.offline.assertions import check_all
    from racer_core.offline.protocol import PAPER_ALPHAS, Calibrated, Protocol
    from racer_core.offline.train import EncoderChoice

    protocol = Protocol(
        splits=splits,
        calibrated=Calibrated(calibrated),
        alphas=alphas or PAPER_ALPHAS,
        scores=tuple(map(Score, scores)) or evaluation.default_scores(prices),
        risk_targets=tuple(map(RiskTarget, risk_targets)) or tuple(RiskTarget),
        smoothing=smoothing,
        false_abstain_budget=evaluation.false_abstain_budget(budget),
        equality=Equality(equality),
        seed=seed,
    )
    arguments = evaluation.Arguments(
        data=data,
        encoder=EncoderChoice(
            name=encoder or DEFAULT_ENCODER, max_tokens=max_tokens, lexical=lexical
        ),
        router=router,
        protocol=protocol,
        shares=shares,
        prices=prices,
        cache=cache,
        ray=ray,
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
    check_all(assertions, result)
