"""``racer calibrate --same-answer``: calibrates the promise `same_answer` from sampled traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli import tables
from app.cli.console import err, out, print_json
from app.settings import ANSWERABLE, VOTE
from app.tools.gateway_client import GatewayClient

_SHOWN = ("rows", "fitting", "n", "lost", "alpha", "reference", "max_rounds", "candidates")


def calibrate_answers(
    url: str, key: str | None, application: str | None, *, dry_run: bool, as_json: bool
) -> None:
    """Have a gateway calibrate, and print the evidence.

    Args:
        url: The gateway.
        key: An admin key.
        application: The application; None where none is configured.
        dry_run: Change nothing.
        as_json: Print the whole result as JSON.

    Raises:
        GatewayRefused: Too few rows, or answers that cannot be compared.
    """
    with GatewayClient(url, key) as client:
        result = client.calibrate_answers(application, dry_run=dry_run)
    if as_json:
        print_json(result)
        return
    if result["refusal"] is not None:
        err.print(f"Not activated: {result['refusal']}", highlight=False, markup=False)
    print_answers(result)


def print_answers(calibration: Mapping[str, Any]) -> None:
    """Print a calibration of the promise: its terms, the frontier, and what changes for users."""
    evidence = calibration["evidence"]
    shown = {name: calibration[name] for name in ("id", "active", "application")}
    shown |= {name: evidence[name] for name in _SHOWN}
    shown["first round"] = ", ".join(evidence["first_round"])
    shown["expected calls"] = f"{evidence['expected_calls']:.2f}"
    if evidence["price_share"] is not None:
        shown["share of the price"] = f"{evidence['price_share']:.2f}"
    out.print(tables.fields(shown))
    out.print(tables.frontier(evidence["frontier"]))
    text = f"{answers_sentence(evidence)} Means over the calibration rows themselves."
    out.print(text, highlight=False, markup=False, soft_wrap=True)
    if said := evidence.get("consequences"):
        changes = f"Against what answers without it: {'; '.join(said)}."
        out.print(changes, highlight=False, markup=False, soft_wrap=True)


def answers_sentence(evidence: Mapping[str, Any]) -> str:
    """What a calibration of the promise means for users, in one sentence."""
    alpha, reference = f"{evidence['alpha']:.3g}", evidence["reference"]
    promise = f"of the answers differ from that of {reference}"
    if reference == VOTE:
        promise = "of the answers differ from the whole pool's vote"
    elif reference == ANSWERABLE:
        promise = "of the requests that some candidate answers right call none that does"
    return (
        f"At alpha {alpha}: {evidence['expected_calls']:.2f} calls of {evidence['candidates']} a "
        f"request on average, and at most {alpha} {promise}."
    )
