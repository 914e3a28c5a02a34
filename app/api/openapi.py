"""Bodies, errors and keys in the interface description.

Handlers read bytes, and keys are judged before there is a handler: FastAPI sees neither.
"""

from __future__ import annotations

from typing import Any, Final, cast

from fastapi import FastAPI
from pydantic import BaseModel, Field

from app.access.route_roles import DOORS, Door
from app.errors import RETRY_AFTER_S

Responses = dict[int | str, dict[str, Any]]

EVENTS: Final = "text/event-stream"
# Whatever needs a key can end so.
KEYED: Final = (400, 401, 403, 429, 500, 503)
# Whatever reads a JSON body, too.
BODY: Final = (413, 415, 422)
# Whatever calls candidates, too.
CALLS: Final = (404, 409, 502, 504)

_MEANING: Final = {
    400: "Not strict JSON, a field that is not read, or a Host that is not the gateway's.",
    401: "No key, or a wrong one.",
    403: "The key may not do this, or admin is off.",
    404: "No such model, decision, calibration or job; `code` says which.",
    409: "Against what is there already; nothing was changed.",
    413: "Over a limit of size.",
    415: "A content type or encoding that is not read.",
    422: "Well-formed, but not what the endpoint takes.",
    429: "A limit of the key or of the process; come back after `retry-after`.",
    500: "A fault of the gateway's own.",
    502: "No candidate gave a usable answer.",
    503: "Not now: not calibrated, being stopped, or nobody to ask.",
    504: "No candidate answered in time.",
    507: "No room in the store.",
}
_ANY_OTHER: Final = (
    "Refused before the request was understood (408, 414, 431), or as the candidates refused it."
)
_RETRY_AFTER: Final = {"retry-after": {"schema": {"type": "integer"}, "description": "Seconds."}}
_NO_RETRY: Final = {
    "x-should-retry": {"schema": {"const": "false"}, "description": "A retry would fail, too."}
}
_KEYS: Final = {
    "data_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "Any key. None is needed where the gateway has no data key.",
    },
    "admin_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key whose role is admin.",
    },
}
# One of these keys opens the door.
_OPENED_BY: Final[dict[Door, tuple[str, ...]]] = {
    "public": (),
    "data": ("data_key", "admin_key"),
    "admin": ("admin_key",),
}


class DescribedAPI(FastAPI):
    """A FastAPI application whose description says which key opens what."""

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, which it keeps, with the locks of the table of doors."""
        document = super().openapi()
        document["components"]["securitySchemes"] = _KEYS
        doors: dict[str, Door] = {
            route.replace(":path}", "}"): door for route, door in DOORS.items()
        }
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                opened_by = _OPENED_BY[doors[f"{method.upper()} {path}"]]
                operation["security"] = [{key: []} for key in opened_by]
        return document


class ErrorDetail(BaseModel):
    """What went wrong; `code` is for programs, `message` for people."""

    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str


class ErrorEnvelope(BaseModel):
    """Every error of the gateway, as OpenAI's clients read it."""

    error: ErrorDetail


def errors(*statuses: int) -> Responses:
    """``responses`` of a route: the errors that it can answer with, all in one envelope."""
    told: Responses = {
        status: {
            "model": ErrorEnvelope,
            "description": _MEANING[status],
            "headers": (_RETRY_AFTER if status in RETRY_AFTER_S else {}) | _NO_RETRY,
        }
        for status in sorted(statuses)
    }
    return told | {"default": {"model": ErrorEnvelope, "description": _ANY_OTHER}}


def content(*kinds: str) -> Responses:
    """``responses`` of a route that answers with these content types when all is well."""
    return {200: {"content": {kind: {} for kind in kinds}}}


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` for a handler that reads one JSON model."""
    schema = inline(model)
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def inline(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema with every definition in its place: fragments of a document have none."""
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
