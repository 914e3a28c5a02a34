"""GET /v1/models: OpenAI-compatible list of `auto`, its pools and the candidates."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from app.api.openapi import KEYED, errors
from app.errors import NotFound
from app.route_table import Routes
from app.services import Services
from app.wire import bodies

routes = Routes("openai")


@routes.add(
    "GET",
    "/v1/models",
    role="data",
    summary="The router and its candidates",
    responses=errors(*KEYED),
)
async def list_models(_: Request, services: Services) -> Response:
    """`auto` first, then its named pools and the candidates."""
    names = services.settings.models
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
    return bodies.json_response(_model(model_id))


def unknown_model(name: str, models: tuple[str, ...]) -> NotFound:
    """The error for an unknown model."""
    return NotFound(
        f"no model {name[:128]!r}; use one of {list(models)}",
        code="model_not_found",
        param="model",
    )


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "racer"}
