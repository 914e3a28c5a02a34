"""``racer bootstrap``: from questions to an active calibration, by the commands in order."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from app.cli import tables
from app.cli.console import (
    ADMIN_KEY,
    CONFIG,
    FILE,
    JSON,
    LATE_URL,
    ROWS_KIND,
    err,
    gateway_address,
    out,
    print_json,
)
from app.cli.router_options import known_router, routers_like
from app.cli.split import parse_shares
from app.tools.gateway_client import GatewayClient

WAIT_S = 120.0  # for the gateway to load the artifact: its encoder may be downloaded


@click.command()
@CONFIG
@click.option(
    "--queries",
    type=FILE,
    required=True,
    help="Questions, drawn like those that will be served, as `racer label` takes them.",
)
@click.option(
    "--reference",
    "references",
    type=FILE,
    help="File of the references, of the same format, where the questions have none.",
)
@click.option(
    "--grade",
    type=click.Choice(["choice", "number", "math", "exact", "judge"]),
    help="How an answer is compared with the reference; default: `judge` with --judge, else by "
    "`aggregation.equality`.",
)
@click.option("--judge", help="A candidate that grades, or the URL of another server.")
@click.option("--judge-model", help="Model name of the judge at that URL.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Questions labelled at the same time.",
)
@click.option(
    "--share",
    "shares",
    metavar="NAME=SHARE",
    multiple=True,
    callback=parse_shares,
    help="Share of train, validation (or none) and calibration; repeatable. Default: 0.4, 0.3, 0.3;"
    " 0.4, 0, 0.6 where validation rows are too few to tune on.",
)
@click.option(
    "--router",
    callback=known_router,
    shell_complete=routers_like,
    default="knn",
    show_default=True,
    help="knn, mlp, routerdc, or a router of an installed package.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    help="As of `racer train`.",
)
@ROWS_KIND
@click.option("--alpha", type=float, help="Risk level; default: the configuration's.")
@click.option("--write", is_flag=True, help="Apply what `racer tune` chooses to the configuration.")
@click.option(
    "--out",
    "folder",
    type=FILE,
    default=Path("bootstrap"),
    show_default=True,
    help="Folder of rows and state, from which the same command goes on.",
)
@LATE_URL
@ADMIN_KEY
@JSON
def bootstrap(
    config: Path,
    queries: Path,
    references: Path | None,
    grade: str | None,
    judge: str | None,
    judge_model: str | None,
    concurrency: int,
    shares: Mapping[str, float] | None,
    router: str,
    encoders: tuple[str, ...],
    kind: str | None,
    alpha: float | None,
    write: bool,
    folder: Path,
    url: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Label questions through the running gateway, split, train, tune, evaluate and calibrate.

    Each step is the command that is shown and can be run alone. The same command again skips what
    is done, as long as nothing that it depends on has changed. A judge's key is $RACER_JUDGE_KEY.

    Without references: --judge has a model grade the answers, and `racer serve
    --calibrate-from-traffic` needs neither questions nor labels to certify that an answer is the
    whole pool's.
    """
    from app.tools.bootstrap.run import run
    from app.tools.bootstrap.steps import BootstrapOptions
    from racer_core.records.split import UNTUNED_SHARES

    if shares and (missing := UNTUNED_SHARES.keys() - shares.keys()):
        raise click.UsageError(f"--share: no share for {', '.join(sorted(missing))}")
    address = url or gateway_address(config, admin=True)  # data routes are there, too
    options = BootstrapOptions(
        config=config,
        queries=queries,
        references=references,
        grade=grade,
        judge=judge,
        judge_model=judge_model,
        concurrency=concurrency,
        shares=shares or None,
        router=router,
        encoders=encoders,
        kind=kind,
        alpha=alpha,
        write=write,
        folder=folder,
        url=address,
        data_url=url or gateway_address(config, admin=False),
        wait_s=WAIT_S,
    )
    racer = click.get_current_context().find_root().command

    def command(words: Sequence[str]) -> Any:
        # Not among the words that are shown: a key is a secret.
        secret = ["--key", key] if key and words[0] in ("label", "calibrate") else []
        return racer.main([*words, *secret], prog_name="racer", standalone_mode=False)

    # With --json the tables of the steps go to the error stream, as their progress does.
    tables_of_steps = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with GatewayClient(address, key) as gateway, tables_of_steps:
        found = run(options, gateway, command, _say)
    if as_json:
        print_json(found)
        return
    out.print(_accuracies(found["candidates"], found["rows"]["labelled"]))
    out.print(tables.fields(_fields(found)))
    for number, each in enumerate(found["next"], 1):
        out.print(f"next {number}: {each}", markup=False, highlight=False, soft_wrap=True)


def _say(text: str) -> None:
    err.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _accuracies(right: Mapping[str, float], rows: int) -> Table:
    """The share of questions that each candidate answers right."""
    table = Table("candidate", box=SIMPLE_HEAD)
    table.add_column(f"right, of {rows}", justify="right")
    for name, share in right.items():
        table.add_row(Text(name), f"{share:.1%}")
    return table


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """The report, one line for each figure."""
    calibration, evaluation, router = found["calibration"], found["evaluation"], found["router"]
    rows = ", ".join(f"{count} {name}" for name, count in found["rows"].items())
    shown = {
        "rows": rows,
        "router": f"{router['router']} on {router['encoder']}, in {router['artifact']}",
        "promise": f"{calibration['risk_target']} at alpha {calibration['alpha']:g}, score "
        f"{calibration['score']}, vote {found['vote']}",
        "tuning": _tuning(found["tuning"]),
        "measured": _measured(evaluation),
    }
    if calibration["mean_size"] is not None:
        shown["mean set"] = (
            f"{calibration['mean_size']:.2f} of {len(found['candidates'])} calls, "
            f"{calibration['calls_saved']:.0%} saved"
        )
    low, high = calibration["risk_q05"], calibration["risk_q95"]
    if low is not None and high is not None:
        shown["realised risk"] = f"{low:.3f} to {high:.3f}, with probability 90 %"
    state = "active" if calibration["active"] else "not active"
    return shown | {"calibration": f"{calibration['id']}, {state}"}


def _tuning(tuning: Mapping[str, Any]) -> str:
    if "left_out" in tuning:
        return f"left out: {tuning['left_out']}"
    chosen = tuning["chosen"]
    vote = chosen["rule"] or "no vote"
    state = "written" if tuning["written"] else "not written" if tuning["diff"] else "as configured"
    behind = f"{chosen['behind']:.1%} ± {1.96 * chosen['behind_se']:.1%} behind the best setting"
    return (
        f"score {chosen['score']}, alpha {chosen['alpha']:g}, {vote}: accuracy "
        f"{chosen['accuracy']:.1%} ({behind}) with {chosen['size']:.2f} calls; {state}"
    )


def _measured(evaluation: Mapping[str, Any]) -> str:
    if "left_out" in evaluation:
        return f"left out: {evaluation['left_out']}"
    width, accuracy = evaluation["risk_half_width"], evaluation["accuracy"]
    text = f"risk {evaluation['risk']:.3f}" + ("" if width is None else f" ± {width:.3f}")
    text += f", {evaluation['size']:.2f} calls"
    if accuracy is not None:
        text += (
            f", accuracy by majority {accuracy:.1%} (best candidate "
            f"{evaluation['best_single']:.1%}, all called {evaluation['full_pool']:.1%})"
        )
    return f"{text}; {evaluation['splits']} splits of {evaluation['test']} test rows"
