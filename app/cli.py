"""The ``racer`` command. Reads arguments, calls, prints; no logic.

Exit codes: 0 done, 1 the data or the request was refused, 2 usage or configuration, 3 the gateway
or its candidates cannot be reached, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app import report, settings
from app.client import GatewayClient, GatewayUnreachable
from app.errors import SettingsError, UpstreamError
from racer_core import __version__, artifacts
from racer_core.errors import ArtifactError, RacerError
from racer_core.records.reader import read_rows
from racer_core.types import RiskTarget, Score, checked_alpha

DEFAULT_URL = "http://127.0.0.1:8080"
EXIT_REFUSED, EXIT_CONFIGURATION, EXIT_UNREACHABLE = 1, 2, 3

# Wide when nobody's terminal sets a width, so that tables stay whole in files and pipes.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
_URL = click.option("--url", default=DEFAULT_URL, show_default=True, help="A running gateway.")
_KEY = click.option("--key", envvar="RACER_DATA_KEY", show_envvar=True, help="Data key.")
_ADMIN_KEY = click.option("--key", envvar="RACER_ADMIN_KEY", show_envvar=True, help="Admin key.")
_FILE = click.Path(path_type=Path)


def main() -> None:
    """Run the command; every expected error is one sentence and an exit code."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(EXIT_CONFIGURATION)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except RacerError as exc:
        err.print(f"racer: {exc}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(_exit_code(exc))


def _exit_code(exc: RacerError) -> int:
    if isinstance(exc, SettingsError | ArtifactError):
        return EXIT_CONFIGURATION
    if isinstance(exc, GatewayUnreachable | UpstreamError):
        return EXIT_UNREACHABLE
    return EXIT_REFUSED


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="racer")
def cli() -> None:
    """Route each query to a calibrated set of language models."""


@cli.command()
@click.option("--config", type=_FILE, required=True, help="The YAML configuration.")
@click.option("--host", help="Instead of the configuration's.")
@click.option("--port", type=int, help="Instead of the configuration's.")
def serve(config: Path, host: str | None, port: int | None) -> None:
    """Run the gateway."""
    import uvloop

    from app import server

    given: dict[str, Any] = {"host": host, "port": port}
    given = {name: value for name, value in given.items() if value is not None}
    configured, secrets = settings.load(config, **given)
    with server.bind(configured) as listener:
        uvloop.run(server.Server(configured, secrets, listener).serve_until_signalled())


@cli.command()
@click.option("--once", is_flag=True, help="Exit after the table.")
@click.option("--port", type=int, default=8080, show_default=True, help="The gateway's port.")
@click.option("--queries", type=click.IntRange(10), default=300, show_default=True)
@_JSON
def demo(once: bool, port: int, queries: int, as_json: bool) -> None:
    """Start the demo's models and the gateway, calibrate it, and measure it."""
    from app import demo as demo_module

    demo_module.run(
        port=port,
        queries=queries,
        once=once,
        quiet=as_json,
        show_result=_print_json if as_json else lambda result: out.print(*report.demo(result)),
    )


@cli.command()
@click.argument("text")
@_URL
@_KEY
@click.option("--alpha", type=float, help="Risk level; the calibration's own by default.")
@click.option("--execute", is_flag=True, help="Call the set too, and merge its answers.")
@_JSON
def route(
    text: str, url: str, key: str | None, alpha: float | None, execute: bool, as_json: bool
) -> None:
    """Ask a running gateway which models it would call for TEXT."""
    with GatewayClient(url, key) as client:
        decision = client.route(text, alpha, execute=execute)
    if as_json:
        _print_json(decision)
    else:
        out.print(report.decision(decision))


