"""The gateway's route table, assembled from the endpoint modules.

The first row that fits a path serves it, and the OpenAPI document keeps this order.
"""

from __future__ import annotations

from typing import Final

from app.api import (
    budgets,
    calibrate,
    chat,
    docs,
    embeddings,
    feedback,
    health,
    messages,
    metrics,
    models,
    monitoring,
    reload,
    route,
    same_answer,
    ui,
)
from app.route_table import RouteTable

_ROUTES: Final = (
    *health.routes,
    *chat.routes,
    *messages.routes,
    *embeddings.routes,
    *route.routes,
    *models.routes,
    *calibrate.routes,
    *same_answer.routes,
    *feedback.routes,
    *monitoring.routes,
    *budgets.routes,
    *reload.routes,
    *ui.routes,
    *metrics.routes,
    *docs.routes,
)
ROUTES: Final = RouteTable([*_ROUTES, *docs.document_routes(_ROUTES)])
