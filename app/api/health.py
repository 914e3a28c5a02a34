"""Liveness, readiness, metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.openapi import KEYED, content, errors
from app.errors import NoRouter
from app.services import OpenServices
from app.wire import bodies

router = APIRouter(tags=["health"])
metrics_router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process answers", responses=errors(400, 500, 503))
async def healthz() -> Response:
    """200 as long as the event loop turns."""
    return bodies.json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="What is configured can be asked",
    responses=errors(400, 500) | {503: {"description": "Not yet, or no more; `reason` says why."}},
)
async def readyz(services: OpenServices) -> Response:
    """200 once encoder, artifact and calibration are loaded and warm; else 503 and what to do.

    Without an artifact 200, too, for candidates can be asked by name; `reason` says so. `degraded`
    names what is missing meanwhile: `store` while nothing can be read from it.
    """
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


@metrics_router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses=errors(*KEYED) | content("text/plain"),
)
async def metrics(services: OpenServices) -> Response:
    """Prometheus text format."""
    services.metrics.tasks.set(len(asyncio.all_tasks()))
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)