@cli.command()
@click.option("--data", type=_FILE, required=True, help="Training rows.")
@click.option("--validation", type=_FILE, required=True, help="Rows to choose tau on.")
@click.option("--out", "folder", type=_FILE, required=True, help="Where the artifact goes.")
@click.option("--router", type=click.Choice(["knn", "mlp"]), default="knn", show_default=True)
@click.option("--encoder", help="Folder, hub name or `char-ngrams`; mDeBERTa-v3-base by default.")
@click.option("--pooling", type=click.Choice(["mean", "cls"]), default="mean", show_default=True)
@click.option("--max-tokens", type=click.IntRange(8), default=512, show_default=True)
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), help="A GPU if there is one.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="What runs natively.")
@click.option("--config", type=_FILE, help="Take candidates and their parameters from here.")
@click.option("--seed", type=int, default=0, show_default=True)
@_JSON
def train(
    data: Path,
    validation: Path,
    folder: Path,
    router: Any,
    encoder: str | None,
    pooling: Any,
    max_tokens: int,
    backend: str | None,
    dtype: str | None,
    config: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Train a router on labelled rows and save it as an artifact."""
    from racer_core.offline import train as training

    specs = _candidates(config)
    pool = [spec.name for spec in specs] if specs else None
    rows, held_out = read_rows(data, pool), read_rows(validation, pool)
    choice = training.EncoderChoice(
        name=encoder or _default_encoder(),
        pooling=pooling,
        max_tokens=max_tokens,
        backend=backend,
        dtype=dtype,
    )
    with _progress(as_json) as progress:
        artifact = training.train(
            rows,
            held_out,
            folder,
            encoder=choice.open(),
            kind=router,
            seed=seed,
            candidates=specs,
            progress=progress,
        )
    result = report.artifact_summary(artifact, folder, len(rows))
    _print_json(result) if as_json else out.print(report.fields(result))


@cli.command()
@click.argument("rows", type=_FILE)
@_URL
@_ADMIN_KEY
@click.option("--alpha", type=float)
@click.option("--delta", type=float, help="P(risk <= alpha) >= 1 - delta instead of the mean.")
@click.option("--score", type=click.Choice([each.value for each in Score]))
@click.option("--risk-target", type=click.Choice([each.value for each in RiskTarget]))
@click.option("--r", type=click.IntRange(1), help="Right candidates wanted in the set.")
@click.option("--smoothing", type=click.Choice(["none", "hash"]))
@click.option("--expected-active-id", help="Change nothing if another calibration is active.")
@click.option("--allow-overlap", is_flag=True, help="Accept training rows; the guarantee is void.")
@click.option("--activate/--no-activate", default=True, show_default=True)
@click.option("--dry-run", is_flag=True, help="Show the evidence, change nothing.")
@_JSON
def calibrate(
    rows: Path,
    url: str,
    key: str | None,
    alpha: float | None,
    delta: float | None,
    score: str | None,
    risk_target: str | None,
    r: int | None,
    smoothing: str | None,
    expected_active_id: str | None,
    allow_overlap: bool,
    activate: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Upload labelled ROWS to a running gateway."""
    options = {
        "alpha": alpha,
        "delta": delta,
        "score": score,
        "risk_target": risk_target,
        "r": r,
        "smoothing": smoothing,
        "expected_active_id": expected_active_id,
        "allow_overlap": allow_overlap,
        "activate": activate,
        "dry_run": dry_run,
    }
    with _busy("calibrating", as_json), GatewayClient(url, key) as client:
        result = client.calibrate(rows, options)
    shown = {name: result[name] for name in ("id", "active")} | result["evidence"]
    _print_json(result) if as_json else out.print(report.fields(shown))


@cli.command()
@click.option("--data", type=_FILE, multiple=True, required=True, help="Labelled rows; repeatable.")
@click.option("--encoder", help="Folder, hub name or `char-ngrams`; mDeBERTa-v3-base by default.")
@click.option("--router", type=click.Choice(["knn", "mlp"]), default="knn", show_default=True)
@click.option("--splits", type=click.IntRange(1), default=100, show_default=True)
@click.option("--alpha", "alphas", type=float, multiple=True, default=(0.05, 0.1, 0.2))
@click.option("--equality", type=click.Choice(["choice", "number", "exact"]), default="exact")
@click.option("--smoothing", is_flag=True, help="Break ties at random, in both phases.")
@click.option("--max-tokens", type=click.IntRange(8), default=512, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@_JSON
def evaluate(
    data: tuple[Path, ...],
    encoder: str | None,
    router: Any,
    splits: int,
    alphas: tuple[float, ...],
    equality: str,
    smoothing: bool,
    max_tokens: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure risk, size and accuracy on labelled rows over random splits."""
    from racer_core.aggregation.answers import Equality
    from racer_core.offline import evaluate as evaluation
    from racer_core.offline.train import EncoderChoice

    protocol = evaluation.Protocol(
        splits=splits,
        alphas=tuple(checked_alpha(alpha) for alpha in alphas),
        smoothing=smoothing,
        equality=Equality(equality),
        seed=seed,
    )
    rows = evaluation.merge([read_rows(path) for path in data])
    choice = EncoderChoice(name=encoder or _default_encoder(), max_tokens=max_tokens)
    with _progress(as_json) as progress:
        result = evaluation.evaluate(
            rows, encoder=choice.open(), router=router, protocol=protocol, progress=progress
        )
    if as_json:
        _print_json(result.as_json())
    else:
        out.print(*report.evaluation(result), sep="\n")


@cli.command()
@click.option("--config", type=_FILE, required=True, help="The YAML configuration.")
@_JSON
def validate(config: Path, as_json: bool) -> None:
    """Check configuration, keys, artifact and encoder without serving."""
    from app.lifespan import open_racer

    configured, _ = settings.load(config)
    with _busy("loading artifact and encoder", as_json):
        racer = open_racer(configured)
    result = {
        "config": str(config),
        "pool": list(configured.pool),
        "router": racer.artifact.router.kind,
        "encoder": racer.encoder.spec.kind,
        "backend": racer.encoder.spec.backend,
        "dtype": racer.encoder.spec.dtype,
    }
    _print_json(result) if as_json else out.print(report.fields(result))


def _candidates(config: Path | None) -> list[artifacts.CandidateSpec] | None:
    if config is None:
        return None
    configured, _ = settings.load(config)
    return [
        artifacts.CandidateSpec(
            name=each.name, model=each.model or each.name, parameters=each.parameters
        )
        for each in configured.candidates
    ]


def _default_encoder() -> str:
    from racer_core.encoder.huggingface import DEFAULT_ENCODER

    return DEFAULT_ENCODER


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def _busy(task: str, silent: bool) -> Generator[None]:
    """A bar for work that does not tell how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = err.is_terminal and not silent  # a log has no use for a bar that moves
    with Progress(*columns, console=err, transient=True, disable=not shown) as bars:
        bars.add_task(task, total=None)
        yield


@contextmanager
def _progress(silent: bool) -> Generator[Callable[[str, int, int], None]]:
    """A bar per stage, on stderr, so that stdout stays the result."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=silent) as bars:
        stages: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            name = stage.partition(",")[0]
            if name not in stages or bars.tasks[stages[name]].total != total:
                stages[name] = bars.add_task(stage, total=total)
            bars.update(stages[name], completed=done, description=stage)

        yield show
