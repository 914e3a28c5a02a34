"""``racer calibrations``: the stored calibrations of a running gateway, and which one is active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from app.cli import calibration_report, tables
from app.cli.calibrate_answers import answers_sentence, print_answers
from app.cli.console import ADMIN_KEY, ADMIN_URL, JSON, err, out, print_json
from app.tools.gateway_client import GatewayClient
from racer_core.errors import InputError


@click.group()
def calibrations() -> None:
    """List the calibrations of a gateway, and choose the active one."""


@calibrations.command("list")
@ADMIN_URL
@ADMIN_KEY
@JSON
def list_all(url: str, key: str | None, as_json: bool) -> None:
    """List the stored calibrations, those of the promise `same_answer`, too, newest first.

    Of a canary also what it and the active one have realised since it began.
    """
    with GatewayClient(url, key) as gateway:
        history = gateway.calibration_history()
        answers = [*gateway.answer_calibrations().values()]
    found, canary = history["data"], history["canary"]
    if as_json:
        print_json({"calibrations": found, "canary": canary, "same_answer": answers})
        return
    if found:
        out.print(calibration_report.history(found))
    if canary is not None:
        out.print(calibration_report.canary(canary))
    if answers:
        out.print(calibration_report.answers_history(answers))
    if not found and not answers:
        out.print("none yet: `racer calibrate ROWS` makes one", highlight=False)


@calibrations.command()
@click.argument("calibration_id", required=False)
@ADMIN_URL
@ADMIN_KEY
@JSON
def show(calibration_id: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show calibration CALIBRATION_ID with its evidence; default: the active one."""
    with GatewayClient(url, key) as gateway:
        chosen = calibration_id or _serving(gateway)
        answers = gateway.answer_calibrations().get(chosen)
        found = answers or gateway.calibration(chosen)
    if as_json:
        print_json(found)
    elif answers is not None:
        print_answers(answers)
    else:
        _print(found)


@calibrations.command()
@click.argument("calibration_id")
@click.option(
    "--canary",
    "share",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Let it decide this share of the requests as a canary, beside the active one.",
)
@ADMIN_URL
@ADMIN_KEY
@JSON
def activate(
    calibration_id: str,
    share: float | None,
    url: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Make calibration CALIBRATION_ID the active one; promotes a canary.

    Activating the one that is active ends a canary.
    """
    with GatewayClient(url, key) as gateway:
        answers = gateway.answer_calibrations()
        if calibration_id in answers:
            if share is not None:
                raise click.UsageError(
                    f"{calibration_id} is of the promise `same_answer`, which has no canary: leave "
                    "--canary out to activate it for all requests"
                )
            gateway.activate_answers(calibration_id)
            _print_active(_chosen(answers[calibration_id]), answers_sentence, as_json=as_json)
            return
        result = gateway.activate(calibration_id, share=share)
    _print_active(result, _sentence, as_json=as_json)


@calibrations.command()
@ADMIN_URL
@ADMIN_KEY
@JSON
def rollback(url: str, key: str | None, as_json: bool) -> None:
    """End the canary, or activate the calibration that was active when the active one was made.

    Nothing changes if another one becomes active meanwhile. Of the promise `same_answer` it is the
    one that was activated last before.
    """
    with GatewayClient(url, key) as gateway:
        serving, answers = _serving(gateway), gateway.answer_calibrations()
        if serving in answers:
            before = _before(answers[serving], answers)
            gateway.activate_answers(before["id"])
            _print_active(_chosen(before), answers_sentence, as_json=as_json)
            return
        canary = gateway.running_canary()
        if canary is None:
            shift = gateway.calibration(serving)["evidence"].get("shift")
            if shift is None:
                raise _nothing_before(serving)
            target = shift["active_id"]
        else:
            target = serving
        result = gateway.activate(target, expected_active_id=serving)
    if as_json:
        result |= {"ended_canary": canary}
    elif canary is not None:
        out.print(f"the canary {canary} is ended. ", end="", highlight=False, markup=False)
    _print_active(result, _sentence, as_json=as_json)


def _serving(gateway: GatewayClient) -> str:
    """The calibration that decides for requests of no application.

    Raises:
        InputError: There is none.
    """
    serving = gateway.readiness()["calibration"]
    if serving is None:
        raise InputError(
            "no calibration is active: `racer calibrations list` shows those that exist"
        )
    return serving


def _before(
    active: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The calibration of the same application that was activated last, but for the active one."""
    others = [
        each
        for each in answers.values()
        if each["application"] == active["application"]
        and each["activated_at"] is not None
        and each["evidence"].get("refused") is None
        and each["id"] != active["id"]
    ]
    if not others:
        raise _nothing_before(active["id"])
    return max(others, key=lambda each: each["activated_at"])


def _chosen(answers: Mapping[str, Any]) -> dict[str, Any]:
    """A calibration of the promise `same_answer` after its activation by its id."""
    return dict(answers) | {"active": True, "chosen": not answers["active"]}


def _nothing_before(calibration_id: str) -> InputError:
    return InputError(
        f"{calibration_id} is the first that became active: `racer calibrations activate ID` "
        "activates another one"
    )


def _print(found: Mapping[str, Any]) -> None:
    evidence = found["evidence"]
    state = calibration_report.state(found) or "not active"
    head = {"calibration": f"{found['id']}, {state}", "made": found["created_at"]}
    out.print(tables.fields(head | calibration_report.terms(evidence)))
    for table in (calibration_report.levels(evidence), *calibration_report.parts(evidence)):
        out.print(table)
    shift = evidence.get("shift")
    is_of_all = shift is not None and "application" not in shift
    text = calibration_report.sentence(evidence, shift if is_of_all else None)
    out.print(text, highlight=False, markup=False, soft_wrap=True)
    chosen = [calibration_report.CHOSEN] if found["chosen"] else []
    for each in (*chosen, *calibration_report.warnings(evidence)):
        err.print(f"racer: {each}", highlight=False, markup=False, soft_wrap=True)


def _sentence(evidence: Mapping[str, Any]) -> str:
    return calibration_report.sentence(evidence, None)


def _print_active(
    calibration: Mapping[str, Any], sentence: Callable[[Mapping[str, Any]], str], *, as_json: bool
) -> None:
    if as_json:
        print_json(dict(calibration))
        return
    share = calibration.get("share")
    state = "is active" if share is None else f"decides {share:.3g} of the requests"
    text = f"{calibration['id']} {state}. {sentence(calibration['evidence'])}"
    out.print(text, highlight=False, markup=False, soft_wrap=True)
    if calibration.get("chosen"):
        text = f"racer: {calibration_report.CHOSEN}"
        err.print(text, highlight=False, markup=False, soft_wrap=True)
