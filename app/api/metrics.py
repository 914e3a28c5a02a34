"""GET /metrics: Prometheus metrics."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.openapi import KEYED, content, errors
from app.route_table import Routes
from app.services import Services

routes = Routes("health")


@routes.add(
    "GET",
    "/metrics",
    role="data",
    summary="Prometheus metrics",
    response_class=Response,
    responses=errors(*KEYED) | content("text/plain"),
)
async def metrics(_: Request, services: Services) -> Response:
    """Prometheus text format."""
    services.metrics.tasks.set(len(asyncio.all_tasks()))
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)
