"""Report of a bootstrap: what was chosen, what it costs and risks, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.settings import Settings
from app.settings.editing import as_yaml, has_settings
from app.settings.reloading import is_reloaded
from app.tools.bootstrap.state import BootstrapState
from app.tools.bootstrap.steps import BootstrapOptions, Steps, artifact_of
from app.tools.gateway_client import GatewayClient
from racer_core.offline.training_rows import with_labels
from racer_core.records.reader import read_rows


def report(
    state: BootstrapState,
    steps: Steps,
    settings: Settings,
    gateway: GatewayClient,
    options: BootstrapOptions,
) -> dict[str, Any]:
    """The figures of all steps, as JSON values.

    Args:
        state: With every step finished.
        steps: Where their files are.
        settings: The configuration at the end.
        gateway: Says which calibration it runs.
        options: Of the command: the configuration, and where clients reach the gateway.
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
    if changed := tuning.get("settings"):
        if tuning["written"]:
            left.append(take_over(changed))
        elif not has_settings(options.config, changed):
            left.append(_apply(changed, options.config))
    artifact = artifact_of(settings)
    left.append(
        f"ask `auto` at {client_address(options.data_url)}: every answer carries its certificate"
    )
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


def take_over(changed: Mapping[str, Mapping[str, Any]]) -> str:
    """How a running gateway takes over these settings of its configuration."""
    places = [(section, name) for section, values in changed.items() for name in values]
    reloaded = [".".join(each) for each in places if is_reloaded(each)]
    others = [".".join(each) for each in places if not is_reloaded(each)]
    if not others:
        return (
            f"reload the gateway (SIGHUP or POST /admin/reload): it takes over {_listed(reloaded)}"
        )
    text = f"restart the gateway: it reads {_listed(others)} at its start"
    return text + (f"; {_listed(reloaded)} alone would need a reload only" if reloaded else "")


def _apply(changed: Mapping[str, Mapping[str, Any]], config: Path) -> str:
    """How settings that were not written come into the configuration."""
    return (
        "`racer tune` chooses other settings than those with which this run evaluated and "
        f"calibrated. To use them: give --write, or put the lines below into {config} (in a "
        "container: where it comes from, such as a ConfigMap or a chart's values); run the same "
        f"command again; {take_over(changed)}\n{as_yaml(changed)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def client_address(url: str) -> str:
    """Where clients ask; the address that this command used may be of no use elsewhere."""
    if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        return f"{url}/v1"
    return (
        f"{url}/v1, as this command does (outside of this network by a published port, an ingress "
        "or a port-forward)"
    )
