"""GET /v1/models: OpenAI-compatible list of `auto`, its pools and the candidates."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response

from app.api.openapi import KEYED, errors
from app.errors import NotFound
from app.route_table import Routes
from app.services import Services
from app.wire import bodies
from app.wire.messages.request import VERSION_HEADER

routes = Routes("openai")

_CREATED: Final = int(time.time())  # of every model: clients want a number, and read none


@routes.add(
    "GET",
    "/v1/models",
    role="data",
    summary="The router and its candidates",
    responses=errors(*KEYED),
)
async def list_models(request: Request, services: Services) -> Response:
    """`auto` first, then its named pools and the candidates, in the form of the client."""
    names = services.settings.models
    if VERSION_HEADER in request.headers:
        listed = [_anthropic_model(name) for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]}
        return bodies.json_response({"data": listed, "has_more": False, **ends})
    return bodies.json_response({"object": "list", "data": [_model(name) for name in names]})


@routes.add(
    "GET",
    "/v1/models/{model_id:path}",
    role="data",
    summary="One model",
    responses=errors(*KEYED, 404),
)
async def get_model(request: Request, services: Services) -> Response:
    """404 `model_not_found` for an unknown name."""
    model_id: str = request.path_params["model_id"]
    if model_id not in services.settings.models:
        raise unknown_model(model_id, services.settings.models)
    shown = _anthropic_model if VERSION_HEADER in request.headers else _model
    return bodies.json_response(shown(model_id))


def unknown_model(name: str, models: tuple[str, ...]) -> NotFound:
    """The error for an unknown model."""
    return NotFound(
        f"no model {name[:128]!r}; use one of {list(models)}",
        code="model_not_found",
        param="model",
    )


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "racer"}


def _anthropic_model(name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(_CREATED, UTC).isoformat()
    return {"type": "model", "id": name, "display_name": name, "created_at": created}
