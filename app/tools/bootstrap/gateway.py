"""The gateway of a bootstrap: what it must serve, and when it has loaded the new artifact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from app.errors import GatewayRefused, GatewayUnreachable
from app.settings import Settings
from app.tools.gateway_client import GatewayClient
from app.tools.labelling.through_gateway import check_pool
from racer_core import artifacts

_POLL_S: Final = 0.5
_IN_A_ROW: Final = 10  # answers, since one of several gateways may have loaded it first


def check_gateway(gateway: GatewayClient, settings: Settings) -> None:
    """Refuse a gateway that could not be calibrated in the end, before anything is paid for.

    Raises:
        SettingsError: It serves other candidates.
        GatewayUnreachable: It does not answer.
        GatewayRefused: It has no store or no admin key, or wants another key.
    """
    check_pool(gateway, settings.pool)
    gateway.calibrations()


def wait_for_artifact(gateway: GatewayClient, folder: Path, limit_s: float) -> None:
    """Wait until ten answers in a row say that this artifact is loaded.

    Args:
        gateway: The gateway, or several behind one address; it may restart meanwhile.
        folder: The artifact.
        limit_s: How long to wait, in seconds.

    Raises:
        GatewayRefused: It did not load it in time; the message says what to do.
    """
    digest = artifacts.digest(folder)
    deadline = time.monotonic() + limit_s
    why, count = "it does not answer", 0
    while True:
        try:
            ready = gateway.readiness()
        except GatewayUnreachable:
            count = 0
        else:
            loaded = ready.get("artifact")
            if loaded == digest:
                count += 1
                if count == _IN_A_ROW:
                    return
                continue
            count = 0
            if loaded is not None:
                why = "it runs another one: restart it, or deploy it again on Ray"
                if "restart" in ready:  # it sees these files, and loads none in place of another
                    break
            else:
                missing = {each["part"]: each["reason"] for each in ready.get("missing", ())}
                why = missing.get("artifact", "its configuration has no `artifact`")
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    raise GatewayRefused(
        f"the gateway at {gateway.url} has not loaded the artifact {folder} ({why}). Where it does "
        "not see this folder, copy it to the place that `artifact` names there, or roll it out "
        "(on Ray to every node); then run the same command again, which goes on here"
    )
