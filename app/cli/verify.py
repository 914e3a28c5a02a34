"""``verify``: whether a decision was what its calibration says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import ADMIN_KEY, DEFAULT_URL, FILE, JSON, out, print_json
from app.tools.gateway_client import GatewayClient

EXIT_DIFFERS = 1


@click.command()
@click.argument("decision_id")
@click.option("--config", type=FILE, help="Read the store of this configuration.")
@click.option("--url", help=f"Ask a running gateway; {DEFAULT_URL} when neither is given.")
@ADMIN_KEY
@JSON
def verify(
    decision_id: str, config: Path | None, url: str | None, key: str | None, as_json: bool
) -> None:
    """Decide DECISION_ID again from what is stored, and compare.

    With --config nothing but the store is read and everything is recomputed here. Exit code 1 when
    the decision differs.
    """
    if config is not None and url is not None:
        raise click.UsageError("give --config or --url, not both")
    if config is None:
        with _Verifying(url or DEFAULT_URL, key) as client:
            result = client.verify(decision_id)
    else:
        result = _from_store(decision_id, config)
    print_json(result) if as_json else out.print(tables.fields(_shown(result)))
    if not result["matches"]:
        sys.exit(EXIT_DIFFERS)


def _from_store(decision_id: str, config: Path) -> dict[str, Any]:
    from app.monitoring import verification
    from app.monitoring.decision_store import DecisionStore
    from app.store import Store

    configured, secrets = settings.load(config)
    with Store(secrets.store(configured)) as store:
        note = DecisionStore(store).known(decision_id).note
        return verification.verify(note, store.record(note.calibration_id)).as_json()


class _Verifying(GatewayClient):
    def verify(self, decision_id: str) -> dict[str, Any]:
        """POST /decisions/{id}/verify."""
        return self._request("POST", f"/decisions/{decision_id}/verify")


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    said, again = result["decision"], result["recomputed"]
    return {
        "decision": said["decision_id"],
        "made": said["created_at"],
        "calibration": f"{said['calibration_id']}, {again['n']} rows count",
        "group": again["group"],
        "alpha": f"{said['alpha']:g} ({said['score']})",
        "guarantee": "held" if said["holds"] else "void",
        "reasons": ", ".join(said["reasons"]) or "-",
        "chosen by": said["chosen_by"],
        "lambda_hat then": said["lambda_hat"],
        "lambda_hat now": again["lambda_hat"],
        "selected then": ", ".join(said["selected"]) or "nobody",
        "selected now": ", ".join(again["selected"]) or "nobody",
        "matches": "yes" if result["matches"] else "NO",
    }
