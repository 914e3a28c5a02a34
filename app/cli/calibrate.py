"""``racer calibrate``: uploads labelled rows, or a gateway's own sample, to a running gateway."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from app.cli import calibration_report, tables
from app.cli.calibrate_answers import calibrate_answers
from app.cli.calibrate_offline import calibrate_offline
from app.cli.console import (
    ADMIN_KEY,
    CONFIG_FILE,
    FILE,
    JSON,
    LATE_URL,
    OPTIONAL_CONFIG,
    ROWS_KIND,
    SINCE,
    err,
    gateway_address,
    out,
    print_json,
    progress_bars,
)
from app.errors import GatewayRefused
from app.tools.gateway_client import GatewayClient, Progress, SampleQuery, SavedRows
from racer_core.errors import RacerError
from racer_core.types import RiskTarget, RowsKind, Score


@click.command()
@click.argument("rows", type=FILE, required=False)
@OPTIONAL_CONFIG
@LATE_URL
@ADMIN_KEY
@click.option(
    "--artifact",
    type=FILE,
    help="Calibrate without a gateway: the folder of this artifact carries the calibration then.",
)
@click.option(
    "--from-shadow",
    is_flag=True,
    help="Take the gateway's own sample of its traffic (`watching.shadow_rate`) instead of a file.",
)
@click.option(
    "--same-answer",
    is_flag=True,
    help="Calibrate the promise `same_answer` from the gateway's own sample; needs no labels.",
)
@click.option(
    "--application",
    help="Replace the rows of this application alone; those of all others stay.",
)
@SINCE
@click.option(
    "--judge",
    help="With `--from-shadow --delta`: correct this judge's verdicts; default: the one with most.",
)
@click.option(
    "--labels",
    type=click.IntRange(1),
    help="With `--from-shadow --delta`: how many labels stand beside verdicts, fixed before they "
    "were given; default: all in the tab's order.",
)
@click.option(
    "--alpha",
    type=float,
    help="Risk level that the evidence shows; the configuration serves its own.",
)
@click.option("--delta", type=float, help="P(risk <= alpha) >= 1 - delta instead of the mean.")
@click.option(
    "--score",
    type=click.Choice([each.value for each in Score]),
    help="Nonconformity score; default: the configuration's.",
)
@click.option(
    "--risk-target",
    type=click.Choice([each.value for each in RiskTarget]),
    help="Which risk alpha bounds; default: the configuration's.",
)
@click.option(
    "--r",
    type=click.IntRange(1),
    help="Number of correct candidates that the set must contain; default: 1.",
)
@click.option(
    "--max-weight",
    type=click.FloatRange(0, min_open=True),
    help="Largest `weight` of any served query; rows with weights need it.",
)
@click.option(
    "--answer-risk-max",
    type=float,
    help="Largest rate of wrong final answers among those given; uses half of the rows.",
)
@ROWS_KIND
@click.option(
    "--one-per-cluster",
    is_flag=True,
    help="Use one random row per `cluster`: a bound for random clusters.",
)
@click.option("--expected-active-id", help="Change nothing unless this calibration is active.")
@click.option(
    "--allow-overlap",
    is_flag=True,
    help="Accept rows that the router was trained on; voids the guarantee.",
)
@click.option(
    "--activate/--no-activate",
    default=True,
    show_default=True,
    help="Activate the new calibration, or only store it.",
)
@click.option("--dry-run", is_flag=True, help="Print the evidence and change nothing.")
@JSON
def calibrate(
    rows: Path | None,
    config: Path | None,
    url: str | None,
    key: str | None,
    artifact: Path | None,
    from_shadow: bool,
    same_answer: bool,
    application: str | None,
    since: str | None,
    judge: str | None,
    labels: int | None,
    alpha: float | None,
    delta: float | None,
    score: str | None,
    risk_target: str | None,
    r: int | None,
    max_weight: float | None,
    answer_risk_max: float | None,
    kind: str | None,
    one_per_cluster: bool,
    expected_active_id: str | None,
    allow_overlap: bool,
    activate: bool,
    dry_run: bool,
    as_json: bool,
) -> dict[str, Any] | None:
    """Calibrate a running gateway, or an artifact, with labelled ROWS.

    Ctrl-C cancels without a change.
    """
    if artifact is not None and (rows is None or from_shadow or same_answer):
        raise click.UsageError("--artifact takes ROWS: a gateway's sample is calibrated there")
    if same_answer:
        if rows is not None or from_shadow:
            raise click.UsageError("--same-answer takes neither ROWS nor --from-shadow")
        address = url or gateway_address(config, admin=True)
        calibrate_answers(address, key, application, dry_run=dry_run, as_json=as_json)
        return None
    if (rows is None) != from_shadow:
        raise click.UsageError("give ROWS or --from-shadow")
    for name, given in (("--judge", judge), ("--labels", labels)):
        if given is not None and (not from_shadow or delta is None):
            raise click.UsageError(f"{name} needs --from-shadow and --delta")
    options = {
        "alpha": alpha,
        "delta": delta,
        "score": score,
        "risk_target": risk_target,
        "r": r,
        "max_weight": max_weight,
        "answer_risk_max": answer_risk_max,
        "rows_kind": kind or (RowsKind.TRAFFIC.value if from_shadow else None),
        "one_per_cluster": one_per_cluster or None,
        "since": since,
        "expected_active_id": expected_active_id,
        "allow_overlap": allow_overlap,
        "activate": activate,
        "dry_run": dry_run,
        "application": application,
    }
    quiet = as_json or not err.is_terminal  # progress bars are for terminals
    if rows is not None and artifact is not None:
        with progress_bars(quiet) as show:
            done = calibrate_offline(
                config or CONFIG_FILE, artifact, rows, options, partial(_show_phase, show)
            )
        _print(done, application, as_json=as_json)
        _say_trained(done, application)
        return done
    with ExitStack() as stack:
        show = stack.enter_context(progress_bars(quiet))
        address = url or gateway_address(config, admin=True)
        client = stack.enter_context(GatewayClient(address, key))
        if rows is not None:
            files = {application: rows}
        else:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            # A judge's verdicts need delta; without it the rows are those of labels alone.
            query = SampleQuery(
                application=application,
                since=since,
                judge=judge if delta is not None else "",
                labels=labels,
            )
            saved = client.save_shadow_rows(folder, query)
            _say_labels(saved, delta)
            files = saved.files
        refusals: list[RacerError] = []
        result: dict[str, Any] | None = None
        for name, file in files.items():
            given = options | {"application": name}
            show("uploading", 0, 1)
            try:
                result = client.calibrate(file, given, partial(_show_uploaded, show))
            except GatewayRefused as exc:
                if len(files) == 1:
                    raise
                # The others are calibrated all the same.
                refusals.append(GatewayRefused(f"application {name}: {exc}"))
            else:
                _print(result, name, as_json=as_json)
                _say_trained(result, name)
                _show_thinning(result, name)
    for each in refusals[:-1]:
        err.print(f"racer: {each}", style="red", markup=False, highlight=False, soft_wrap=True)
    if refusals:
        raise refusals[-1]
    return result


def _say_labels(saved: SavedRows, delta: float | None) -> None:
    """Say on the error stream which labels the sampled rows carry."""
    if delta is None:
        text = "labels alone; with --delta also a judge's verdicts, if there are any"
    elif saved.judge is None:
        text = "labels alone: there are no verdicts of such a judge"
    else:
        text = f"verdicts of the judge {saved.judge}, corrected by labels"
        if saved.labels_left_out:
            text += (
                f". Labels left out: {saved.labels_left_out}, which are no random part or stand "
                "beside no verdict; label what the page's tab Label shows first, and run the judge"
            )
    if saved.unreadable:
        text += (
            f". Requests that cannot be decrypted: {saved.unreadable}; their rows are scores or "
            "misses: set $RACER_SAMPLES_KEY of the gateway to their key, too, or use --since"
        )
    err.print(f"racer: {text}", markup=False, highlight=False, soft_wrap=True)


def _print(result: Mapping[str, Any], application: str | None, *, as_json: bool) -> None:
    """Print the evidence, that of the application alone if its rows were replaced."""
    if as_json:
        print_json(result)
        return
    if result["refusal"] is not None:  # of a dry run: the rest is shown all the same
        err.print(f"It would be refused: {result['refusal']}", highlight=False, markup=False)
    evidence = _evidence(result, application)
    state = {"calibration": f"{result['id'] or '-'}, {_state(result)}"}
    if application is not None:
        state["application"] = application
    out.print(tables.fields(state | calibration_report.terms(evidence)))
    out.print(calibration_report.levels(evidence))
    if application is None:  # else its evidence is of one part
        for table in calibration_report.parts(evidence):
            out.print(table)
    shift = result["evidence"].get("shift")
    out.print(
        calibration_report.sentence(evidence, shift),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    served = result["served"]["remark"]
    for each in (*([served] if served else []), *calibration_report.warnings(evidence)):
        err.print(f"racer: {each}", highlight=False, markup=False, soft_wrap=True)


def _state(result: Mapping[str, Any]) -> str:
    if result["id"] is None:
        return "of a dry run: nothing was changed"
    activate = f"stored: `racer calibrations activate {result['id']}` makes it the active one"
    return "active from now on" if result["active"] else activate


def _say_trained(result: Mapping[str, Any], application: str | None) -> None:
    """Say on the error stream how many rows were left out because they trained the router."""
    if count := _evidence(result, application)["source"].get("trained_rows_left_out"):
        err.print(
            f"racer: {count} sampled rows trained the router and were left out",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _show_thinning(result: Mapping[str, Any], application: str | None) -> None:
    """Say how many sampled rows a change of the rate costs, and which requests have none."""
    for each in _evidence(result, application)["source"]["sampling"]:
        of_it = f"application {each['application']}: " if each["application"] else ""
        if each["kept"] < each["drawn"]:
            text = (
                f"{of_it}{each['kept']} of {each['drawn']} sampled rows were used: those of the "
                f"lowest sampling rate, {each['rate']:.4g}, and one of each conversation"
            )
            if each["since"] is not None and 2 * each["kept"] < each["drawn"]:
                text += f". It ended: use those since then by --since {each['since']}"
            err.print(text, highlight=False, markup=False, soft_wrap=True)
        if each["unsampled"]:
            err.print(
                f"{of_it}{each['unsampled']} requests came while the sampling was off, and the "
                "rows do not stand for them",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def _evidence(result: Mapping[str, Any], application: str | None) -> Mapping[str, Any]:
    """The evidence of an upload, that of the application alone if its rows were replaced."""
    evidence = result["evidence"]
    return evidence if application is None else evidence["uploads"][application]


def _show_uploaded(show: Progress, phase: str, done: int, total: int) -> None:
    """Update the bar of a phase of the gateway, which has the whole upload then."""
    show("uploading", 1, 1)
    _show_phase(show, phase, done, total)


def _show_phase(show: Progress, phase: str, done: int, total: int) -> None:
    """Update the bar of a phase: reading counts MiB, a phase without a count is one step."""
    if phase == "reading":
        phase, done, total = "reading, MiB", done >> 20, total >> 20
    show(phase, done, max(total, 1))
