"""``racer train``: trains a router and saves it as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import FILE, JSON, MAX_TOKENS, SEED, out, print_json, progress_bars
from racer_core import artifacts, strict_json
from racer_core.aggregation.answers import Equality
from racer_core.encoder.huggingface import DEFAULT_ENCODER
from racer_core.errors import InputError
from racer_core.records.reader import read_rows
from racer_core.routers import registry


def _known_router(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if name not in registry.names():
        raise click.BadParameter(f"{name!r} is none of {', '.join(registry.names())}.")
    return name


def _routers_like(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    return [name for name in registry.names() if name.startswith(begun)]


def _router_options(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Parse values that are JSON; take everything else as text."""
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{each!r} is not key=value.")
        try:
            options[name] = strict_json.loads(value)
        except InputError:
            options[name] = value
    return options


@click.command()
@click.option("--data", type=FILE, required=True, help="Labelled training rows.")
@click.option(
    "--validation",
    type=FILE,
    required=True,
    help="Validation rows, for choosing tau, k and other hyperparameters.",
)
@click.option("--out", "folder", type=FILE, required=True, help="Folder for the artifact.")
@click.option(
    "--router",
    callback=_known_router,
    shell_complete=_routers_like,
    default="knn",
    show_default=True,
    help="knn, mlp, routerdc, or a router of an installed package (docs/routers.md).",
)
@click.option(
    "--router-option",
    "options",
    multiple=True,
    callback=_router_options,
    help="Hyperparameter of the router as key=value; repeatable.",
)
@click.option(
    "--steps", type=click.IntRange(1), help="Training steps of RouterDC, epochs of an MLP."
)
@click.option("--resume", is_flag=True, help="Resume an interrupted training.")
@click.option("--encoder", help="Folder, hub name or `char-ngrams`; default: mDeBERTa-v3-base.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="Pooling of token vectors: their mean, or the first token's.",
)
@MAX_TOKENS
@click.option(
    "--backend", type=click.Choice(["cpu", "cuda"]), help="Default: `cuda` if there is a GPU."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Default: the format that the device runs natively.",
)
@click.option(
    "--forward",
    type=click.Choice(["transformers", "lean"]),
    help="Implementation of the encoder; `lean` is RACER's own.",
)
@click.option("--lexical", is_flag=True, help="Add hashed character n-grams to the embedding.")
@click.option(
    "--false-abstain-budget",
    "budget",
    metavar="FLOAT|off",
    default="0.01",
    show_default=True,
    help="Share of answerable queries that may be refused; keep it well below the smallest alpha.",
)
@click.option(
    "--config", type=FILE, help="Take candidates and their parameters from this configuration."
)
@SEED
@JSON
def train(
    data: Path,
    validation: Path,
    folder: Path,
    router: str,
    options: dict[str, Any],
    steps: int | None,
    resume: bool,
    encoder: str | None,
    pooling: Any,
    max_tokens: int,
    backend: str | None,
    dtype: str | None,
    forward: Any,
    lexical: bool,
    budget: str,
    config: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Train a router on labelled rows and save it as an artifact."""
    from app.tools import evaluation
    from racer_core.offline import train as training

    configured = settings.load(config)[0] if config else None
    specs = _candidates(configured) if configured else None
    pool = configured.pool if configured else None
    rows, held_out = read_rows(data, pool), read_rows(validation, pool)
    choice = training.EncoderChoice(
        name=encoder or DEFAULT_ENCODER,
        pooling=pooling,
        max_tokens=max_tokens,
        backend=backend,
        dtype=dtype,
        forward=forward,
        lexical=lexical,
    )
    with progress_bars(as_json) as progress:
        artifact = training.train(
            rows,
            held_out,
            folder,
            encoder=choice.open(),
            kind=router,
            options=options,
            steps=steps,
            resume=resume,
            seed=seed,
            candidates=specs,
            false_abstain_budget=evaluation.false_abstain_budget(budget),
            equality=configured.aggregation.equality if configured else Equality.EXACT,
            progress=progress,
        )
    result = tables.artifact_summary(artifact, folder, len(rows))
    print_json(result) if as_json else out.print(tables.fields(result))


def _candidates(configured: settings.Settings) -> list[artifacts.CandidateSpec]:
    return [
        artifacts.CandidateSpec(
            name=each.name, model=each.model or each.name, parameters=each.parameters
        )
        for each in configured.candidates
    ]
