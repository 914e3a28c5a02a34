"""GET /healthz, GET /readyz: health checks (liveness and readiness probes). Public."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fastapi import Request, Response

from app.api.openapi import errors
from app.calibrations.served_level import ServedLevel
from app.errors import Overloaded
from app.route_table import Routes
from app.services import Services, StoreServices
from app.wire import bodies

routes = Routes("health")


@routes.add(
    "GET",
    "/healthz",
    role="public",
    is_probe=True,
    allows_head=True,
    summary="Liveness",
    responses=errors(400, 500, 503),
)
@routes.add(
    "GET",
    "/health",
    role="public",
    is_probe=True,
    allows_head=True,
    summary="Liveness, at the path of vLLM",
    responses=errors(400, 500, 503),
)
async def healthz(_: Request, __: Services) -> Response:
    """200 while the event loop runs."""
    return bodies.json_response({"status": "ok"})


@routes.add(
    "GET",
    "/readyz",
    role="public",
    is_probe=True,
    allows_head=True,
    summary="Readiness",
    responses=errors(400, 500)
    | {503: {"description": "Draining; with `calibrated=true` also not calibrated."}},
    openapi_extra={
        "parameters": [{"name": "calibrated", "in": "query", "schema": {"type": "boolean"}}],
    },
)
async def readyz(request: Request, services: Services) -> Response:
    """200 while requests are answered, also by the fallback; 503 while the gateway drains.

    `holds` says whether certificates of usual requests hold, `reasons` why not, and `standing` both
    in words: of requests of no application, where some are configured.
    `artifact` is the digest of the loaded one. `level` is the risk level that the configuration
    serves, with the bound that holds for it; null: none does. `missing` lists what certificates
    lack and which command comes next; with `?calibrated=true` that is 503, too. `degraded` lists
    `store` while the store cannot be read, `store_damaged` if its file is damaged and a backup is
    to be restored, `store_writes` while it is read and takes no writes, `budgets` while it cannot
    read one budget, whose requests are refused, and `router` while the router does not respond, so
    that whole pools are called. `restart` says that the artifact has changed on disk.
    """
    if services.drain.begun:
        return bodies.json_response({"status": "draining"}, status=503)
    standing, fallback = services.standing(), services.settings.fallback
    served = await _served_level(services)
    if served is not None:  # the level may be one for which nothing holds
        void = map(str, served.certificate.void_reasons)
        standing = replace(standing, reasons=tuple(dict.fromkeys((*standing.reasons, *void))))
    ready: dict[str, Any] = {
        "status": "ready",
        "calibration": standing.calibration,
        "promise": standing.promise,
        "holds": standing.holds,
        "reasons": standing.reasons,
        "standing": standing.said(fallback),
    }
    if services.artifact.router is not None:
        ready["artifact"] = services.artifact.router.digest
    if served is not None:
        shown = served.as_json()
        ready["level"] = {name: shown[name] for name in ("alpha", "bound")}
    if missing := standing.missing:
        ready |= {
            "fallback": fallback,
            "missing": [asdict(each) for each in missing],
        }
    # Routing needs only memory, and whole pools are answers, too: the gateway stays ready.
    if degraded := _degraded(services):
        ready["degraded"] = degraded
    if services.artifact.has_changed:
        ready["restart"] = "the artifact has changed on disk; a restart loads it"
    is_waiting = bool(missing) and request.query_params.get("calibrated") == "true"
    return bodies.json_response(ready, status=503 if is_waiting else 200)


async def _served_level(services: Services) -> ServedLevel | None:
    """The risk level of requests of no application, and the bound that holds for it.

    None without a calibration of sets, or while its threshold is being computed.
    """
    if services.settings.same_answer is not None or services.calibration is None:
        return None
    stale = services.monitor.stale_reasons(services.calibration)
    try:
        return await services.mean_levels.served(services.settings, reasons=stale)
    except Overloaded:
        return None


def _degraded(services: Services) -> list[str]:
    """What does not work now."""
    router, budgets = services.artifact.router, services.budgets
    found = {
        "budgets": budgets is not None and budgets.are_lost,
        "router": router is not None and router.loaded.scoring.is_out,
    }
    store = None if services.stored is None else _store_lacks(services.stored)
    return [*([] if store is None else [store]), *(name for name, is_so in found.items() if is_so)]


def _store_lacks(stored: StoreServices) -> str | None:
    """What the store lacks: all of it, or only that it takes writes."""
    if stored.store.is_damaged:
        return "store_damaged"
    if stored.calibration_sync.lost:
        return "store"
    takes_writes = stored.calibration_sync.takes_writes and not stored.monitor.writes_fail
    return None if takes_writes else "store_writes"
