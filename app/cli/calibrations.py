"""``racer calibrations``: the stored calibrations of a running gateway, and which one is active."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from app.cli import calibration_report, tables
from app.cli.console import ADMIN_KEY, ADMIN_URL, JSON, err, out, print_json
from app.tools.gateway_client import GatewayClient
from racer_core.errors import InputError

_FORCE = click.option(
    "--force",
    is_flag=True,
    help="Also if no threshold is finite, or the mean set size changes by over 25 %.",
)


@click.group()
def calibrations() -> None:
    """List the calibrations of a gateway, and choose the active one."""


@calibrations.command("list")
@ADMIN_URL
@ADMIN_KEY
@JSON
def list_all(url: str, key: str | None, as_json: bool) -> None:
    """List the stored calibrations, newest first."""
    with GatewayClient(url, key) as gateway:
        found = [*gateway.calibrations().values()]
    if as_json:
        print_json({"calibrations": found})
    elif found:
        out.print(calibration_report.history(found))
    else:
        out.print("none yet: `racer calibrate ROWS` makes one", highlight=False)


@calibrations.command()
@click.argument("calibration_id", required=False)
@ADMIN_URL
@ADMIN_KEY
@JSON
def show(calibration_id: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show calibration CALIBRATION_ID with its evidence; default: the active one."""
    with GatewayClient(url, key) as gateway:
        found = gateway.calibration(calibration_id or _active(gateway)["id"])
    if as_json:
        print_json(found)
        return
    evidence = found["evidence"]
    state = "active" if found["active"] else "not active"
    head = {"calibration": f"{found['id']}, {state}", "made": found["created_at"]}
    out.print(tables.fields(head | calibration_report.terms(evidence)))
    for table in (calibration_report.levels(evidence), *calibration_report.parts(evidence)):
        out.print(table)
    shift = evidence.get("shift")
    is_of_all = shift is not None and "application" not in shift
    text = calibration_report.sentence(evidence, shift if is_of_all else None)
    out.print(text, highlight=False, markup=False, soft_wrap=True)
    for each in calibration_report.warnings(evidence):
        err.print(f"racer: {each}", highlight=False, markup=False, soft_wrap=True)


@calibrations.command()
@click.argument("calibration_id")
@_FORCE
@ADMIN_URL
@ADMIN_KEY
@JSON
def activate(calibration_id: str, force: bool, url: str, key: str | None, as_json: bool) -> None:
    """Make calibration CALIBRATION_ID the active one."""
    with GatewayClient(url, key) as gateway:
        result = gateway.activate(calibration_id, expected_active_id=None, confirm=force)
    _print_active(result, as_json=as_json)


@calibrations.command()
@_FORCE
@ADMIN_URL
@ADMIN_KEY
@JSON
def rollback(force: bool, url: str, key: str | None, as_json: bool) -> None:
    """Activate the calibration that was active when the active one was made.

    Nothing changes if another one becomes active meanwhile.
    """
    with GatewayClient(url, key) as gateway:
        active = _active(gateway)
        before = active["evidence"].get("shift", {}).get("active_id")
        if before is None:
            raise InputError(
                f"{active['id']} is the first calibration of its artifact: "
                "`racer calibrations activate ID` activates another one"
            )
        result = gateway.activate(before, expected_active_id=active["id"], confirm=force)
    _print_active(result, as_json=as_json)


def _active(gateway: GatewayClient) -> Mapping[str, Any]:
    """The active calibration of the artifact that the gateway has loaded.

    Raises:
        InputError: There is none.
    """
    active = [each for each in gateway.calibrations().values() if each["active"]]
    serving = gateway.readiness()["calibration"]
    # Those of other artifacts stay active for them; the promise `same_answer` has its own.
    for each in active:
        if each["id"] == serving or len(active) == 1:
            return each
    raise InputError("no calibration is active: `racer calibrations list` shows those that exist")


def _print_active(result: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    text = calibration_report.sentence(result["evidence"], None)
    out.print(f"{result['id']} is active. {text}", highlight=False, markup=False, soft_wrap=True)
