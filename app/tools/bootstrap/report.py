"""Report of a bootstrap: what was chosen, what it costs and risks, and what to do next."""

from __future__ import annotations

from typing import Any

from app.settings import Settings
from app.tools.bootstrap.state import BootstrapState
from app.tools.bootstrap.steps import Steps, artifact_of
from app.tools.gateway_client import GatewayClient
from racer_core.offline.training_rows import with_labels
from racer_core.records.reader import read_rows


def report(
    state: BootstrapState,
    steps: Steps,
    settings: Settings,
    gateway: GatewayClient,
    data_url: str,
) -> dict[str, Any]:
    """The figures of all steps, as JSON values.

    Args:
        state: With every step finished.
        steps: Where their files are.
        settings: The configuration at the end.
        gateway: Says which calibration it runs.
        data_url: Where clients reach it.
    """
    read = read_rows(steps.rows, settings.pool, text="conversation", takes_unlabelled=True)
    rows = with_labels(read, steps.rows.name)
    right = rows.labels(settings.pool).mean(axis=0).tolist()
    calibration = dict(state.result("calibrate"))
    calibration["active"] = gateway.calibrations()[calibration["id"]]["active"]
    if calibration["mean_size"] is not None:
        calibration["calls_saved"] = 1.0 - calibration["mean_size"] / len(settings.pool)
    tuning = dict(state.result("tune"))
    left: list[str] = []
    if not calibration["active"]:
        left.append(
            "another calibration is active; to activate this one: racer calibrations activate "
            f"{calibration['id']} --url {gateway.url}"
        )
    if tuning.get("diff"):
        left.append(
            "restart the gateway: it reads the vote of the configuration at its start"
            if tuning["written"]
            else "`racer tune` proposes another setting; --write applies it"
        )
    artifact = artifact_of(settings)
    left.append(f"ask `auto` at {data_url}/v1: every answer carries its certificate")
    left.append(
        f"keep {artifact} and {steps.calibration_rows}: other gateways are calibrated from them"
    )
    return {
        "candidates": dict(zip(settings.pool, right, strict=True)),
        "rows": {"labelled": len(rows), **state.result("split")},
        "router": dict(state.result("train")),
        "tuning": tuning,
        "vote": settings.aggregation.method.value,
        "evaluation": dict(state.result("evaluate")),
        "calibration": calibration,
        "next": left,
    }
