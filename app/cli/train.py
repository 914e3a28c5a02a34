"""``racer train``: trains a router and saves it as an artifact."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import (
    FILE,
    JSON,
    MAX_TOKENS,
    OPTIONAL_CONFIG,
    ROWS_KIND,
    SEED,
    out,
    print_json,
    progress_bars,
)
from app.cli.router_options import FALSE_ABSTAIN_BUDGET, ROUTER_OPTIONS, known_router, routers_like
from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.reasoning import REASONING
from racer_core.errors import InputError
from racer_core.types import RowsKind


@click.command()
@click.option("--data", type=FILE, required=True, help="Labelled training rows.")
@click.option(
    "--validation",
    type=FILE,
    help="Validation rows, for choosing tau and the weights of `cover`; default: none, which keeps "
    "their defaults and never abstains.",
)
@click.option("--out", "folder", type=FILE, required=True, help="Folder for the artifact.")
@click.option(
    "--router",
    callback=known_router,
    shell_complete=routers_like,
    default="knn",
    show_default=True,
    help="knn, mlp, routerdc, or a router of an installed package (docs/routers.md).",
)
@ROUTER_OPTIONS
@click.option(
    "--steps", type=click.IntRange(1), help="Training steps of RouterDC, epochs of an MLP."
)
@click.option("--resume", is_flag=True, help="Resume an interrupted training.")
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    help="Folder (a transformer, or word vectors), hub name (NAME@REVISION: another commit), "
    "`wordllama` or `char-ngrams`; default: microsoft/mdeberta-v3-base on a GPU, else "
    "`wordllama`. Of several, or of `auto`, the cheapest that is as good is chosen.",
)
@click.option(
    "--copy-encoder",
    "copies",
    is_flag=True,
    help="Copy the encoder into the artifact, with its weights as safetensors.",
)
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
    type=click.Choice(["float32", "bfloat16", "int8"]),
    help="Number format of the encoder; default: the device's native one. int8 exports it into the "
    "artifact, for ONNX Runtime on a CPU.",
)
@click.option(
    "--forward",
    type=click.Choice(["transformers", "lean"]),
    help="Implementation of the encoder; `lean` is RACER's own.",
)
@click.option("--lexical", is_flag=True, help="Add hashed character n-grams to the embedding.")
@FALSE_ABSTAIN_BUDGET
@OPTIONAL_CONFIG
@ROWS_KIND
@SEED
@JSON
def train(
    data: Path,
    validation: Path | None,
    folder: Path,
    router: str,
    options: dict[str, Any],
    steps: int | None,
    resume: bool,
    encoders: tuple[str, ...],
    copies: bool,
    pooling: Any,
    max_tokens: int,
    backend: str | None,
    dtype: str | None,
    forward: Any,
    lexical: bool,
    budget: str,
    config: Path | None,
    kind: str | None,
    seed: int,
    as_json: bool,
) -> dict[str, Any]:
    """Train a router on labelled rows and save it as an artifact.

    Rows without a label are left out. Of a gateway's sample (racer samples, racer split) the
    artifact notes the decisions, and `racer calibrate` leaves them out.
    """
    from app.tools import evaluation
    from app.tools.hub_probe import check_hub
    from app.tools.router_rows import read_rows
    from app.upstream import served_models
    from racer_core.offline import train as training
    from racer_core.offline.encoder_choice import choose_encoder, default_encoder, offered
    from racer_core.offline.fit import RouterChoice
    from racer_core.offline.reporting import RememberingEncoder
    from racer_core.offline.training_rows import RowCounts, with_labels

    configured = served_models.filled(settings.read(config), os.environ) if config else None
    transformer = "cuda" if dtype or forward else backend  # word vectors have no such options
    names = offered(encoders) or (default_encoder(router, transformer),)
    for each in names:
        check_hub(each)
    specs = _candidates(configured) if configured else None
    given_kind = None if kind is None else RowsKind(kind)
    rows = read_rows(data, configured, given_kind)
    held_out = None if validation is None else read_rows(validation, configured, given_kind)
    choice = training.EncoderChoice(
        name=names[0],
        pooling=pooling,
        max_tokens=max_tokens,
        backend=backend,
        dtype=dtype,
        forward=forward,
        lexical=lexical,
        export_to=_export_folder(folder, encoders, router, exports=dtype == "int8")
        if copies or dtype == "int8"
        else None,
    )
    opened = {name: RememberingEncoder(replace(choice, name=name).open()) for name in names}
    with progress_bars(as_json) as progress:
        name, compared = choose_encoder(
            opened,
            rows,
            held_out,
            choice=RouterChoice(kind=router, options=options, steps=steps, seed=seed),
            progress=progress,
        )
        comparison = [asdict(each) for each in compared]
        artifact = training.train(
            rows,
            held_out,
            folder,
            encoder=opened[name],
            kind=router,
            options=options,
            steps=steps,
            resume=resume,
            seed=seed,
            candidates=specs,
            false_abstain_budget=evaluation.false_abstain_budget(budget),
            equality=configured.aggregation.equality if configured else Equality.AUTO,
            reasoning=configured.aggregation.reasoning if configured else REASONING,
            report={"encoders": comparison} if comparison else None,
            progress=progress,
        )
    counts = {name: asdict(each) for name, each in RowCounts.by_group(rows).items()}
    used = (with_labels(each, "rows") for each in (rows, held_out) if each is not None)
    result = tables.artifact_summary(artifact, folder, *used)
    shown = result | {"encoders": comparison, "training_rows_of": counts}
    if as_json:
        print_json(shown)
        return shown
    if comparison:
        out.print(tables.encoders(comparison))
    out.print(tables.fields(result))
    out.print(tables.training_rows(counts))
    return shown


def _export_folder(folder: Path, encoders: tuple[str, ...], router: str, *, exports: bool) -> Path:
    """Where a copied or an int8 encoder goes. Raises InputError if it is not the artifact's."""
    option = "--dtype int8" if exports else "--copy-encoder"
    if len(encoders) > 1 or "auto" in encoders:
        raise InputError(f"{option} puts the encoder into the artifact: name one --encoder")
    if router == "routerdc" and exports:
        raise InputError(
            "--dtype int8 has no weights that RouterDC could train: train in another format, then "
            "`--router knn` on the artifact's folder `encoder`"
        )
    if router == "routerdc":
        raise InputError(
            "RouterDC puts the encoder that it trains into the artifact: leave out --copy-encoder"
        )
    return folder / "encoder"


def _candidates(configured: settings.Settings) -> list[artifacts.CandidateSpec]:
    return [
        artifacts.CandidateSpec(
            name=each.name, model=each.model or each.name, parameters=each.parameters
        )
        for each in configured.candidates
    ]
