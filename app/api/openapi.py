"""OpenAPI document: built by FastAPI from the route table.

FastAPI derives documents from the signatures of endpoints. Handlers here read bodies from the
request, and access control checks keys before dispatch, so parameters, bodies, errors and security
are stated explicitly.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final, Literal, cast

from fastapi import Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.routing import compile_path

from app.errors import RETRY_AFTER_S
from app.route_table import JsonBody, Route, RouteRole
from racer_core import __version__

TITLE: Final = "RACER gateway"
Responses = dict[int | str, dict[str, Any]]

EVENTS: Final = "text/event-stream"
# Errors of every endpoint that needs a key.
KEYED: Final = (400, 401, 403, 429, 500, 503)
# Further errors of endpoints with a JSON body.
BODY: Final = (413, 415, 422)
# Further errors of endpoints that call candidates.
CALLS: Final = (404, 409, 502, 504)

_MEANING: Final = {
    400: "Not strict JSON, an unknown field, or a Host header that is not the gateway's.",
    401: "Missing or wrong key.",
    403: "The key lacks the permission, or admin is off.",
    404: "No such model, decision, calibration or job; `code` says which.",
    409: "Conflict with the current state; nothing was changed.",
    413: "Over a size limit.",
    415: "Unsupported content type or encoding.",
    422: "Well-formed JSON that the endpoint does not accept.",
    429: "A limit of the key or of the gateway is reached; retry after `retry-after`.",
    500: "Internal error of the gateway.",
    502: "No candidate gave a usable answer.",
    503: "Not calibrated, shutting down, or no candidate is available.",
    504: "No candidate answered in time.",
    507: "The store is full.",
}
_ANY_OTHER: Final = (
    "Refused by the HTTP server (408, 414, 431), or with the status of the candidates."
)
_RETRY_AFTER: Final = {"retry-after": {"schema": {"type": "integer"}, "description": "Seconds."}}
_NO_RETRY: Final = {
    "x-should-retry": {"schema": {"const": "false"}, "description": "A retry would fail."}
}
_KEYS: Final = {
    "data_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "Any key, or in the header x-api-key. A gateway without a data key needs "
        "none.",
    },
    "admin_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key whose role is admin.",
    },
}
# Any one of these keys suffices.
_KEYS_OF_ROLE: Final[dict[RouteRole, tuple[str, ...]]] = {
    "public": (),
    "data": ("data_key", "admin_key"),
    "admin": ("admin_key",),
}


def openapi_document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of all routes that have a summary."""
    document = get_openapi(
        title=TITLE,
        version=__version__,
        summary="Routes each query to a calibrated set of language models and merges their answers",
        routes=[_api_route(route) for route in routes if route.summary is not None],
    )
    document["components"]["securitySchemes"] = _KEYS
    return document


def _api_route(route: Route) -> APIRoute:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "title": name.replace("_", " ").title()},
        }
        for name in compile_path(route.path)[2]
    ]
    extra: dict[str, Any] = {"security": [{key: []} for key in _KEYS_OF_ROLE[route.role]]}
    if parameters:
        extra["parameters"] = parameters
    if route.body is not None:
        extra["requestBody"] = _request_body(route.body)
    return APIRoute(
        route.path,
        _endpoint,
        methods=[route.method],
        name=route.handler.__name__,
        summary=route.summary,
        description=inspect.cleandoc(route.handler.__doc__ or ""),
        tags=[*route.tags],
        responses=dict(route.responses),
        response_class=route.response_class,
        openapi_extra={**extra, **route.openapi_extra},
    )


async def _endpoint() -> Response:
    """Stands for every handler: FastAPI reads nothing from its signature."""
    raise NotImplementedError


def _request_body(body: JsonBody[Any]) -> dict[str, Any]:
    return {
        "required": body.is_required,
        "content": {"application/json": {"schema": inline(body.model)}},
    }


class ErrorDetail(BaseModel):
    """An error; `code` is for programs, `message` for people."""

    message: str
    type: str
    param: str | None = Field(description="The field that caused the error.")
    code: str


class ErrorEnvelope(BaseModel):
    """Every error of the gateway, as OpenAI's clients read it."""

    error: ErrorDetail


class MessagesErrorDetails(BaseModel):
    """What programs need of an error."""

    error_code: str
    param: str | None = Field(description="The field that caused the error.")


class MessagesError(BaseModel):
    """An error of Anthropic's type."""

    type: str
    message: str
    details: MessagesErrorDetails


class MessagesErrorEnvelope(BaseModel):
    """Every error below `/v1/messages`, as Anthropic's clients read it."""

    type: Literal["error"]
    error: MessagesError
    request_id: str | None


MESSAGES_ENVELOPE: Final = MessagesErrorEnvelope


def errors(*statuses: int, envelope: type[BaseModel] = ErrorEnvelope) -> Responses:
    """``responses`` of a route: its error statuses, all with the same envelope."""
    responses: Responses = {
        status: {
            "model": envelope,
            "description": _MEANING[status],
            "headers": (_RETRY_AFTER if status in RETRY_AFTER_S else {}) | _NO_RETRY,
        }
        for status in sorted(statuses)
    }
    return responses | {"default": {"model": envelope, "description": _ANY_OTHER}}


def content(*kinds: str) -> Responses:
    """``responses`` of a route whose successful responses have these content types."""
    return {200: {"content": {kind: {} for kind in kinds}}}


def inline(model: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON schema with definitions inlined: references would leave the fragment."""
    schema = model.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs", {})
    return cast("dict[str, Any]", _resolved(schema, definitions))


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolved(each, definitions) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    values = cast("dict[str, Any]", node)
    if "$ref" in values:
        return _resolved(definitions[values["$ref"].rpartition("/")[2]], definitions)
    return {name: _resolved(value, definitions) for name, value in values.items()}
