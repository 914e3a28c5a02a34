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
    summary="The process answers",
    responses=errors(400, 500, 503),
)
async def healthz(_: Request, __: Services) -> Response:
    """200 as long as the event loop turns."""
    return bodies.json_response({"status": "ok"})


@routes.add(
    "GET",
    "/readyz",
    role="public",
    is_probe=True,
    summary="What is configured can be asked",
    responses=errors(400, 500) | {503: {"description": "Not yet, or no more; `reason` says why."}},
)
async def readyz(_: Request, services: Services) -> Response:
    """200 once encoder, artifact and calibration are loaded and warm; else 503 and what to do.

    Without an artifact 200, too, for candidates can be asked by name; `reason` says so. `degraded`
    names what is missing meanwhile: `store` while nothing can be read from it.
    """
    if services.drain.begun:
        return bodies.json_response({"status": "draining"}, status=503)
    if services.router is None:
        ready = {"status": "ready", "calibration": None, "reason": NoRouter.sentence}
        return bodies.json_response(ready)
    active = services.router.active
    if active.ready:
        ready = {"status": "ready", "calibration": active.record().id}
        # What decides is in memory: not to be asked would help nobody.
        lost = {"degraded": ["store"]} if services.router.calibration_sync.lost else {}
        return bodies.json_response(ready | lost)
    return bodies.json_response({"status": "not ready", "reason": active.why_not}, status=503)
