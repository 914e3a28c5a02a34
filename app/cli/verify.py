"""``racer verify``: recomputes a stored decision and compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import (
    ADMIN_KEY,
    CONFIG_FILE,
    JSON,
    LATE_URL,
    OPTIONAL_CONFIG,
    gateway_address,
    out,
    print_json,
)
from app.tools.gateway_client import GatewayClient

EXIT_DIFFERS = 1


@click.command()
@click.argument("decision_id")
@click.option(
    "--from-store",
    "from_store",
    is_flag=True,
    help="Read the store of the configuration and recompute here, without a gateway.",
)
@OPTIONAL_CONFIG
@LATE_URL
@ADMIN_KEY
@JSON
def verify(
    decision_id: str,
    from_store: bool,
    config: Path | None,
    url: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Recompute decision DECISION_ID from the stored calibration, and compare.

    Exit code 1 if the result differs.
    """
    if from_store and url is not None:
        raise click.UsageError("give --from-store or --url, not both")
    if from_store:
        result = _from_store(decision_id, config or CONFIG_FILE)
    else:
        with _VerificationClient(url or gateway_address(config, admin=True), key) as client:
            result = client.verify(decision_id)
    print_json(result) if as_json else out.print(tables.fields(_shown(result)))
    if not result["matches"]:
        sys.exit(EXIT_DIFFERS)


def _from_store(decision_id: str, config: Path) -> dict[str, Any]:
    from app.monitoring import verification
    from app.monitoring.decisions.store import DecisionStore
    from app.store import Store

    configured, secrets = settings.load(config)
    with Store(secrets.store(configured)) as store:
        decision = DecisionStore(store).get(decision_id).decision
        return verification.recompute(store, decision).as_json()


class _VerificationClient(GatewayClient):
    def verify(self, decision_id: str) -> dict[str, Any]:
        """POST /decisions/{id}/verify."""
        return self._request("POST", f"/decisions/{decision_id}/verify")


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    stored, recomputed = result["decision"], result["recomputed"]
    return {
        "decision": stored["decision_id"],
        "made": stored["created_at"],
        "calibration": f"{stored['calibration_id']}, {recomputed['n']} rows count",
        "group": recomputed["group"],
        "alpha": f"{stored['alpha']:g} ({stored['score']})",
        "guarantee": "held" if stored["holds"] else "void",
        "reasons": ", ".join(stored["reasons"]) or "-",
        "chosen by": stored["chosen_by"],
        "lambda_hat then": stored["lambda_hat"],
        "lambda_hat now": recomputed["lambda_hat"],
        "selected then": ", ".join(stored["selected"]) or "none",
        "selected now": ", ".join(recomputed["selected"]) or "none",
        "matches": "yes" if result["matches"] else "NO",
    } | ({} if stored["sequence"] is None else _shown_calls(result))


def _shown_calls(result: dict[str, Any]) -> dict[str, Any]:
    stored, recomputed = result["decision"]["sequence"], result["recomputed"]
    nothing: dict[str, Any] = {"rounds": [], "stopped": None}
    made: dict[str, Any] = stored["made"] or nothing
    return {
        "reference": stored["reference"],
        "order then": ", ".join(stored["order"]),
        "order now": ", ".join(recomputed["order"]),
        "rounds then": _shown_rounds(made),
        "rounds now": _shown_rounds(recomputed),
        "differing": ", ".join(result["differing"]) or "-",
    }


def _shown_rounds(made: dict[str, Any]) -> str:
    rounds = (
        ", ".join(each["called"])
        + ("" if each["doubt"] is None else f" (doubt {each['doubt']:.4f})")
        for each in made["rounds"]
    )
    return f"{'; '.join(rounds) or 'none'}: {made['stopped'] or 'not stopped'}"
