"""GET /healthz, GET /readyz: health checks (liveness and readiness probes). Public."""

from __future__ import annotations

from fastapi import Request, Response

from app.api.openapi import errors
from app.errors import NoRouter
from app.route_table import Routes
from app.services import Services
from app.wire import bodies

routes = Routes("health")


@routes.add(
    "GET",
    "/healthz",
    role="public",
    is_probe=True,
    summary="Liveness",
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
    summary="Readiness",
    responses=errors(400, 500)
    | {503: {"description": "Not ready, or draining; `reason` says why."}},
)
async def readyz(_: Request, services: Services) -> Response:
    """200 once encoder, artifact and calibration are loaded and warm; otherwise 503 with a reason.

    Without an artifact also 200, because candidates can be called by name; `reason` says so.
    `degraded` lists `store` while the store cannot be read.
    """
    if services.drain.begun:
        return bodies.json_response({"status": "draining"}, status=503)
    if services.router is None:
        ready = {"status": "ready", "calibration": None, "reason": NoRouter.sentence}
        return bodies.json_response(ready)
    active = services.router.active
    if active.ready:
        ready = {"status": "ready", "calibration": active.record().id}
        # Routing needs only memory, so the gateway stays ready without its store.
        degraded = {"degraded": ["store"]} if services.router.calibration_sync.lost else {}
        return bodies.json_response(ready | degraded)
    return bodies.json_response({"status": "not ready", "reason": active.why_not}, status=503)
